"""The nest of a group of threads: the loops over groups, threads, registers, and steps of the reduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from convsmith.ir.instruction import Instruction
from convsmith.schedule.config import Config
from convsmith.schedule.group_fragments import WarpTile, warp_tile
from convsmith.schedule.loops import Loop, Loops
from convsmith.schedule.order import fuse_dims
from convsmith.schedule.schedule import Schedule
from convsmith.statement.statement import Statement

GRID_DIMS = 3
"""Maximum number of loops over thread groups."""


@dataclass(frozen=True)
class GroupNest:
    """The loops that tiling makes, by role, outermost first in each.

    The loops ``grid`` step from group tile to group tile, those in ``threads`` from thread to thread, and ``registers``
    are the sums of a thread; the ``vectors`` among them and among the terms are loaded at once. The ``steps`` of the
    reduction run one after the other; a group copies operands at each. The loops ``terms`` run within a step. The loop
    over ``parts`` of the reduction, where there are any, is one of the grid: groups add up a part each.
    """

    grid: tuple[Loop, ...]
    threads: tuple[Loop, ...]
    registers: tuple[Loop, ...]
    steps: tuple[Loop, ...]
    terms: tuple[Loop, ...]
    parts: tuple[Loop, ...] = ()
    warp: WarpTile | None = None
    vectors: tuple[Loop, ...] = ()

    @property
    def grid_sizes(self) -> tuple[int, ...]:
        """The extents of the loops over groups once they are packed, outermost first."""
        sizes = [x.extent for x in self.grid]
        return (*sizes[: GRID_DIMS - 1], prod(sizes[GRID_DIMS - 1 :])) if len(sizes) > GRID_DIMS else tuple(sizes)

    @property
    def warp_size(self) -> int:
        """The number of lanes of a warp that computes fragments; 1 of a thread."""
        return self.warp.lanes if self.warp is not None else 1

    @property
    def size(self) -> int:
        """The number of threads of a group."""
        return prod(x.extent for x in self.threads) * self.warp_size


def group_nest(
    s: Schedule, st: Statement, loops: Loops, config: Config, row: Instruction | None = None,
    loads: tuple[Instruction, ...] = (),
) -> GroupNest:  # fmt: skip
    """Split the ``loops`` of ``st`` as ``config`` says, and return their nest; the groups of a residue class follow
    each other.

    Adjacent threads have adjacent iterations of the lane loop. Along other loops, a thread has a run of iterations. A
    warp that computes fragments of ``row``, whose factors ``loads`` may load, has runs along all loops.
    """
    classes = fuse_dims(s, st, config)
    return _GroupBuilder(s, loops, config, row).nest([x for x in classes if x.role != "k"], loads)


class _GroupBuilder:
    """Splits every loop by its tiles, and collects the loops that result by role."""

    def __init__(self, s: Schedule, loops: Loops, config: Config, row: Instruction | None) -> None:
        self.s, self.loops, self.config, self.row = s, loops, config, row
        self.grid: list[Loop] = []
        self.threads: list[Loop] = []
        self.registers: list[Loop] = []
        self.steps: list[Loop] = []
        self.terms: list[Loop] = []
        self.parts: list[Loop] = []
        self.vectors: list[Loop] = []

    def nest(self, classes: Sequence[Loop], loads: tuple[Instruction, ...]) -> GroupNest:
        """Return the nest, of which the loops over residue ``classes`` are a part."""
        for n in _ordered(self.loops, self.config):
            self.split(self.loops.whole(n, "thread" if self.loops.kinds[n] == "k" else "grid"))
        lane, row = self.config.lane, self.row
        self.threads.sort(key=lambda x: x.of == lane)
        self.vectors.sort(key=lambda x: x.of == lane)
        if row is not None:  # loops of rows, and of columns, become one loop each
            roles = [x.role for x in self.registers]
            self.registers.sort(key=lambda x: roles.index(x.role))
        registers = (*self.registers, *(x for x in self.vectors if x.role != "k"))
        terms = (*self.terms, *(x for x in self.vectors if x.role == "k"))
        warp = None if row is None else warp_tile(row, loads, lane, registers, terms)
        return GroupNest(
            (*classes, *self.grid, *self.parts), tuple(self.threads), registers, tuple(self.steps), terms,
            tuple(self.parts), warp, tuple(self.vectors),
        )  # fmt: skip

    def split(self, loop: Loop) -> None:
        """Enter the parts of ``loop``."""
        n, config = loop.of, self.config
        is_lane, is_step = n == config.lane, loop.role == "k"
        size, own = tile_of(self.loops, config, n)
        if config.join == "atomic" and n in dict(config.split):
            parts, loop = self.s.tile(loop, loop.extent // dict(config.split)[n], ("a", ""), ("grid", loop.level))
            self.parts.append(parts)
        if loop.extent % size or n in self.loops.residues:
            loop = self.s.extend(loop, size)
        outer, inner = (self.steps, self.terms) if is_step else (self.grid, self.registers)
        if size == 1 and not is_lane:
            outer.append(loop)
            return
        across, run = size // own, dict(config.vectors).get(n, 1)
        of_thread = "i" if run == 1 else "c"
        if is_step or (across == 1 and not is_lane):
            tiles, tile = self.s.tile(loop, size, f"g{of_thread}", (loop.level, "register"))
            inner.append(self.of_vectors(tile, run))
        elif own == 1:
            tiles, threads = self.s.tile(loop, size, "gt", (loop.level, "group"))
            self.threads.append(threads)
        elif is_lane and self.row is None:
            tiles, tile = self.s.tile(loop, size, "gb", (loop.level, "group"))
            sums, threads = self.s.tile(tile, across * run, "it" if run == 1 else "ic", ("register", "group"))
            self.threads.append(self.of_vectors(threads, run, "t"))
            self.registers.append(sums)
        else:
            tiles, tile = self.s.tile(loop, size, "gb", (loop.level, "group"))
            threads, sums = self.s.tile(tile, own, f"t{of_thread}", ("group", "register"))
            self.threads.append(threads)
            self.registers.append(self.of_vectors(sums, run))
        outer.append(tiles)

    def of_vectors(self, loop: Loop, run: int, letter: str = "i") -> Loop:
        """Split ``loop`` into ``run`` iterations that are loaded at once, and return the loop over these vectors."""
        if run == 1:
            return loop
        loop, vector = self.s.tile(loop, run, f"{letter}v", (loop.level, "register"))
        self.vectors.append(vector)
        return loop


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
