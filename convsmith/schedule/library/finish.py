"""The end of a schedule: from loops in their final order to code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convsmith.ir.stmt import PointerLoad, Store
from convsmith.ir.value import Load
from convsmith.ir.walk import loops_of, statements_of, variables_of, walk
from convsmith.passes.contracts import LOOPS
from convsmith.passes.hoist_pointers import hoist_pointers
from convsmith.passes.simplify import simplify
from convsmith.passes.transpose_stores import transpose_stores
from convsmith.schedule.custom import KernelSchedule
from convsmith.schedule.loops import Loop
from convsmith.schedule.lower import flat_code, make_vectors, pick_transpositions, straight_code
from convsmith.schedule.schedule import PIECES


def finish(
    s: KernelSchedule, lanes: Sequence[Loop] = (), pieces: int = PIECES, transposed: Mapping[Loop, Loop] | None = None,
) -> None:  # fmt: skip
    """Lower the nest to code: flat offsets, vectors of the loops ``lanes``, the machine's instructions, and pointers.

    Loops over registers are unrolled. Loops around vectors are split into at most ``pieces`` pieces if their last tile
    is short. For a kernel that is already flat, these first steps are skipped. ``transposed`` maps loops of ``lanes``
    whose vectors are scattered in the result to the loops of its adjacent elements: tiles of both are transposed in
    registers.
    """
    has_pointers = bool(s.tables) or any(isinstance(x, PointerLoad) for x in statements_of(s.kernel.body))
    if s.reached in LOOPS:
        around = tuple(x for x in s.loops() if x.is_tiled)
        if lanes and around:
            s.peel(*around, pieces=pieces, exact=(*lanes, *(transposed or {}).values()))
        s.unroll(*_over_registers(s))
        unrolled = {x.var.name for x in loops_of(s.kernel.body) if x.kind == "unrolled"}
        s.guard(*(x for x in s.loops() if x.name in unrolled))
        if has_pointers:
            s.run(hoist_pointers)
        s.flatten()
    flat_code(s, s.machine)
    make_vectors(s, s.machine, lambda: _vectorise(s, lanes, transposed or {}))
    s.run(simplify, False)
    kinds = {x.kind for x in loops_of(s.kernel.body)}
    straight_code(
        s, s.machine, outlines=True, is_shared="parallel" in kinds, through_table=has_pointers,
        signals="pipelined" in kinds,
    )  # fmt: skip


def _vectorise(s: KernelSchedule, lanes: Sequence[Loop], transposed: Mapping[Loop, Loop]) -> None:
    for lane, along in transposed.items():
        s.run(transpose_stores, along, lane, (along.extent, lane.extent))
    for side in {lane.extent for lane in transposed}:
        pick_transpositions(s, side, s.machine)
    left = s.loops()
    for lane in lanes:
        if lane in left or lane not in transposed:
            s.vectorise(lane, strict=lane not in transposed)


def _over_registers(s: KernelSchedule) -> list[Loop]:
    """Return the loops that index registers, which have names instead of addresses."""
    indices = (i for x in walk(s.kernel.body) if isinstance(x, Load | Store) and x.buffer.in_registers for i in x.index)
    names = {str(v) for i in indices for v in variables_of(i)}
    return [x for x in s.loops() if x.name in names]
