"""Distances between accesses are those that an enumeration of all iterations finds, or are reported as possible."""

from __future__ import annotations

from itertools import product

import pytest
from draws import examples
from hypothesis import given
from hypothesis import strategies as st

from convsmith.arith.dependence import INFINITE, Access, Distances, LoopBounds, Unsettled, is_injective
from convsmith.arith.evaluate import evaluate, holds
from convsmith.arith.ranges import interval
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Cond, Index, Var, as_index, floordiv, ge0, minimum, mod
from convsmith.ir.index import product as times
from convsmith.ir.types import F32
from convsmith.layout.block import LayoutBlock

II, JJ, OO, KK, LL = map(Var, "ijokl")
OUTER = {OO: (0, 2)}
SIZE = 64

coefficients = st.integers(-3, 3)


@st.composite
def indices(draw: st.DrawFn, variables: tuple[Var, ...]) -> Index:
    total = as_index(draw(st.integers(-4, 4)))
    for v in variables:
        total = total + v * draw(coefficients)
    form = draw(st.integers(0, 5))
    den = draw(st.integers(2, 4))
    return total + (floordiv(total, den) if form == 4 else mod(total, den) if form == 5 else as_index(0))


def bounds(v: Var, lo: Index, hi: Index, ranges: dict[Var, tuple[int, int]]) -> LoopBounds:
    return LoopBounds(v, lo, hi, (interval(lo, ranges)[0], interval(hi, ranges)[1] - 1))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Access, Access]:
    i = bounds(II, as_index(draw(st.integers(-1, 1))), as_index(draw(st.integers(0, 4))), {})
    ends = [as_index(3), minimum(3, II + 2), minimum(4, 4 - II * 2), II + 1]
    j = bounds(JJ, as_index(0), draw(st.sampled_from(ends)), {**OUTER, II: i.range})
    own = [bounds(v, as_index(0), as_index(draw(st.integers(1, 3))), {}) for v in (KK, LL)]
    dims = draw(st.integers(1, 2))
    accesses = []
    for n in range(2):
        inner = draw(st.sampled_from([(), (own[n],)]))
        variables = (II, JJ, OO, *(x.var for x in inner))
        index = tuple(draw(indices(variables)) for _ in range(dims))
        conds: tuple[Cond, ...] = (ge0(draw(indices(variables))),) if draw(st.integers(0, 3)) == 0 else ()
        lanes = (0, draw(st.sampled_from([0, 0, 0, 3])))
        accesses.append((index, (i, j, *inner), conds, lanes))
    buffer = make_buffer("b", F32, (SIZE,) * dims)
    a, b = (Access(buffer, index, True, loops, conds, lanes) for index, loops, conds, lanes in accesses)
    return a, b


def iterations(access: Access, o: int) -> list[dict[Var, int]]:
    found: list[dict[Var, int]] = [{OO: o}]
    for x in access.loops:
        found = [{**v, x.var: n} for v in found for n in range(evaluate(x.lo, v), evaluate(x.hi, v))]
    return [v for v in found if all(holds(c, v) for c in access.conds)]


def places(access: Access, values: dict[Var, int]) -> set[tuple[int, ...]]:
    assert access.index is not None
    *front, last = (evaluate(e, values) for e in access.index)
    return {(*front, last + n) for n in range(access.lanes[0], access.lanes[1] + 1)}


def meetings(a: Access, b: Access) -> set[tuple[int, int]]:
    """Distances along i and j that occur, by trying everything."""
    found = set()
    for o in range(OUTER[OO][0], OUTER[OO][1] + 1):
        for first, second in product(iterations(a, o), iterations(b, o)):
            if places(a, first) & places(b, second):
                found.add((second[II] - first[II], second[JJ] - first[JJ]))
    return found


def sign(x: int) -> int:
    return (x > 0) - (x < 0)


@examples(100)
@given(pairs())
def test_every_distance_that_occurs_is_possible(pair: tuple[Access, Access]) -> None:
    distances = Distances(*pair, OUTER)
    found = meetings(*pair)
    for di, dj in found:
        for d, v in ((di, II), (dj, JJ)):
            lo, hi = distances.bounds(v)
            assert lo <= d <= hi
    occurring = {(sign(di), sign(dj)) for di, dj in found}
    for signs in product((-1, 0, 1), repeat=2):
        if signs in occurring:
            assert distances.may({II: signs[0], JJ: signs[1]})
            assert distances.may({II: signs[0]}) and distances.may({JJ: signs[1]})


