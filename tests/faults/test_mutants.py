"""The mutants: every operator makes each change of its table, in code alone, and the tests of every file are known."""

from __future__ import annotations

import ast
import os

import pytest
from mutants import (
    FOLDERS,
    NUMBER,
    RATE,
    Outcome,
    drawn,
    equivalent,
    files_of_tests,
    mutants_of,
    outcome,
    outcomes,
    reach_of,
    summary,
)
from mutations import CALLED, COMPARED, COMPUTED, OPERATORS, sites
from planted import HERE, PACKAGE, ROOT
from reach import FileReach, in_order, with_probes

EXAMPLES = {
    "comparison": ("a = b < c <= d", {"(b <= c <= d)", "(b >= c <= d)", "(b < c < d)", "(b < c > d)"}),
    "arithmetic": ("a = -b * 2", {"(-b + 2)", "(-b // 2)", "(b)"}),
    "boolean": ("a = b and not c", {"(b or not c)", "(c)"}),
    "condition": (
        "if a:\n    b = [x if c else d for x in y if x if z]\n",
        {"True", "False", "(x if True else d)", "(x if False else d)"}
        | {"([x if c else d for x in y if z])", "([x if c else d for x in y if x])"},
    ),
    "constant": ("a = f(2, x=True)", {"(3)", "(1)", "(False)"}),
    "function": ("a = min(b, key=c) + any(d)", {"(max(b, key=c))", "(all(d))"}),
    "arguments": ("a = f(b, c, *d)", {"(f(c, b, *d))"}),
    "statement": (
        "for a in b:\n    f(a)\n    c[a] = a\n    d += a\n    if a:\n        break\n    raise E", {"pass", "continue"},
    ),
}  # fmt: skip

TEXT = '''
"""If 1 < 2: a and b."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from a import b


@cached(256)
def f(a: Literal[1], b: tuple[int, 2] | None) -> Literal[3]:
    """Return a + b * 3."""
    c: Literal[4]
    warn("a" * 5, stacklevel=6)
    "a text" + f"{a + 7:{8}}"
    raise E(f"of {a - 1} < {b}", 9)


__all__ += ["f"]


def _shown(a: int) -> str:
    return _rest(a + 1) if a < 2 else "none"


def _rest(a: int) -> str:
    return str(a * 7)


def _both(a: int) -> int:
    raise E(_shown(a) + str(_both(a)))


class C:
    def __repr__(self) -> str:
        return self.a + self.b[10]

    def twice(self) -> int:
        return _both(self)
'''


def test_every_operator_makes_its_changes() -> None:
    assert EXAMPLES.keys() == OPERATORS.keys()
    for name, (text, changes) in EXAMPLES.items():
        found = [site for site in sites(text) if site.operator == name]
        assert {site.new for site in found} == changes, name
        for site in found:
            ast.parse(text[: site.start] + site.new + text[site.end :])


def test_every_comparison_and_operation_has_others() -> None:
    assert COMPARED.keys() == set(ast.cmpop.__subclasses__())
    assert COMPUTED.keys() == set(ast.operator.__subclasses__()) - {ast.MatMult}
    for table in (COMPARED, COMPUTED, {name: (other,) for name, other in CALLED.items()}):
        assert all(others and kind not in others for kind, others in table.items())  # type: ignore[attr-defined]


def test_text_that_computes_nothing_has_no_mutants() -> None:
    assert {(site.old, site.new) for site in sites(TEXT)} == {
        ('raise E(f"of {a - 1} < {b}", 9)', "pass"), ("raise E(_shown(a) + str(_both(a)))", "pass")
    }  # fmt: skip


def test_places_count_letters_before_them() -> None:
    text = 'a = "äöü×"; b = c < d'
    assert {text[site.start : site.end] for site in sites(text)} == {"c < d"}


def test_a_mutant_changes_its_line_alone_and_is_legal() -> None:
    for file in ("arith/ranges.py", "passes/restrict.py", "schedule/registers.py"):
        text = (PACKAGE / file).read_text()
        found = mutants_of(file)
        assert len(found) > 50
        for mutant in found[:: len(found) // 25]:
            changed = mutant.planted()
            ast.parse(changed)
            assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text)), mutant
            assert changed.startswith("".join(text.splitlines(keepends=True)[: mutant.site.line - 1]))


