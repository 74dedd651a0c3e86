"""Gathers: loads whose lanes are neither contiguous nor equal, and the contiguous range that several of them share.

Gathers that differ by a constant, such as those of adjacent channels or taps, share the one or two loads of their
range, and take one shuffle each.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index
from convsmith.ir.stmt import Invoke, Stmt, Store
from convsmith.ir.value import Load
from convsmith.ir.walk import loads_of

Gathered = tuple[Buffer, Index]
Extent = tuple[int, int]
Spans = dict[tuple[Gathered, Extent], Extent]


def is_gather(v: Load) -> bool:
    """Return whether a load is a gather with at least one active lane."""
    lanes = v.lanes
    return lanes is not None and v.buffer.scope != "register" and lanes.stride not in (0, 1) and bool(lanes.touched)


def gathers_of(stmts: Sequence[Stmt]) -> list[Load]:
    """Return the gathers that statements read, each once, in order."""
    loads: dict[Load, None] = {}
    for s in stmts:
        for value in s.args if isinstance(s, Invoke) else (s.value,) if isinstance(s, Store) else ():
            if type(value) is Load:
                loads[value] = None
            else:
                loads |= dict.fromkeys(loads_of(value))
    return [v for v in loads if is_gather(v)]


def gathered_from(v: Load) -> Gathered:
    """Return a key that is equal for gathers that differ only by a constant."""
    return v.buffer, v.index[0] - v.index[0].const


def extent_of(v: Load) -> Extent:
    """Return the first and last element of a gather, relative to `gathered_from`."""
    assert v.lanes is not None
    start, offsets = v.index[0].const, v.lanes.touched
    return start + min(offsets), start + max(offsets)


def room_of(v: Load) -> int:
    """Return the elements of the longest range that covers a gather: one vector, or two if its lanes need two.

    The last element of two vectors is read by inactive lanes.
    """
    assert v.lanes is not None
    lo, hi = extent_of(v)
    return v.lanes.count if hi - lo < v.lanes.count else 2 * v.lanes.count - (not v.lanes.is_whole)


def spans_of(stmts: Sequence[Stmt]) -> Spans:
    """Return, for each gather in statements that all run, the range that it shares with its neighbours, provided that
    the vectors of each gather cover the range.
    """
    found: dict[Gathered, dict[Extent, int]] = {}
    for v in gathers_of(stmts):
        extents = found.setdefault(gathered_from(v), {})
        extents[extent_of(v)] = min(room_of(v), extents.get(extent_of(v), sys.maxsize))
    spans: Spans = {}
    for key, extents in found.items():
        overlapping: list[Extent] = []
        for one in (*sorted(extents), (sys.maxsize, sys.maxsize)):
            room = min(extents[e] for e in (*overlapping, one) if e in extents)
            if overlapping and max(one[1], *(e[1] for e in overlapping)) - overlapping[0][0] >= room:
                spans.update({(key, e): (overlapping[0][0], max(x[1] for x in overlapping)) for e in overlapping})
                overlapping = []
            overlapping.append(one)
    return spans
