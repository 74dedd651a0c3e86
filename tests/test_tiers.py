"""The sample of the normal tier: every value that a test names occurs, and the other cases are few."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import tiers
from draws import FACTOR
from tiers import sample

pytest_plugins = ["pytester"]
TESTS = Path(__file__).parent

CASES = """
    import pytest

    @pytest.mark.sampled(10, "line", "isa+size")
    @pytest.mark.parametrize("size", range(5))
    @pytest.mark.parametrize("isa", ["old", "new"])
    @pytest.mark.parametrize("line", ["--dt=u8:s8:s32 --dir=A 1x1", "--dt=u8:s8:f32 1x1", "--dt=f32 1x1", "x", "y",
                                      pytest.param("long", marks=pytest.mark.slow)])
    def test_sampled(line, isa, size):
        print("ran", line, isa, size)

    def test_other(): pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.Pytester]:
    """A suite with the tiers of this one."""
    was_there = "torch" in sys.modules
    pytester.makepyfile(test_cases=CASES)
    pytester.makeconftest((TESTS / "conftest.py").read_text())
    pytester.makefile(".toml", pyproject=(TESTS.parent / "pyproject.toml").read_text().replace('"tests"', '"."'))
    monkeypatch.syspath_prepend(TESTS)
    yield pytester
    # The fixture forgets modules that were imported after it, and PyTorch cannot be imported a second time.
    assert was_there or "torch" not in sys.modules


def outcomes(suite: pytest.Pytester, *options: str) -> dict[str, int]:
    """The number of cases that passed, and of those that were deselected."""
    return suite.runpytest("-p", "no:xdist", *options).parseoutcomes()


def test_the_tiers_share_the_cases(suite: pytest.Pytester) -> None:
    normal, wide, both = outcomes(suite), outcomes(suite, "-m", "wide"), outcomes(suite, "-m", "not slow")
    assert both["passed"] == 51
    assert normal["passed"] + wide["passed"] == 51 and normal["passed"] < 20
    slow = outcomes(suite, "-m", "slow")
    assert slow["passed"] == both["deselected"] == 10
    assert normal["deselected"] == wide["passed"] + 10 and wide["deselected"] == normal["passed"] + 10


REPEATED = """
    import pytest

    @pytest.mark.sampled(50, "a", "b", "c", wide=4)
    @pytest.mark.parametrize("a", range(5))
    @pytest.mark.parametrize("b", range(5))
    @pytest.mark.parametrize("c", range(5))
    def test_sampled(a, b, c):
        print("ran", a, b, c)
"""


def ran(suite: pytest.Pytester, tier: str) -> set[tuple[str, ...]]:
    output = suite.runpytest("-p", "no:xdist", "-s", "-m", tier).stdout.str()
    return {tuple(line.split()) for line in re.findall("ran (.*)", output)}


def test_cases_that_repeat_each_other_are_slow(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_cases=REPEATED)
    normal, wide, slow = (ran(suite, tier) for tier in ("not wide and not slow", "wide", "slow"))
    assert len(normal | wide | slow) == len(normal) + len(wide) + len(slow) == 125
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert len({(case[one], case[other]) for case in normal | wide}) == 25
    assert len(normal) < 10 and 20 < len(wide) < 60


MARKED = """
    import pytest

    @pytest.mark.sampled(9)
    @pytest.mark.parametrize("a", [pytest.param(n, marks=[pytest.mark.wide] * (n < 8)) for n in range(10)])
    def test_sampled(a):
        print("ran", a)
"""


def test_cases_with_the_mark_of_a_tier_are_in_no_sample(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_cases=MARKED)
    normal, wide = ran(suite, "not wide and not slow"), ran(suite, "wide")
    assert normal < {("8",), ("9",)} and len(normal) == 1 and len(wide) == 9


def test_values_may_be_left_to_the_wide_tier(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_cases=REPEATED.replace('50, "a", "b", "c", wide=4', '50, "a", wide=50, every="b"'))
    normal, wide = ran(suite, "not wide and not slow"), ran(suite, "wide")
    assert len(normal) == 5 and len({case[1] for case in normal}) < 5
    assert len(wide) <= 9 and len({case[1] for case in normal | wide}) == 5


