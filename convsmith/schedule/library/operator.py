"""The schedule of the nests of an operator of a network: vectors along adjacent elements of the result."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from convsmith.ir.index import Var
from convsmith.ir.walk import variables_of
from convsmith.schedule.custom import KernelSchedule
from convsmith.schedule.library.finish import finish
from convsmith.schedule.loops import Loop
from convsmith.statement.statement import Statement

VECTORS = 4
"""Vectors of sums of a tile, whose latencies overlap."""
PEELED = 3
"""Pieces of a loop whose first and last iterations read beyond an array."""
STRAIGHT = 32
"""Terms of a reduction that become straight-line code."""


def operator(s: KernelSchedule, vectors: bool = True) -> None:
    """Compute the result in the order of memory, by vectors of its adjacent elements if ``vectors`` is set; a reduction
    has a few of them at a time. Windows that reach beyond an array are computed apart. Threads share the outer loops.
    """
    lanes = []
    for st in s.statements:
        around, lane = _in_memory_order(s, st)
        terms = [s.loop(d.name) for d in st.of("k")]
        inner: tuple[Loop, ...] = ()
        s.reorder(*around, *([] if lane is None else [lane]))
        if lane is not None and vectors:
            tiles, tile = s.tile(lane, min(VECTORS, -(-lane.extent // s.lanes)) * s.lanes, "ot")
            inner = s.tile(tile, s.lanes, "vl")
            if terms:
                s.fission(*inner, room=((inner[1], s.lanes),))
                s.sink(*inner)
            lanes.append(inner[1])
            lane = tiles
        masked = [x for x in around if x.extent > 1]
        if masked:
            s.peel(*masked, pieces=PEELED)
            s.simplify(unit_loops=False)
        if around and around[0].extent > 1:
            s.parallel(around[0])
        s.unroll(*inner)
        if prod(x.extent for x in terms) <= STRAIGHT:
            s.unroll(*terms)
    finish(s, lanes)


def _in_memory_order(s: KernelSchedule, st: Statement) -> tuple[Sequence[Loop], Loop | None]:
    """Return the loops over the result in the order of its memory, outermost first, and the one over its adjacent
    elements apart from the others, if there is one.
    """
    loops = {d.name: s.loop(d.name) for d in st.of("m")}
    owners = [next(iter(variables_of(x)), None) for x in st.c.coords]
    order: list[Loop] = []
    for b in st.c.layout.blocks:
        v = owners[b.dim]
        if isinstance(v, Var) and v.name in loops and loops[v.name] not in order:
            order.append(loops[v.name])
    order = [*(x for x in loops.values() if x not in order), *order]
    contiguous = st.c.layout.contiguous
    last = None if contiguous is None else owners[contiguous.dim]
    lane = loops.get(last.name) if isinstance(last, Var) else None
    return [x for x in order if x is not lane], lane
