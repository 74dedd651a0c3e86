"""Padded copies in which channels that lie apart in memory become adjacent, by tiles that an instruction transposes."""

from __future__ import annotations

from convsmith.arith.ranges import Ranges, interval
from convsmith.ir.index import Index, Var
from convsmith.ir.instruction import Instruction
from convsmith.ir.types import dtype
from convsmith.machine.transpositions import is_joined, tile_shape
from convsmith.schedule.copies import copied_type
from convsmith.schedule.copy_nest import SHORT_COPY, CopyNest
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.schedule import Copy, Schedule
from convsmith.schedule.transposed_copies import Tiles, TransposedTiles, order_transposed

__all__ = ["turned_copy"]


def turned_copy(s: Schedule, k: KernelPlan, source: Copy, channels: int) -> TransposedTiles | None:
    """Order the loops of the padded copy of A by tiles of its dim ``channels`` and of pixels of a row, and return them;
    None if no instruction transposes them.
    """
    a = k.columns.a
    row = _instruction(k)
    plain = a.layout.is_plain and copied_type(k.columns, k.nest) == a.dtype and not a.flipped
    if row is None or not plain or k.columns.sizes:
        return None
    names = [x.name for x in source.loops]
    height, width, _ = tile_shape(row)
    ranges = {Var(n): (0, size - 1) for n, size in k.columns.extents.items()}
    found = {n: _span(x, ranges) for n, x in zip(names, a.coords)}
    found[names[0]] = 1
    if a.layout.strides[-1] != 1 or channels == len(names) - 1 or found[names[-1]] < width:
        return None
    if a.layout.size < SHORT_COPY:
        return None
    if found[names[channels]] != a.layout.shape[channels]:
        return None
    outer, lane = s.tile(source.loops[channels], height, "ol", ("copy", "copy"))
    apart = a.layout.strides[channels]
    extents = {n: found[n] for n in names if n != names[channels]}
    steps = {n: a.layout.strides[d] for d, n in enumerate(names) if d != channels}
    _, *rows = extents
    moved = CopyNest(
        {**extents, outer.name: -(-found[names[channels]] // height), lane.name: height},
        {**steps, outer.name: apart * height, lane.name: apart}, a.dtype, a.dtype, True,
        frozenset(rows), frozenset(), tuple(frozenset([n]) for n in rows),
    )  # fmt: skip
    tiles = Tiles((names[-1],), lane.name, ())
    return order_transposed(s, moved, tiles, row, k.machine, name=source.name, is_near=True)


def _span(coordinate: Index, ranges: Ranges) -> int:
    """Return the number of positions from the first to the last one that a coordinate takes."""
    low, high = interval(coordinate, ranges)
    return high - low + 1


def _instruction(k: KernelPlan) -> Instruction | None:
    """Return the row of the machine that transposes as many channels as pixels of A's type, if there is one."""
    type_, lanes = k.columns.a.dtype, k.machine.lanes(dtype(k.columns.acc).bits)
    for row in k.machine.transpositions:
        if row.result.dtype == type_ and not is_joined(row) and tile_shape(row) == (lanes, lanes, 1):
            return row
    return None
