"""The verdict on a kernel: the largest of the model's terms, and an alternative with its modelled gain."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

import convsmith as cs
from convsmith.cli.main import main
from convsmith.ir.intern import interning
from convsmith.machine.registry import known_targets
from convsmith.measure.ceilings import Figure
from convsmith.measure.roofline import Roofline, bytes_of_arrays
from convsmith.problem import parse_problem
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.tune.compile import choose
from convsmith.tune.costs.expected import expected_terms
from convsmith.tune.costs.verdict import MIN_GAIN, KernelVerdict, _terms, verdict

TARGETS = {t.name: t for t in known_targets()}
LAST = "--stag=axb --dtag=axb"
KERNELS = [
    (f"{LAST} mb1ic64ih14oc64oh14kh3ph1", "aarch64"), (f"{LAST} mb1ic64ih14oc64oh14kh3ph1", "hexagon+v68"),
    (f"{LAST} mb1ic64ih14oc24oh14kh1", "aarch64+sve512"), (f"{LAST} g64mb1ic64ih14oc64oh14kh3ph1", "aarch64"),
    ("--dt=s8:s8:s32 mb1ic64ih14oc64oh14kh3ph1", "aarch64+dotprod"),
    (f"--accuracy=strict {LAST} mb1ic64ih14oc64oh14kh3ph1", "aarch64"),
    (f"{LAST} mb1ic64iw2oc17kw1", "aarch64"), (f"{LAST} mb1ic256ih14oc256kh1", "aarch64+bf16"),
    (f"--dir=BWD_W {LAST} mb2ic16ih8oc24oh8kh3ph1", "aarch64"), ("--matmul 64x48:48x40", "aarch64"),
    ("mb1ic16ih7oc16kh5ph2", "aarch64+bf16"), ("--stag=aBx8b --dtag=aBx8b mb1ic16ih7oc16kh1", "aarch64"),
]  # fmt: skip
"""Problems, and levels that the host may lack: no verdict on them names a level of the host."""


def total(problem: Problem, target: str, config: Config | None = None) -> float:
    """The modelled cycles of a config, by default of the default one."""
    with interning():
        level = TARGETS[target]
        return sum(expected_terms(problem, config or choose(problem, level, 1, False), level).values())


def judged(line: str, target: str, config: Config | None = None) -> tuple[Problem, KernelVerdict]:
    problem = parse_problem(line).canonical()
    with interning():
        found = verdict(problem, config or choose(problem, TARGETS[target], 1, False), TARGETS[target])
    assert found is not None
    return problem, found


@pytest.mark.sampled(2, "target")
@pytest.mark.parametrize(("line", "target"), KERNELS)
def test_the_bound_is_the_largest_term(line: str, target: str) -> None:
    problem, found = judged(line, target)
    with interning():
        terms = expected_terms(problem, choose(problem, TARGETS[target], 1, False), TARGETS[target])
    name, cycles = max(terms.items(), key=lambda term: term[1])
    assert found.share == f"{cycles / sum(terms.values()):.0%} of the modelled time"
    assert found.bound.split()[-1] in name.split()[-1] or name in found.bound or found.bound.startswith("the ")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("line", "target"), KERNELS)
def test_what_to_do_gains_what_it_says(line: str, target: str) -> None:
    """The alternative is made by hand from the words of the verdict, and the model gives it that gain."""
    problem, found = judged(line, target)
    before = total(problem, target)
    options = dict(re.findall(r"--(\w+)=(\w+)", found.action))
    channels = re.search(r"(\w+)=(\d+) leaves lanes .* each of (\d+) channels", found.action)
    if not found.gain:
        work = {"multiply-adds", "products"}
        with interning():
            terms = expected_terms(problem, choose(problem, TARGETS[target], 1, False), TARGETS[target])
        rest = 1 - sum(cycles for name, cycles in terms.items() if name in work) / sum(terms.values())
        assert f"saves at most {rest:.0%}" in found.action
        for option, value in options.items():
            fields = {"layout": {"stag": value, "dtag": value}, "dt": {"dt": (value,) * 3}}[option]
            other = replace(problem, **fields).canonical()  # type: ignore[arg-type]
            least = 0.1 if option == "dt" else MIN_GAIN
            assert total(other, target) > before * (1 - least)
        return
    if channels:
        name, _, full = channels.groups()
        other = replace(problem, **{name: int(full)}).canonical()  # type: ignore[arg-type]
        work = other.flops_dense / problem.flops_dense
        assert found.gain == pytest.approx(1 - total(other, target) / before / work)
    else:
        fields = {"layout": ("stag", "dtag"), "dt": ("dt",), "accuracy": ("accuracy",)}
        ((option, value),) = options.items()
        changes = {field: (value,) * 3 if option == "dt" else value for field in fields[option]}
        other = replace(problem, **changes).canonical()  # type: ignore[arg-type]
        assert found.gain == pytest.approx(1 - total(other, target) / before)
    assert f"{found.gain:.0%} less by the model" in found.action and found.gain >= MIN_GAIN


def test_the_kernels_have_verdicts_of_every_kind() -> None:
    actions = " ".join(judged(line, target)[1].action for line, target in KERNELS)
    for text in ("--accuracy=relaxed takes", ") takes", "no gain by the model from", "suffices, takes", "leaves lanes"):
        assert text in actions, actions


def test_a_config_that_is_slower_than_the_default_is_said() -> None:
    config = Config.parse("--target=aarch64 --lane=oc --register=ow:1,oc:4")
    problem, found = judged(f"{LAST} mb1ic64ih14oc64oh14kh1", "aarch64", config)
    gain = 1 - total(problem, "aarch64") / total(problem, "aarch64", config)
    assert found.action == f"--config left out takes {gain:.0%} less by the model" and gain > 0.3


def test_a_chain_is_judged_by_the_terms_of_its_stages() -> None:
    _, found = judged("mb1ic64ih14oc64kh1 -> mb1ic64ih14oc64kh3ph1", "aarch64")
    assert re.fullmatch(r".* of stage [01]", found.bound) and "at most" in found.action


DYNAMIC = (
    f"{LAST} mb1ic64ih14oc64oh14kh3ph1", f"--dir=BWD_W {LAST} mb1ic8ih6oc16kh3ph1", "g16mb1ic16ih6oc16kh3ph1",
    "--dt=s8:s8:s32 mb1ic16ih6oc16kh1", "--matmul 64x48:48x40", "mb1ic8ih6oc16kh1 -> mb1ic16ih6oc8kh1",
)  # fmt: skip
"""Problems whose sizes a kernel takes from the call."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line", DYNAMIC)
def test_a_kernel_of_sizes_of_the_call_is_judged_at_those_of_the_line(line: str) -> None:
    """Its gain is that of a kernel of these sizes alone, where no other option gains more."""
    problem, level = parse_problem(line).canonical(), TARGETS["aarch64"]
    with interning():
        config, fixed = (choose(problem, level, 1, dynamic) for dynamic in (True, False))
        found = verdict(problem, config, level, dynamic=True)
        slow, fast = (sum(_terms(problem, c, level).values()) for c in (config, fixed))
    assert found is not None and slow > 0
    gain = 1 - fast / slow
    if gain < MIN_GAIN:
        assert not found.action.startswith("fixed sizes")
        return
    assert found.gain >= gain
    if found.action.startswith("fixed sizes"):
        assert found.action == f"fixed sizes (no dynamic=) take {gain:.0%} less by the model"
        assert found.gain == pytest.approx(gain)