def test_cases_that_planted_faults_name_are_in_the_sample(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert any(case.endswith("]") for case in tiers.named_by_faults())
    monkeypatch.setattr(tiers, "named_by_faults", lambda: {f"test_cases.py::test_sampled[{n}-4-0]" for n in range(4)})
    suite.makepyfile(test_cases=REPEATED.replace('50, "a", "b", "c", wide=4', "50"))
    assert ran(suite, "not wide and not slow") == {("0", "4", str(n)) for n in range(4)}


def test_the_sample_has_every_value(suite: pytest.Pytester) -> None:
    output = suite.runpytest("-p", "no:xdist", "-s").stdout.str()
    cases = [line.split() for line in re.findall("ran (.*)", output)]
    assert {tuple(words[-2:]) for words in cases} == {(isa, str(size)) for isa in ("old", "new") for size in range(5)}
    words = {word for line in cases for word in line[:-2]}
    assert {"--dir=A", "--dt=f32", "x", "y"} <= words and {"--dt=u8:s8:s32", "--dt=u8:s8:f32"} & words


def test_a_case_runs_where_it_is_named(suite: pytest.Pytester) -> None:
    for line in "xy":  # one of them at most is in the sample
        assert outcomes(suite, f"test_cases.py::test_sampled[{line}-old-0]") == {"passed": 1}


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_one_case_in_n(n: int) -> None:
    names = [f"case {number}" for number in range(100)]
    kept = sample(names, [frozenset()] * 100, n)
    assert len(kept) == -(-100 // n)
    more = sample(["another", *names], [frozenset()] * 101, n)
    assert len({number + 1 for number in kept} - more) <= 1


@pytest.mark.parametrize("profile", ["same", "anew"])
def test_no_example_fails_by_its_time(profile: str) -> None:
    loaded = hypothesis.settings.get_profile(profile)
    assert loaded.deadline is None
    assert hypothesis.HealthCheck.too_slow in loaded.suppress_health_check


DRAWS = """
    from draws import examples
    from hypothesis import given, strategies as st

    @examples(3)
    @given(st.integers(0, 2**64))
    def test_drawn(number): print("drew", number)
"""


def drawn(suite: pytest.Pytester, *options: str) -> list[str]:
    """The numbers that a test draws in a process of its own, as a profile holds for a whole process."""
    return re.findall(r"drew (\d+)", suite.runpytest_subprocess("-p", "no:xdist", "-s", *options).stdout.str())


def test_every_run_draws_the_same_examples_but_for_the_profile_anew(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    suite.makepyfile(test_cases=DRAWS)
    once = drawn(suite)
    monkeypatch.setenv("CI", "true")  # where hypothesis has a profile of its own
    assert drawn(suite) == once and len(once) == 3
    fresh = drawn(suite, "--hypothesis-profile=anew", "-m", "hypothesis")
    assert len(fresh) == 3 * FACTOR and not {*fresh} <= {*once}


@pytest.fixture
def module(draw: str) -> str:
    """The module of a generator, which stays imported."""
    name = draw.partition(".")[0]
    if name == "torch":
        pytest.importorskip("torch")
    return name


@pytest.mark.parametrize("draw", ["random.random()", "numpy.random.random()", "torch.rand(()).item()"])
def test_generators_without_a_seed_draw_the_same_in_every_test(module: str, draw: str, suite: pytest.Pytester) -> None:
    body = f"def test_{{}}(): print('drew', {draw}, {draw})\n"
    suite.makepyfile(test_cases=f"import {module}\n{body.format('one')}{body.format('other')}")
    one, other = re.findall("drew (.*)", suite.runpytest("-p", "no:xdist", "-s").stdout.str())
    assert one == other and len(set(one.split())) == 2


def test_the_profile_anew_has_more_examples_by_default_as_well() -> None:
    same, anew = map(hypothesis.settings.get_profile, ("same", "anew"))
    assert same.derandomize and not anew.derandomize and FACTOR > 1
    assert anew.max_examples == FACTOR * same.max_examples == FACTOR * 100


def test_each_test_says_its_number_of_examples_in_one_way() -> None:
    """Settings of a test's own would not follow the profile."""
    pattern = r"max_examples|derandomize|^from hypothesis import.*\bsettings\b"
    found = {path.name for path in TESTS.rglob("*.py") if re.search(pattern, path.read_text(), re.MULTILINE)}
    assert found <= {"draws.py", Path(__file__).name}


def test_tests_that_ask_for_pytorch_are_selected_by_their_mark(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_asking="""
        import pytest

        @pytest.fixture
        def library():
            return pytest.importorskip("torch")

        def test_itself(): pytest.importorskip("convsmith.torch")
        def test_by_fixture(library): pass
        def test_of_something_else(): pytest.importorskip("numpy")
        """
    )
    result = suite.runpytest("-p", "no:xdist", "--collect-only", "-q", "-m", "torch")
    found = {line.partition("::")[2] for line in result.outlines if "::" in line}
    assert found == {"test_itself", "test_by_fixture"}


def test_the_files_that_ci_gives_to_the_tests_of_pytorch_are_files_of_tests() -> None:
    """`.ci/run` finds them by this text, so no fixture of another file may ask."""
    text = r'importorskip\("(convsmith\.)?torch'
    asking = [path.name for path in TESTS.rglob("*.py") if re.search(text, path.read_text())]
    assert len(asking) > 30 and all(name.startswith("test_") for name in asking)