@examples(100)
@given(pairs(), st.tuples(st.sampled_from((-1, 0, 1)), st.sampled_from((-1, 0, 1))))
def test_an_example_is_found_where_there_is_one(pair: tuple[Access, Access], signs: tuple[int, int]) -> None:
    wanted = {d for d in meetings(*pair) if (sign(d[0]), sign(d[1])) == signs}
    try:
        found = Distances(*pair, OUTER).example({II: signs[0], JJ: signs[1]})
    except Unsettled:
        return
    if found is None:
        assert not wanted
        return
    first, second = found
    assert (second[II] - first[II], second[JJ] - first[JJ]) in wanted
    assert places(pair[0], first) & places(pair[1], second)


def access(index: tuple[Index, ...], *loops: LoopBounds, buffer: Buffer | None = None) -> Access:
    return Access(buffer or make_buffer("b", F32, (SIZE,) * len(index)), index, True, loops)


def loop(v: Var, end: int | Index, lo: int = 0, most: int | None = None) -> LoopBounds:
    return LoopBounds(v, as_index(lo), as_index(end), (lo, (most if most is not None else int(as_index(end))) - 1))


def distance(index: tuple[Index, ...], *loops: LoopBounds) -> list[tuple[int, int]]:
    a = access(index, *loops)
    d = Distances(a, a, {})
    return [d.bounds(x.var) for x in loops]


def test_tiles_of_one_loop_are_apart() -> None:
    assert distance((II * 16 + JJ + KK * 64,), loop(KK, 5), loop(II, 4), loop(JJ, 16)) == [(0, 0)] * 3
    assert distance((II * 15 + JJ,), loop(II, 4), loop(JJ, 16)) == [(-1, 1), (-15, 15)]


@pytest.mark.parametrize(("step", "apart"), [(16, True), (15, False), (17, True), (1, False)])
def test_digits_of_a_mixed_radix_do_not_overlap(step: int, apart: bool) -> None:
    a = access((II * step + JJ,), loop(II, 4), loop(JJ, 16))
    assert is_injective(a, a) == apart


def test_a_fused_loop_is_taken_apart_by_divisions() -> None:
    fused = II * 5 + JJ
    assert distance((fused // 7, fused % 7), loop(II, 4), loop(JJ, 5)) == [(0, 0), (0, 0)]
    assert distance((fused // 7,), loop(II, 4), loop(JJ, 5)) != [(0, 0), (0, 0)]


def test_tiles_that_are_cut_short_are_apart() -> None:
    short = minimum(16, 17 - II * 16)
    cut = loop(JJ, short, most=16)
    assert distance((II * 16 + JJ + KK * 17,), loop(KK, 3), loop(II, 2), cut) == [(0, 0)] * 3
    assert distance((II * 16 + JJ + KK * 16,), loop(KK, 3), loop(II, 2), cut) != [(0, 0)] * 3


def test_strides_that_are_sizes_keep_dims_apart() -> None:
    size, other = Var("s0"), Var("s1")
    endless = LoopBounds(KK, as_index(0), Var("n") + 0, (0, INFINITE))
    index = times(KK, size) + times(II, other) + JJ
    assert distance((index,), endless, loop(II, 5), loop(JJ, 7)) == [(0, 0)] * 3
    a = access((index - JJ,), endless, loop(II, 5))
    b = Access(a.buffer, (index - JJ + other,), True, a.loops)
    assert [Distances(a, b, {}).bounds(v) for v in (KK, II)] == [(0, 0), (-1, -1)]


def test_elements_that_lie_at_one_place_have_unknown_distances() -> None:
    folded = Buffer("b", F32, (4, 4), (LayoutBlock(0, 4, 0), LayoutBlock(1, 4, 1)))
    a = access((II + 0, JJ + 0), loop(II, 4), loop(JJ, 4), buffer=folded)
    assert Distances(a, a, {}).may({II: 1, JJ: 0})
    assert not Distances(*[access((II + 0, JJ + 0), loop(II, 4), loop(JJ, 4))] * 2, {}).may({II: 1, JJ: 0})


def test_memory_of_an_iteration_is_its_own() -> None:
    a = access((JJ + 0,), loop(II, 4), loop(JJ, 4))
    assert Distances(a, a, {}).may({II: 1})
    assert not Distances(a, a, {}, private=1).may({II: 1})


@pytest.mark.parametrize("form", [lambda v: v * 2, lambda v: v * 4 + 2])
def test_divisibility_keeps_accesses_apart(form) -> None:  # type: ignore[no-untyped-def]
    i, k = loop(II, 9), loop(KK, 9)
    a = access((form(II),), i, k)
    b = Access(a.buffer, (form(KK) + 1,), True, a.loops)
    assert not Distances(a, b, {}).is_possible