def test_fixed_sizes_gain_and_do_not() -> None:
    with interning():
        every = (*DYNAMIC, f"{LAST} mb1ic32ih64oc48oh64kh1")
        level, problems = TARGETS["aarch64"], [parse_problem(line).canonical() for line in every]
        found = [verdict(p, choose(p, level, 1, True), level, dynamic=True) for p in problems]
    assert {str(v).split(": ")[1].split(" (")[0] for v in found} >= {"fixed sizes"}
    assert any("no gain by the model from fixed sizes" in str(v) for v in found)


def test_stages_with_fused_loops_have_a_gain() -> None:
    """A convolution with a depthwise one behind it is judged by the terms of both."""
    line = "--attr-post-ops=dw:k3s1p1 mb1ic4ih6oc8kh1"
    problem, found = judged(line, "aarch64")
    assert re.fullmatch(r".* of stage [01]", found.bound) and re.search(r"\d% (less|$)|at most", found.action)
    assert "%" in found.action and problem.post_ops


@pytest.mark.parametrize(("level", "is_bound"), [("L1", False), ("L2", False), ("L3", True), ("DRAM", True)])
def test_bytes_from_beyond_the_core_are_the_bound(level: str, is_bound: bool) -> None:
    problem = parse_problem("--matmul 512x2:2x512")
    slow, fast = (Figure(rate, "2026-01-01", True) for rate in (1.0, 100.0))
    roof = Roofline(problem.flops_real, bytes_of_arrays(problem), level, slow, ("f32", "f32", "f32"), fast)
    with interning():
        found = verdict(problem, choose(problem, TARGETS["aarch64"], 1, False), TARGETS["aarch64"], roof)
    assert found is not None and (found.bound == f"the bytes from {level}") == is_bound
    if is_bound:
        assert "a chain with its neighbours" in found.action and found.gain == 512 * 512 * 4 / roof.nbytes


def test_the_first_line_of_every_page_is_the_verdict() -> None:
    pages = [
        cs.compile("mb1ic8ih6oc16kh3ph1", threads=1), cs.compile("mb0ic8ih6oc16kh3ph1", threads=1),
        cs.compile("mb1ic8ih6oc16kh3ph1", threads=1, dynamic="ih,iw"),
        cs.compile("mb1ic8ih6oc16kh1 -> mb1ic16ih6oc8kh1", threads=1),
        cs.compile("--attr-post-ops=dw:k3s1p1 mb1ic4ih6oc8kh1", threads=1),
    ]  # fmt: skip
    first = [kernel.explain().splitlines()[0] for kernel in pages]
    assert all(line.startswith("verdict       ") and len(line) < 200 for line in first), first
    assert "less" in first[0] or "at most" in first[0]
    assert "nothing bounds it" in first[1] and "at the sizes of the line, bound by" in first[2]
    assert all("less by the model" in line or "at most" in line for line in first[2:]), first


@pytest.mark.sampled(5)
@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "xe_hpc", "opencl", "aarch64"])
def test_commands_print_the_verdict_first(target: str) -> None:
    words = ["explain", "--dt=f16 mb2ic32ih14oc64kh3ph1", "--target", target, "--threads", "1"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0 and re.match(r"verdict       (bound by|the bound)", result.output), result.output