def test_a_seed_draws_the_same_mutants() -> None:
    some = ["layout", "interp"]
    first, again, other = drawn(3, some), drawn(3, some), drawn(4, some)
    assert first == again != other and set(first) == set(other)
    assert {mutant.file.partition("/")[0] for mutant in first} == set(some)
    assert not {mutant.key for mutant in first} & equivalent().keys()


def test_every_equivalent_mutant_can_be_planted() -> None:
    for row, why in equivalent().items():
        keys = {mutant.key for mutant in mutants_of(row[0])}
        assert row in keys, f"{row} is no mutant of {row[0]}: has the line changed?"
        assert why.endswith("."), row


@pytest.mark.parametrize("package", FOLDERS)
def test_every_file_has_tests(package: str) -> None:
    folders = {f"tests/{folder}" for folder in FOLDERS[package]}
    assert all((ROOT / folder).is_dir() for folder in folders)
    for path in (PACKAGE / package).rglob("*.py"):
        files = files_of_tests(str(path.relative_to(PACKAGE)))
        assert folders <= {file.rpartition("/")[0] for file in files} and len(files) == len(set(files))
        assert not any(file.startswith(f"tests/{HERE.name}/") for file in files)


def test_tests_that_import_the_module_come_first() -> None:
    files = files_of_tests("passes/restrict.py")
    assert files[0] == "tests/passes/test_restrict.py" and "tests/passes/test_bind.py" not in files[:3]


@pytest.mark.parametrize("file", ["ir/value.py", "arith/rules.py", "passes/unify.py", "codegen/values.py"])
def test_probes_stand_around_every_place(file: str) -> None:
    """What a place computes stays the same, and so do its lines."""
    text = (PACKAGE / file).read_text()
    places = {mutant.span: n for n, mutant in enumerate(mutants_of(file))}
    changed = with_probes(text, places)
    compile(changed, file, "exec")
    assert all(f".at({n})" in changed for n in places.values()) and changed.count("\n") == text.count("\n")


def test_probes_of_expressions_and_statements_within_each_other() -> None:
    text = "a = []\nfor b in (4, 5):\n    a.append(any(c for c in (b, 0)) + 1); a[0] += 2"
    places = {site: n for n, site in enumerate(sorted({(x.start, x.end) for x in sites(text)}))}
    reached: list[int] = []
    names = {"__builtins__": {"any": any, "__import__": lambda _: type("_", (), {"at": reached.append})}}
    exec(with_probes(text, places), names)
    assert names["a"] == [6, 2] and set(reached) == set(places.values())


def test_tests_that_reach_a_place_come_first() -> None:
    """The fastest of each function before its other cases, then the rest of their files; no other file."""
    seconds = {"a::x[1]": 2.0, "a::x[2]": 1.0, "a::y": 3.0, "a::z": 0.1}
    one = FileReach({7: frozenset({"a::x[1]", "a::x[2]", "a::y"})}, seconds)
    files = [FileReach({8: frozenset()}, {"b::x": 1.0}), one]
    assert in_order(files, 7) == (["a::x[2]", "a::y", "a::x[1]", "a::z"], 6.1)
    assert in_order(files, 9) == ([], 0)


@pytest.mark.wide
def test_outcomes_of_mutants() -> None:
    """One that the tests of its name catch, one that they let live, and one that no test reaches."""
    caught, lives = (
        next(m for m in mutants_of("ir/value.py") if (m.site.function, m.site.old, m.site.new) == key)
        for key in (("Lanes.is_whole", "not self.first", "(self.first)"), ("_rows", "0", "(1)"))
    )
    reach = reach_of([caught, lives], 1, lambda _: ["tests/ir/test_lanes.py"])
    tests, seconds = reach[caught]
    assert tests[0] == "tests/ir/test_lanes.py::test_lanes_that_are_accessed"
    assert outcome(caught, tests, seconds) == Outcome(caught, tests[0])
    assert outcome(lives, *reach[lives]) == outcome(lives, [], 0) == Outcome(lives)


@pytest.mark.slow
def test_of_fresh_mutants_few_survive() -> None:
    seed = int.from_bytes(os.urandom(2))
    found = outcomes(drawn(seed)[:NUMBER], os.cpu_count() or 1)
    survivors = [str(x.mutant) for x in found if not x.test]
    assert len(survivors) <= (1 - RATE) * NUMBER, "\n".join([f"seed {seed}", summary(found), *survivors])
