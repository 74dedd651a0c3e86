"""Gathers share loads of what they read together as long as the vectors of each hold it, and not one element longer."""

from __future__ import annotations

from itertools import combinations

import pytest

from convsmith.codegen.gathers import extent_of, gathered_from, is_gather, spans_of
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Var, as_index
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Stmt, Store
from convsmith.ir.types import F32
from convsmith.ir.value import Lanes, Load, lanes_of, strided
from convsmith.ir.walk import walk


def loads(starts: tuple[int, ...], stride: int, lanes: int = 4, at: str = "p + ") -> list[Stmt]:
    """Statements that gather from each start."""
    text = "kernel k(a: f32[99], d: f32[99])\n  for p in 0 .. 9:\n"
    text += "".join(f"    d[{lanes * n}]{{{lanes}}} = a[{at}{s}]{{{lanes}:{stride}}}\n" for n, s in enumerate(starts))
    return [s for s in walk(parse_kernel(text).body) if isinstance(s, Store)]


def values(stmts: list[Stmt]) -> list[Load]:
    found = [x.value for x in stmts if isinstance(x, Store)]
    assert all(isinstance(v, Load) for v in found)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("lanes", [(0, 0, 1, 1), (1, 0, 1, 0), (0, 2, 1, 0), (0, 3), (0, 1, 3, 2), (0, 2)])
def test_two_gathers_share_what_fits_the_vectors_of_one(lanes: tuple[int, ...]) -> None:
    """A vector of 4 lanes holds elements that lie less than 4 apart; lanes that lie further apart need two."""
    room = len(lanes) if max(lanes) - min(lanes) < len(lanes) else 2 * len(lanes)
    a, d = (make_buffer(name, F32, (99,)) for name in "ad")
    for starts in combinations(range(9), 2):
        values = [Load(a, (Var("p") + start,), Lanes(lanes, len(lanes))) for start in starts]
        spans = spans_of([Store(d, (as_index(0),), v, strided(len(lanes), 1)) for v in values])
        low, high = starts[0] + min(lanes), starts[1] + max(lanes)
        for v in values:
            own = extent_of(v)
            assert spans[gathered_from(v), own] == ((low, high) if high - low < room else own), starts


def test_many_gathers() -> None:
    """From the first that is not covered on, as many as one vector holds."""
    for starts in combinations(range(12), 4):
        stmts = loads(starts, 2)
        spans = spans_of(stmts)
        for v in values(stmts):
            low, high = extent_of(v)
            first, last = spans[gathered_from(v), (low, high)]
            assert first <= low and high <= last
            assert last - first < max(2 * lanes_of(v), high - low + 1)


def test_an_element_of_two_vectors_stands_for_lanes_that_are_not_active() -> None:
    a, d = (make_buffer(name, F32, (99,)) for name in "ad")
    for active, limit in ((4, 8), (3, 7)):
        for apart in range(1, 5):
            values = [Load(a, (Var("p") + start,), strided(4, 2, active)) for start in (0, apart)]
            spans = spans_of([Store(d, (as_index(0),), v, strided(4, 1)) for v in values])
            both = apart + 2 * (active - 1)
            room = limit if 2 * (active - 1) >= 4 else 4
            shared = {(0, both)} if both < room else {extent_of(v) for v in values}
            assert set(spans.values()) == shared, (active, apart)


def test_what_is_no_gather_has_no_span() -> None:
    for stride in (0, 1):
        stmts = loads((3,), stride)
        assert not is_gather(values(stmts)[0]) and spans_of(stmts) == {}
    stmts = loads((3,), 2)
    assert is_gather(values(stmts)[0]) and len(spans_of(stmts)) == 1
    assert gathered_from(values(stmts)[0])[1] == Var("p")
