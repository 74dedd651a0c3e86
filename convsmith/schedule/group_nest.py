"""The nest of a group of threads: the loops over groups, threads, registers, and steps of the reduction."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from convsmith.ir.instruction import Instruction
from convsmith.passes.extend import extend
from convsmith.passes.fuse import fuse
from convsmith.passes.manager import Step
from convsmith.passes.tile import tile
from convsmith.schedule.config import Config
from convsmith.schedule.group_fragments import WarpTile, warp_tile
from convsmith.schedule.loops import Loop, Loops

THREAD, GROUP, STEP = "t", "x", "s"
"""Names of the loops that several loops over threads, over groups, and over steps of the reduction become."""
GRID_DIMS = 3
"""Maximum number of loops over thread groups."""


@dataclass(frozen=True)
class GroupNest:
    """The loops that tiling makes, by role, outermost first in each.

    The loops ``grid`` step from group tile to group tile, those in ``threads`` from thread to thread, and ``registers``
    are the sums of a thread; the ``vectors`` among them and among the terms are loaded at once. The ``steps`` of the
    reduction run one after the other; a group copies operands at each. The loops ``terms`` run within a step. The loop
    over ``parts`` of the reduction, where there are any, is one of the grid: groups add up a part each. ``tiling`` are
    the rewrites that split the loops of the statement into these.
    """

    grid: tuple[Loop, ...]
    threads: tuple[Loop, ...]
    registers: tuple[Loop, ...]
    steps: tuple[Loop, ...]
    terms: tuple[Loop, ...]
    tiling: tuple[Step, ...]
    parts: tuple[Loop, ...] = ()
    warp: WarpTile | None = None
    vectors: tuple[Loop, ...] = ()

    @property
    def grid_sizes(self) -> tuple[int, ...]:
        """The extents of the loops over groups once they are packed, outermost first."""
        sizes = [x.extent for x in self.grid]
        return (*sizes[: GRID_DIMS - 1], prod(sizes[GRID_DIMS - 1 :])) if len(sizes) > GRID_DIMS else tuple(sizes)

    @property
    def thread(self) -> str:
        """The name of the loop over all threads."""
        return THREAD if len(self.threads) > 1 else self.threads[0].name

    @property
    def warp_size(self) -> int:
        """The number of lanes of a warp that computes fragments; 1 of a thread."""
        return self.warp.lanes if self.warp is not None else 1

    @property
    def size(self) -> int:
        """The number of threads of a group."""
        return prod(x.extent for x in self.threads) * self.warp_size


def group_nest(
    loops: Loops, config: Config, row: Instruction | None = None, loads: tuple[Instruction, ...] = ()
) -> GroupNest:
    """Return the nest that ``config`` makes of ``loops``; the groups of a residue class follow each other.

    Adjacent threads have adjacent iterations of the lane loop. Along other loops, a thread has a run of iterations. A
    warp that computes fragments of ``row`` has runs along all loops.
    """
    grid: list[Loop] = []
    threads: list[Loop] = []
    registers: list[Loop] = []
    steps: list[Loop] = []
    terms: list[Loop] = []
    parts: list[Loop] = []
    vectors: list[Loop] = []
    tiling: list[Step] = []
    for n in _ordered(loops, config):
        whole, (size, own) = loops.extents[n], tile_of(loops, config, n)
        if config.join == "atomic" and n in dict(config.split):
            count = dict(config.split)[n]
            whole //= count
            parts.append(loops.part(f"{n}.a", n, "thread", count, whole, is_tiled=True))
            tiling.append(Step(tile, n, whole, f"{n}.a", n))
        count = -(-whole // size)
        if whole % size or n in loops.residues:
            tiling.append(Step(extend, n, size))
        outer, inner = (steps, terms) if loops.kinds[n] == "k" else (grid, registers)
        is_lane, is_step = n == config.lane, loops.kinds[n] == "k"
        if size == 1 and not is_lane:
            outer.append(loops.part(n, n, "thread", count))
            continue
        outer.append(loops.part(f"{n}.g", n, "thread", count, size, is_tiled=True))
        across, run = size // own, dict(config.vectors).get(n, 1)
        within = f"{n}.i" if run == 1 else f"{n}.c"
        if run > 1:
            vectors.append(loops.part(f"{n}.v", n, "register", run))
        if is_step or (across == 1 and not is_lane):
            tiling.append(Step(tile, n, size, f"{n}.g", within))
            inner.append(loops.part(f"{n}.i", n, "register", size // run, run, run > 1))
            tiling += [Step(tile, within, run, f"{n}.i", f"{n}.v")] * (run > 1)
            continue
        is_spread = is_lane and row is None
        threads.append(loops.part(f"{n}.t", n, "thread", across, run if is_spread else own, own > 1))
        if own == 1:
            tiling.append(Step(tile, n, size, f"{n}.g", f"{n}.t"))
            continue
        apart = across * run if is_spread else run
        registers.append(loops.part(f"{n}.i", n, "register", own // run, apart, apart > 1))
        tiling.append(Step(tile, n, size, f"{n}.g", f"{n}.b"))
        if is_spread:
            tiling.append(Step(tile, f"{n}.b", apart, f"{n}.i", f"{n}.t" if run == 1 else f"{n}.c"))
            tiling += [Step(tile, f"{n}.c", run, f"{n}.t", f"{n}.v")] * (run > 1)
        else:
            tiling.append(Step(tile, f"{n}.b", own, f"{n}.t", within))
            tiling += [Step(tile, within, run, f"{n}.i", f"{n}.v")] * (run > 1)
    classes = [
        loops.part(f"{n}.r", n, "class", count) for n, count in loops.residues.items() if loops.kinds[n] != "k"
    ]  # fmt: skip
    threads.sort(key=lambda x: x.of == config.lane)
    vectors.sort(key=lambda x: x.of == config.lane)
    if row is not None:  # loops of rows, and of columns, become one loop each
        roles = [x.role for x in registers]
        registers.sort(key=lambda x: roles.index(x.role))
    registers += [x for x in vectors if loops.kinds[x.of] != "k"]
    terms += [x for x in vectors if loops.kinds[x.of] == "k"]
    return GroupNest(
        (*classes, *grid, *parts), tuple(threads), tuple(registers), tuple(steps), tuple(terms), tuple(tiling),
        tuple(parts), None if row is None else warp_tile(row, loads, config.lane, registers, terms), tuple(vectors),
    )  # fmt: skip


def tile_of(loops: Loops, config: Config, loop: str) -> tuple[int, int]:
    """Return the iterations of a loop in the tile of a group and in that of a thread; a loop that runs once has none.
    """
    return (config.group_size(loop), config.size(loop)) if loops.extents[loop] > 1 else (1, 1)


def _ordered(loops: Loops, config: Config) -> list[str]:
    """Return the names of ``loops``, outermost first."""
    around, inner = loops.of("batch", "n", "m"), loops.of("k")
    first = [n for n in config.order if n in around]
    reduce = [n for n in config.reduce if n in inner]
    return [*first, *(n for n in around if n not in first), *reduce, *(n for n in inner if n not in reduce)]


def packed(loops: tuple[str, ...], name: str, most: int) -> list[Step]:
    """Return the rewrites that leave at most ``most`` of the adjacent ``loops``: the last ones become the loop
    ``name``.
    """
    steps = []
    outer = loops[: most][-1]
    for n, inner in enumerate(loops[most:], most):
        fused = name if n == len(loops) - 1 else f"{name}.{n}"
        steps.append(Step(fuse, outer, inner, fused))
        outer = fused
    return steps
