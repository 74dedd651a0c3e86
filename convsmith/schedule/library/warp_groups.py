"""Products of warp groups with factors in shared memory, which a copy engine fills ahead of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from convsmith.schedule.grid import fuse_grid
from convsmith.schedule.loops import Loop
from convsmith.schedule.schedule import Copy, Schedule


class GroupTile(NamedTuple):
    """The loops of a nest whose tiles groups multiply.

    Loops of the ``grid`` step over tiles of the result, outermost first, loops of ``stepping`` over steps of the
    reduction. In a tile, ``warps`` has rows, ``fragments`` columns, and ``steps`` terms of an instruction, whose own
    loops are ``inner``. The last loops of the grid may be over ``parts`` of the reduction, which groups add up. The
    groups of a loop of the grid over a ``cluster`` run at once.
    """

    grid: tuple[Loop, ...]
    stepping: tuple[Loop, ...]
    warps: Loop
    fragments: Loop
    steps: Loop
    inner: tuple[Loop, Loop, Loop]
    parts: tuple[Loop, ...] = ()
    cluster: Loop | None = None


def warp_groups(
    s: Schedule, tile: GroupTile, bring: Callable[[Loop], object], slots: int, residing: int = 0, uneven: bool = False,
    most: Sequence[int] = (), resident: Sequence[Copy] = (),
) -> None:  # fmt: skip
    """Have groups of warps multiply the operands of each step, which ``bring`` has a copy engine fetch in the innermost
    loop over steps. One more warp starts the copies, up to as many steps ahead as there are ``slots``. ``residing``
    groups are on the device at a time, each of which computes several tiles, unless that is 0; tiles have fewer and
    fewer steps if they are ``uneven``. ``most`` are the largest numbers of groups along the dims of a launch, innermost
    first. ``resident`` are the copies, made by ``bring``, that serve all tiles of a group.
    """
    row, column, term = tile.inner
    sums = (tile.warps, tile.fragments, row, column)
    own = () if tile.cluster is None else (tile.cluster,)
    grid = [x for x in tile.grid if x not in own]
    s.reorder(*own, *(x for x in grid if x not in tile.parts), *sums)
    if tile.parts:
        s.reorder(*tile.parts, *tile.stepping, tile.steps, term)
        s.add_atomically(tile.parts, sums)
    s.bind("grid", *tile.grid)
    s.bind("warp", tile.warps)
    s.fission(*sums)
    s.reorder(*tile.stepping, tile.warps, tile.steps, tile.fragments, *tile.inner)
    s.simplify()
    bring(tile.stepping[-1])
    step, around = s.fuse(tile.stepping, "s") if len(tile.stepping) > 1 else tile.stepping[0], None
    if residing:
        around = s.fuse(grid, "x") if len(grid) > 1 else grid[0]
        outer = [s.persistent_grid(around, residing, "resident", uneven)]
    else:
        outer = fuse_grid(s, grid, most[len(own) :])
    if own:
        s.reorder(*outer, *own)
    s.pipeline(step, slots, around, resident)
