"""Laws of the simplifier: equal within the ranges, idempotent, the same object where nothing is found, smaller else.

The order in which every rule makes a node smaller: fewer divisions, modulos, minima and maxima; then fewer modulos
inside of divisions; then fewer terms below all of these; then fewer terms of a condition. A condition may become
several, each smaller than it was.
"""

from __future__ import annotations

from typing import Any

import pytest
from draws import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from convsmith.arith.evaluate import evaluate, holds
from convsmith.arith.ranges import interval, try_interval
from convsmith.arith.rules import BY_ROOT, RULES
from convsmith.arith.simplify import simplify
from convsmith.ir.index import (
    Cond,
    Eq0,
    FloorDiv,
    Ge0,
    Index,
    Max,
    Min,
    Mod,
    Var,
    as_index,
    conj,
    eq,
    floordiv,
    maximum,
    minimum,
    mod,
    parts_of,
)
from convsmith.ir.intern import interning
from convsmith.ir.walk import walk

VARS = tuple(Var(n) for n in ("i", "j", "k", "n"))
Ranges = dict[Var, tuple[int, int]]


@st.composite
def ranges_of_all(draw: st.DrawFn) -> Ranges:
    """Ranges of the variables; one may be without."""
    out = {}
    for v in VARS[: draw(st.integers(2, len(VARS)))]:
        lo = draw(st.integers(-9, 9))
        out[v] = (lo, lo + draw(st.sampled_from((0, 1, 2, 3, 5, 11))))
    return out


def _grow(inner: st.SearchStrategy[Index]) -> st.SearchStrategy[Index]:
    small = st.sampled_from((2, 3, 4, 6, 8, 12))
    return st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a - b, inner, inner),
        st.builds(lambda a, c: a * c, inner, st.sampled_from((-4, -2, -1, 2, 3, 4, 6))),
        st.builds(floordiv, inner, small),
        st.builds(mod, inner, small),
        st.builds(minimum, inner, inner),
        st.builds(maximum, inner, inner),
    )


leaves = st.one_of(st.sampled_from(VARS), st.integers(-12, 12).map(as_index))
indices = st.recursive(leaves, _grow, max_leaves=10)
single_conditions = st.one_of(
    st.builds(lambda a, b: a >= b, indices, indices), st.builds(lambda a, c: eq(a, c), indices, st.integers(-6, 6))
)
conditions = st.lists(single_conditions, min_size=1, max_size=2).map(conj)


def points(ranges: Ranges, draw: Any) -> dict[Var, int]:
    return {v: draw(st.integers(*ranges.get(v, (-50, 50)))) for v in VARS}


@examples(200)
@given(indices, ranges_of_all(), st.data())
def test_an_index_keeps_its_value(e: Index, ranges: Ranges, data: Any) -> None:
    found = simplify(e, ranges)
    for _ in range(4):
        at = points(ranges, data.draw)
        assert evaluate(found, at) == evaluate(e, at)


@examples(200)
@given(conditions, ranges_of_all(), st.data())
def test_a_condition_keeps_its_value(c: Cond, ranges: Ranges, data: Any) -> None:
    found = simplify(c, ranges)
    for _ in range(4):
        at = points(ranges, data.draw)
        assert holds(found, at) == holds(c, at)


@examples(250)
@given(st.one_of(indices, conditions), ranges_of_all())
def test_once_is_enough(e: Any, ranges: Ranges) -> None:
    once = simplify(e, ranges)
    assert simplify(once, ranges) is once


def test_what_the_parts_become_is_simplified_too() -> None:
    """The modulo becomes a sum, whose division meets the rules again."""
    i = VARS[0]
    assert simplify(floordiv(mod(i, 2), 2), {i: (2, 3)}) is as_index(0)


@examples(100)
@given(indices)
def test_no_ranges_no_harm(e: Index) -> None:
    """Without ranges only what holds for all integers is done."""
    found = simplify(e)
    for x in (-37, -1, 0, 5, 100):
        at = {v: x + n for n, v in enumerate(VARS)}
        assert evaluate(found, at) == evaluate(e, at)


@examples(200)
@given(indices, ranges_of_all(), st.data())
def test_intervals_are_sound(e: Index, ranges: Ranges, data: Any) -> None:
    r = try_interval(e, ranges)
    assume(r is not None)
    at = points(ranges, data.draw)
    assert r[0] <= evaluate(e, at) <= r[1]


@given(ranges_of_all(), st.lists(st.integers(-5, 5), min_size=2, max_size=2), st.integers(-9, 9))
def test_intervals_of_sums_are_exact(ranges: Ranges, factors: list[int], const: int) -> None:
    (i, j), (a, b) = VARS[:2], factors
    values = [a * x + b * y + const for x in ranges[i] for y in ranges[j]]
    assert interval(i * a + j * b + const, ranges) == (min(values), max(values))


