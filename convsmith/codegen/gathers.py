"""Gathers: loads whose lanes are neither contiguous nor equal, and the contiguous range that several of them share.

Gathers that differ by a constant, such as those of adjacent channels, are served by one load of their range and one
shuffle each.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index
from convsmith.ir.stmt import Invoke, Stmt, Store
from convsmith.ir.value import Load, lanes_of
from convsmith.ir.walk import loads_of

Gathered = tuple[Buffer, Index]
Extent = tuple[int, int]
Spans = dict[tuple[Gathered, Extent], Extent]


def is_gather(v: Load) -> bool:
    """Return whether a load is a gather."""
    return v.lanes is not None and v.buffer.scope != "register" and v.lanes.stride not in (0, 1)


def gathered_from(v: Load) -> Gathered:
    """Return a key that is equal for gathers that differ only by a constant."""
    return v.buffer, v.index[0] - v.index[0].const


def extent_of(v: Load) -> Extent:
    """Return the first and last element of a gather, relative to `gathered_from`."""
    assert v.lanes is not None
    start, offsets = v.index[0].const, v.lanes.touched
    return start + min(offsets), start + max(offsets)


def spans_of(stmts: Sequence[Stmt]) -> Spans:
    """Return, for each gather in statements that all run, the range that it shares with its neighbours, if a vector
    holds it.
    """
    found: dict[Gathered, dict[Extent, int]] = {}
    for s in stmts:
        values = s.args if isinstance(s, Invoke) else (s.value,) if isinstance(s, Store) else ()
        for value in values:
            for v in loads_of(value):
                if is_gather(v):
                    found.setdefault(gathered_from(v), {})[extent_of(v)] = lanes_of(v)
    spans: Spans = {}
    for key, extents in found.items():
        overlapping: list[Extent] = []
        for one in (*sorted(extents), (sys.maxsize, sys.maxsize)):
            if overlapping and max(one[1], *(e[1] for e in overlapping)) - overlapping[0][0] >= extents[overlapping[0]]:
                spans.update({(key, e): (overlapping[0][0], max(x[1] for x in overlapping)) for e in overlapping})
                overlapping = []
            overlapping.append(one)
    return spans
