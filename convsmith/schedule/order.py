"""The nest of a config: its loops by their roles around and within the register tile, and the rewrites that make it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.passes.cut import cut
from convsmith.passes.drain import drain
from convsmith.passes.fission import fission
from convsmith.passes.fuse import fuse
from convsmith.passes.keep_sums import keep_sums
from convsmith.passes.manager import Step
from convsmith.passes.reorder import reorder
from convsmith.passes.residue import residue
from convsmith.passes.rfactor import rfactor
from convsmith.passes.simplify import simplify
from convsmith.passes.sink import sink
from convsmith.passes.solve import solve
from convsmith.passes.tile import tile
from convsmith.passes.tile_ends import tile_ends
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loop, Loops, fused_name, names
from convsmith.schedule.pointers import indirect
from convsmith.schedule.registers import filled_lanes
from convsmith.schedule.unit import Unit
from convsmith.statement.phases import phased, phases
from convsmith.statement.statement import KINDS, Statement

_WRITTEN = ".w"
"""End of the names of loops that write drained accumulators."""


@dataclass(frozen=True)
class Nest:
    """The loops that tiling makes, by role, outermost first in each.

    Around the register tile stand the loops ``around``, of which the last ones, ``within``, run inside of each cache
    tile of a reduction loop, over which the loop ``depth`` steps. A register tile has loops over ``pixels`` and
    ``vectors``; of fragments also over the ``rows`` of one. ``terms`` are those that one instruction adds up, or
    straight lines that share their loads. ``classes`` are the loops over residue classes. ``filled`` is the number of
    lanes in use. ``tiling`` are the rewrites that split the loops of the statement into these. Vectors are ``scalable``
    where the machine has some of any length.
    """

    unit: Unit
    filled: int
    lane: Loop
    around: tuple[Loop, ...] = ()
    pixels: tuple[Loop, ...] = ()
    vectors: tuple[Loop, ...] = ()
    rows: tuple[Loop, ...] = ()
    reduce: tuple[Loop, ...] = ()
    terms: tuple[Loop, ...] = ()
    classes: tuple[Loop, ...] = ()
    depth: Loop | None = None
    within: tuple[Loop, ...] = ()
    tiling: tuple[Step, ...] = ()
    scalable: bool = False

    @property
    def along_k(self) -> bool:
        """Whether vectors lie along a reduction loop."""
        return self.lane.role == "k"

    @property
    def outside(self) -> tuple[Loop, ...]:
        """Loops around the register tile that are around the whole of each sum."""
        return self.around[: len(self.around) - len(self.within)]

    @property
    def units(self) -> tuple[Loop, ...]:
        """The loop whose iterations may be units of longer vectors: where these are scalable, from vector to vector."""
        around = [x for x in self.around if x.of == self.lane.of and x.level != "class"]
        return tuple(x for x in around[-1:] if self.scalable and x.tile == self.filled)

    def packed(self, loops: Sequence[Loop]) -> tuple[Loop, ...]:
        """Return ``loops``, which index a packed operand, in the order of its dims: units are contiguous."""
        if not {*self.units, self.lane} <= {*loops}:
            return tuple(loops)
        others = [x for x in loops if x not in self.units]
        place = others.index(self.lane)
        return (*others[:place], *self.units, *others[place:])

    @property
    def lanes(self) -> int:
        """Elements of an accumulator."""
        return self.unit.lanes

    @property
    def accumulators(self) -> tuple[Loop, ...]:
        """Loops over accumulators and their elements."""
        return (*self.pixels, *self.vectors, *self.rows, *(() if self.along_k else (self.lane,)))

    @property
    def register(self) -> tuple[Loop, ...]:
        """Loops within the register tile."""
        return (*self.pixels, *self.vectors, *self.rows, self.lane)

    @property
    def unrolled(self) -> tuple[Loop, ...]:
        """Loops that become straight lines: of fragments, those from one fragment to the next."""
        if self.rows:
            return (*self.pixels, *self.vectors)
        return (*self.register, *self.terms, *(x for x in self.reduce if x.level == "register"))

    @property
    def taps_of_rows(self) -> tuple[Loop, ...]:
        """The order of a tile's loops over rows whose lanes are pixels, and over taps between; nothing without both.

        A vector of the source is read for one tap after the other of the rows that it is under, and then no more.
        """
        rows = tuple(x for x in self.vectors if x.role == "m" and x.of != self.lane.of)
        taps = tuple(x for x in self.reduce if x.level == "register")
        if self.lane.role != "m" or not rows or not taps:
            return ()
        return (*rows, *taps, *(x for x in self.vectors if x not in rows))

    @property
    def widths(self) -> tuple[tuple[str, int], ...]:
        """Names of loops that have room for a whole vector or fragment, however short they are, with that room."""
        filled = self.terms if self.unit.dot else ()
        rows = ((x.name, self.unit.rows) for x in self.rows)
        return ((self.lane.name, self.lanes), *rows, *((x.name, x.extent) for x in filled))

    @property
    def term_order(self) -> tuple[Loop, ...]:
        """The register tile's loops with the terms among them, as instructions take them."""
        if self.rows:
            groups, terms = self.terms
            return (*self.pixels, *self.vectors, *self.rows, groups, self.lane, terms)
        inner = (self.lane, *self.terms) if self.unit.dot else (*self.terms, self.lane)
        return (*self.pixels, *self.vectors, *inner)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """All loops, outermost first: around the register tile, the reduction, and within the register tile."""
        return (*self.around, *self.reduce, *(self.term_order if self.terms else self.register))