# -- termination
Size = tuple[int, int, int, int]


def size(e: Any) -> Size:
    """Divisions and the like; modulos inside of divisions; terms and arguments below those; terms of a condition."""
    nodes = [n for n in _tree(e) if isinstance(n, (FloorDiv, Mod, Min, Max))]
    inside = sum(isinstance(x, Mod) for n in nodes if isinstance(n, FloorDiv) for x in _tree(n.num))
    below = 0
    for n in nodes:
        arguments = n.args if isinstance(n, (Min, Max)) else (n.num,)
        below += sum(1 + len(a.terms) for a in arguments)
    return len(nodes), inside, below, len(e.arg.terms) if isinstance(e, (Ge0, Eq0)) else 0


def _tree(e: Any) -> list[Any]:
    return list(walk(e))


def applications(e: Any, ranges: Ranges) -> list[tuple[str, Any, Any]]:
    """(rule, node, what it becomes) for every node below to which some rule applies."""
    out = []
    for node in _tree(e):
        for rule in BY_ROOT.get(type(node), ()):
            found = rule.apply(node, ranges)
            if found is not None:
                out.append((rule.name, node, found))
    return out


@examples(500)
@given(st.one_of(indices, conditions), ranges_of_all())
def test_every_rule_makes_its_node_smaller(e: Any, ranges: Ranges) -> None:
    for name, node, found in applications(e, ranges):
        before = size(node)
        for part in parts_of(found) if isinstance(found, Cond) else (found,):
            after = size(part)
            # `always` and `never` need no smaller index: they leave none.
            smaller = after < before or (not isinstance(part, Index) and not _tree(part)[1:])
            assert smaller, f"{name}: {node} {before} becomes {found} {after}"


i, j, k, n = VARS
EXAMPLES = {
    "div-in-range": (floordiv(i + j * 8, 8), {i: (0, 7)}, "j"),
    "mod-in-range": (mod(i + j * 8, 8), {i: (0, 7)}, "i"),
    "div-small-rest": (floordiv(j * 4 + i, 8), {i: (0, 3)}, "j // 2"),
    "mod-small-rest": (mod(j * 4 + i, 8), {i: (0, 3)}, "i + j % 2 * 4"),
    "div-of-mod": (floordiv(mod(i, 12), 4), {}, "(i // 4) % 3"),
    "min-drop": (minimum(i, j, i + k), {k: (0, 3)}, "min(i, j)"),
    "max-drop": (maximum(i, j, i - k), {k: (0, 3)}, "max(i, j)"),
    "always": (i + j >= 0, {i: (2, 5), j: (-2, 3)}, "true"),
    "never": (i + j < 0, {i: (2, 5), j: (-2, 3)}, "false"),
    "min-at-least": (minimum(i, j) >= k, {}, "i - k >= 0 and j - k >= 0"),
    "max-at-most": (maximum(i, j) <= k, {}, "-i + k >= 0 and -j + k >= 0"),
    "div-at-least": (floordiv(i, 4) >= 3 - j, {}, "i + j * 4 - 12 >= 0"),
    "div-at-most": (floordiv(i, 4) < j, {}, "-i + j * 4 - 1 >= 0"),
    "no-remainder": (eq(mod(i, 4) * 2 + j, 0), {i: (0, 9), j: (0, 1)}, "i % 4 == 0 and j == 0"),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_every_rule_has_a_case(rule: Any) -> None:
    e, ranges, text = EXAMPLES[rule.name]
    assert rule.name in [name for name, *_ in applications(e, ranges)]
    assert str(simplify(e, ranges)) == text


def test_an_unchanged_expression_is_the_same_object() -> None:
    for e in (i + j * 2, floordiv(i + 1, 3), mod(i + j, 7), minimum(i, j), i - j >= 0, eq(i, 3)):
        assert simplify(e, {i: (0, 100), j: (0, 100)}) is e


def test_a_result_is_kept_for_its_ranges_only() -> None:
    x, y = Var("x"), Var("y")
    e = (x + 4) // 4
    with interning():
        for lo, expected in ((0, 1), (4, 2), (0, 1)):
            assert int(simplify((Var("x") + 4) // 4, {Var("x"): (lo, lo + 3), Var("y"): (lo, lo)})) == expected
    assert simplify(e, {y: (0, 3)}) is e and int(simplify(e, {x: (0, 3)})) == 1


def test_the_example_of_the_documentation() -> None:
    a, b = Var("a"), Var("b")
    assert str(2 * (a + b) - a) == "a + b * 2"
