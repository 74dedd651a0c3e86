"""Results whose tiles are transposed in registers, because vectors of their channels would be scattered in memory."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.ir.index import Var
from convsmith.ir.instruction import Instruction
from convsmith.ir.value import MAX_SPREAD
from convsmith.machine.base import Machine
from convsmith.machine.transpositions import square_transposition
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.loops import Loop
from convsmith.statement.statement import Statement, view_steps

MIN_NEIGHBOURS = 4
"""Minimum number of contiguous elements for which a tile of a result is transposed instead of scattered."""


def transposes(st: Statement, lane: str, along: str, lanes: int, target: Machine) -> Instruction | None:
    """Return the row of ``target`` that transposes tiles of ``lanes`` along the dim ``lane``, whose vectors would be
    scattered, by elements along the dim ``along``, which are contiguous, or a few elements apart in a residue class;
    None if the result is not written through it.

    Gradients of the weights are written once for all pixels, so that their reads determine the lanes.
    """
    steps, apart = view_steps(st.c), st.residues.get(along, 1)
    if steps.get(Var(along)) != 1 or steps.get(Var(lane), 1) == 1 or not st.constant:
        return None
    if apart > (MAX_SPREAD if target.has_masked_stores else 1):
        return None
    return None if target.vectors.scalable else square_transposition(target.transpositions, st.c.dtype, lanes)


def transposed_along(k: KernelPlan, loops: Sequence[Loop]) -> tuple[Loop, Instruction] | None:
    """Return the first of the ``loops`` along which the result's elements are contiguous, with the row that transposes
    its tiles; None if the result is not transposed.
    """
    for x in loops:
        row = transposes(k.columns, k.nest.lane.dims[-1], x.dims[-1], k.nest.lanes, k.machine)
        if row is not None and x.extent >= MIN_NEIGHBOURS:
            return x, row
    return None