def nest_of(st: Statement, loops: Loops, config: Config, unit: Unit, scalable: bool = False) -> Nest:
    """Return the nest that ``config`` makes of ``loops``, which are those of ``st``.

    Vectors of a tile lie side by side, but for ``scalable`` vectors: between the units of two lie those of all tiles.
    """
    return _Builder(st, loops, config, unit, scalable).nest()


class _Builder:
    """Splits every loop by its tiles, and collects the loops that result by role."""

    def __init__(self, st: Statement, loops: Loops, config: Config, unit: Unit, scalable: bool) -> None:
        self.st, self.loops, self.config, self.unit, self.scalable = st, loops, config, unit, scalable
        self.filled = filled_lanes(st, loops.dims[config.lane], unit)
        self.pixels: list[Loop] = []
        self.vectors: list[Loop] = []
        self.rows: list[Loop] = []
        self.terms: list[Loop] = []
        self.outer: dict[str, Loop] = {}
        self.reduce: dict[str, list[Loop]] = {}
        self.tiling: list[Step] = []

    def nest(self) -> Nest:
        """Return the nest."""
        config = self.config
        lane = self.loops.part(f"{config.lane}.l", config.lane, "instruction", self.filled)
        for name in self.loops.kinds:
            self.split(name)
        around, reduce, classes = self.classes()
        blocks, depth, first = self.blocks(len(around))
        around += [x for x in blocks if x.role != "k"]
        ordered = [self.outer.pop(n) for n in config.order if n in self.outer]
        ordered += self.outer.values()
        if self.loops.kinds[config.lane] == "m" and config.lane in self.st.residues and not blocks:
            # Classes of the pixels along lanes fill the same lines of the result: an image or group has all in turn.
            images = {d.name for d in self.st.dims if d.sort == "images"}
            around[:0] = takewhile(lambda x: x.role == "batch" or images.issuperset(x.dims), ordered)
        around += [x for x in ordered if x not in around]
        reduce = [*(x for x in blocks if x.role == "k"), *reduce]
        reduce += [x for n in config.reduce if n in self.reduce for x in self.reduce.pop(n)]
        reduce += [x for parts in self.reduce.values() for x in parts]
        within = tuple(around[first:]) if depth is not None else ()
        return Nest(
            self.unit, self.filled, lane, tuple(around), tuple(self.pixels), tuple(self.vectors), tuple(self.rows),
            tuple(reduce), tuple(self.terms), tuple(classes), depth, within, tuple(self.tiling), self.scalable,
        )  # fmt: skip

    def split(self, n: str) -> None:
        """Enter the parts of loop ``n``."""
        config, kind, size = self.config, self.loops.kinds[n], self.config.size(n)
        if n == config.lane and kind == "k":
            self.reduce[n] = [self.tiles(n, self.unit.lanes, "l")]
        elif n == config.lane:
            width = max(size, self.filled)
            if self.is_apart(n, width):
                self.split_apart(n, width // self.filled)
                return
            self.outer[n] = self.tiles(n, width, "t")
            self.vectors.append(self.inner(n, "v", -(-width // self.filled), self.filled, is_tiled=True))
            self.tile(f"{n}.t", self.filled, f"{n}.v", f"{n}.l")
        elif n in dict(config.terms):
            terms = dict(config.terms)[n]
            self.reduce[n] = [self.tiles(n, terms, "q")]
            level = "instruction" if self.unit.dot else "register"
            group = self.unit.group if self.unit.rows > 1 else 1
            self.terms.append(self.inner(n, "q", terms // group, group, level, group > 1))
            if self.unit.rows > 1:
                self.terms.append(self.inner(n, "p", group, 1, level))
                self.tile(f"{n}.q", group, f"{n}.q", f"{n}.p")
        elif self.unit.rows > 1 and kind == "m" and n in dict(config.register):
            height = _height(size, self.unit.rows)
            self.outer[n] = self.tiles(n, size, "t")
            self.pixels.append(self.inner(n, "i", -(-size // height), height, is_tiled=True))
            self.rows.append(self.inner(n, "m", height, 1, "instruction"))
            self.tile(f"{n}.t", height, f"{n}.i", f"{n}.m")
        elif kind == "k" and (size > 1 or n in dict(config.ends)):
            self.reduce[n] = [self.tiles(n, size, "u"), self.inner(n, "u", size)]
        elif size > 1:
            self.outer[n] = self.tiles(n, size, "i")
            # Lanes along pixels: a weight serves all vectors of pixels, which stay in registers.
            outer = kind == "m" and self.loops.kinds[config.lane] != "m"
            (self.pixels if outer else self.vectors).append(self.inner(n, "i", size))
        else:
            whole = self.loops.part(n, n, self.outermost(n), self.loops.extents[n])
            if kind == "k":
                self.reduce[n] = [whole]
            else:
                self.outer[n] = whole

    def is_apart(self, n: str, width: int) -> bool:
        """Return whether the vectors of a tile of the lane loop lie apart, as far as tiles of ``width`` reach."""
        plain = self.loops.kinds[n] in ("batch", "n") and n not in self.loops.symbolic and n not in self.loops.residues
        whole = self.filled == self.unit.lanes and not self.loops.extents[n] % width and not self.cached(n)
        return self.scalable and plain and whole and width > self.filled

    def split_apart(self, n: str, vectors: int) -> None:
        """Split the lane loop into as many parts as a tile has vectors, and these into vectors."""
        part = self.loops.extents[n] // vectors
        self.tile(n, part, f"{n}.v", f"{n}.t")
        self.tile(f"{n}.t", self.filled, f"{n}.o", f"{n}.l")
        steps = part // self.filled
        self.outer[n] = self.loops.part(f"{n}.o", n, self.outermost(n), steps, self.filled, is_tiled=True)
        self.vectors.append(self.inner(n, "v", vectors, part, is_tiled=True))

    def tile(self, loop: str, size: int, outer: str, inner: str) -> None:
        """Split a loop."""
        self.tiling.append(Step(tile, loop, size, outer, inner))

    def tiles(self, n: str, size: int, letter: str) -> Loop:
        """Split loop ``n`` by ``size``, and return the loop over its tiles."""
        if n in dict(self.config.ends):
            first, last = (x for _, x in self.config.ends)
            self.tiling.append(Step(tile_ends, n, (first, size, last), f"{n}.o", f"{n}.{letter}"))
        else:
            self.tile(n, size, f"{n}.o", f"{n}.{letter}")
        whole = self.cached(n)[-1] if self.cached(n) else self.loops.extents[n]
        return self.loops.part(f"{n}.o", n, self.outermost(n), -(-whole // size), size, is_tiled=True)

    def inner(
        self, n: str, letter: str, extent: int, tile: int = 1, level: str = "register", is_tiled: bool = False
    ) -> Loop:
        """Return a loop within a tile."""
        return self.loops.part(f"{n}.{letter}", n, level, extent, tile, is_tiled)

    def cached(self, n: str) -> list[int]:
        """Return the sizes of the cache tiles of loop ``n`` that are smaller than what is around them."""
        sizes, whole = [], self.loops.extents[n]
        for name, size in self.config.cache:
            if name == n and size < whole:
                sizes.append(size)
                whole = size
        return sizes

    def outermost(self, n: str) -> str:
        """Return the level of a loop over register tiles of loop ``n``."""
        return "cache" if self.cached(n) else "thread"

    def blocks(self, before: int) -> tuple[list[Loop], Loop | None, int]:
        """Return the loops over cache tiles, the one of a reduction, and how many loops are around its sums."""
        cache_loops: list[Loop] = []
        config = self.config
        depth, first, seen = None, before, dict.fromkeys(self.loops.extents, 0)
        for n, size in config.cache:
            sizes = self.cached(n)
            if size not in sizes[seen[n] :]:
                continue
            whole = sizes[seen[n] - 1] if seen[n] else self.loops.extents[n]
            level = "cache" if seen[n] else "thread"
            seen[n] += 1
            tiles = self.outer[n] if n in self.outer else self.reduce[n][0]
            width = max(config.size(n), dict(config.terms).get(n, 1), self.filled if n == config.lane else 1)
            if size == width:
                loop = self.outer.pop(n) if n in self.outer else self.reduce[n].pop(0)
            else:
                name = f"{n}.b" if seen[n] == 1 else f"{n}.b{seen[n]}"
                loop = self.loops.part(name, n, level, -(-whole // size), size, is_tiled=True)
                self.tile(tiles.name, size // width, name, tiles.name)
            if loop.role == "k":
                depth, first = loop, before + len(cache_loops)
            cache_loops.append(loop)
        return cache_loops, depth, first

    def classes(self) -> tuple[list[Loop], list[Loop], list[Loop]]:
        """Return the loops over residue classes around the register tile, those of the reduction, and all of them."""
        around: list[Loop] = []
        reduce: list[Loop] = []
        kinds = {d.name: d.kind for d in self.st.dims}
        phase_loops = _phases(self.st, self.config)
        for n, modulus in self.st.residues.items():
            if n in phase_loops or (kinds[n] == "k" and not indirect(self.st, self.config)):
                continue
            loop = Loop(f"{n}.r", n, (n,), kinds[n], "class", modulus)
            (reduce if kinds[n] == "k" else around).append(loop)
        return around, reduce, [*around, *reduce]


def _phases(st: Statement, config: Config) -> dict[str, str]:
    """Return the names of the loops over phases, by pixel loop."""
    return {n: p.name for n, p in phases(st).items() if n in config.phases}


def _height(pixels: int, most: int) -> int:
    """Return the rows of each of the fragments that ``pixels`` are divided among."""
    return -(-pixels // -(-pixels // most))


def order_steps(st: Statement, config: Config, nest: Nest) -> list[Step]:
    """Return the rewrites that bring the loops of ``nest`` into their order: fuse, tile, reorder."""
    first = sorted((d for d in st.dims if d.kind != "k"), key=lambda d: KINDS.index(d.kind))
    steps = [Step(reorder, tuple(d.name for d in first))] if len(first) > 1 and config.fuse else []
    if sum(n in pair for pair in config.fuse for n in st.reduce) > 1:
        steps.append(Step(reorder, st.reduce))
    steps += class_steps(st, config)
    steps += [Step(fuse, a, b, fused_name(a, b)) for a, b in config.fuse]
    steps.append(Step(simplify))
    steps += nest.tiling
    steps.append(Step(reorder, names((*nest.around, *nest.accumulators))))
    return steps


def is_drained(config: Config, nest: Nest) -> bool:
    """Return whether accumulators are stored to memory, from which loops of their own write the result."""
    return bool(nest.rows) or (config.drain and bool(nest.accumulators) and not nest.along_k)


def written_name(loop: str) -> str:
    """Return the name of the loop that writes what accumulators of the loop ``loop`` hold."""
    return f"{loop}{_WRITTEN}"


def register_steps(config: Config, nest: Nest, sums: Buffer | None = None) -> list[Step]:
    """Return the rewrites that make the register tile of an ordered nest: split its body, sink it.

    ``sums``, if given, is the parameter that keeps partial sums between cache tiles of a reduction loop, in the order
    of the iterations of the lane loop.
    """
    steps = [Step(fission, names(nest.accumulators), nest.widths)] if nest.accumulators else []
    steps += [Step(sink, names(nest.register)), Step(reorder, names((*nest.reduce, *nest.terms)))]
    if nest.terms:
        steps.append(Step(reorder, names(nest.term_order)))
    if nest.taps_of_rows:
        steps.append(Step(reorder, names(nest.taps_of_rows)))
    if nest.along_k:
        steps.append(Step(rfactor, nest.lane.name, nest.lanes))
    elif is_drained(config, nest):
        steps.append(Step(drain, names((*nest.pixels, *nest.vectors, *nest.rows)), _WRITTEN))
        if nest.rows and nest.vectors:
            # The vectors of a pixel are adjacent in memory.
            steps.append(Step(reorder, tuple(written_name(x.name) for x in (*nest.rows, *nest.vectors))))
    if nest.depth is not None and nest.within:
        place = (_position(nest, config.lane),) if sums is not None else ()
        steps.append(Step(keep_sums, nest.depth.name, names(nest.within), sums, place))
    return steps


def _position(nest: Nest, of: str) -> Index:
    """Return the iteration of the loop ``of`` of the statement as an index over the loops of the nest."""
    return sum((Var(x.name) * x.tile for x in (*nest.around, *nest.register) if x.of == of), as_index(0))


def class_steps(st: Statement, config: Config) -> list[Step]:
    """Cut loops that a stride must divide into residue classes; phases go outside, in runs that are all alike."""
    steps: list[Step] = []
    solved: list[Step] = []
    kinds = {d.name: d.kind for d in st.dims}
    phase_names = _phases(st, config)
    for n, modulus in st.residues.items():
        name = phase_names.get(n, f"{n}.r")
        steps.append(Step(residue, n, modulus, name))
        if kinds[n] == "k" and not indirect(st, config):
            solved.append(Step(solve, name))
    steps += solved
    if phase_names:
        by_pixel = phases(st)
        whole = phased(st, config.phases)
        order = [d.name for d in sorted(whole.dims, key=lambda d: KINDS.index(d.kind)) if d.kind != "k"]
        for pixel, name in phase_names.items():
            others = (n for n in order if n != name)
            steps += [Step(reorder, (name, *others)), Step(cut, name, by_pixel[pixel].cuts)]
        steps += [Step(simplify), Step(reorder, tuple(order))]
    return steps
