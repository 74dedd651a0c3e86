"""Gathers: loads whose lanes are neither neighbours nor all the same, and what several of them read together.

Gathers that differ by a constant, such as those of neighbouring channels, are served by one load of all that they
read and a shuffle for each.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index
from convsmith.ir.stmt import Invoke, Stmt, Store
from convsmith.ir.value import Load, lanes_of
from convsmith.ir.walk import walk

Gathered = tuple[Buffer, Index]
Extent = tuple[int, int]
Spans = dict[tuple[Gathered, Extent], Extent]


def is_gather(v: Load) -> bool:
    """Whether a load is one."""
    return v.lanes is not None and v.buffer.scope != "register" and v.lanes.stride not in (0, 1)


def gathered_from(v: Load) -> Gathered:
    """What gathers have in common that differ by a constant."""
    return v.buffer, v.index[0] - v.index[0].const


def extent_of(v: Load) -> Extent:
    """First and last element of a gather, counted from what `gathered_from` names."""
    assert v.lanes is not None
    start, offsets = v.index[0].const, v.lanes.offsets[: v.lanes.active]
    return start + min(offsets), start + max(offsets)


def spans_of(stmts: Sequence[Stmt]) -> Spans:
    """For each gather in statements that all run: what it and its neighbours read, where a vector can hold that."""
    found: dict[Gathered, dict[Extent, int]] = {}
    for s in stmts:
        values = s.args if isinstance(s, Invoke) else (s.value,) if isinstance(s, Store) else ()
        for value in values:
            for v in (value,) if isinstance(value, Load) else walk(value):
                if isinstance(v, Load) and is_gather(v):
                    found.setdefault(gathered_from(v), {})[extent_of(v)] = lanes_of(v)
    spans: Spans = {}
    for key, extents in found.items():
        near: list[Extent] = []
        for one in (*sorted(extents), (sys.maxsize, sys.maxsize)):
            if near and max(one[1], *(e[1] for e in near)) - near[0][0] >= extents[near[0]]:
                spans.update({(key, e): (near[0][0], max(x[1] for x in near)) for e in near})
                near = []
            near.append(one)
    return spans
