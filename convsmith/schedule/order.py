"""The nest of a config: its loops by their roles around and within the register tile, and the rewrites that make it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.passes.block_reduction import block_reduction
from convsmith.passes.cut import cut
from convsmith.passes.fission import fission
from convsmith.passes.fuse import fuse
from convsmith.passes.reorder import reorder
from convsmith.passes.rfactor import rfactor
from convsmith.passes.simplify import simplify
from convsmith.passes.sink import sink
from convsmith.passes.solve import solve
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loop, Loops, fused_name, loop_over
from convsmith.schedule.pointers import indirect
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.registers import filled_lanes
from convsmith.schedule.schedule import Schedule
from convsmith.statement.phases import Phase, phased, phases
from convsmith.statement.statement import KINDS, Statement


@dataclass(frozen=True)
class Nest:
    """The loops that tiling makes, by role, outermost first in each.

    Around the register tile stand the loops ``around``, of which the last ones, ``within``, run inside of each cache
    tile of a reduction loop, over which the loop ``depth`` steps. A register tile has loops over ``pixels`` and
    ``vectors``; of fragments also over the ``rows`` of one. ``terms`` are those that one instruction adds up, or
    straight lines that share their loads. ``classes`` are the loops over residue classes. ``filled`` is the number of
    lanes in use. Vectors are ``scalable`` where the machine has some of any length.
    """

    unit: ProductShape
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
    def widths(self) -> tuple[tuple[Loop, int], ...]:
        """The loops that have room for a whole vector or fragment, however short they are, with that room."""
        filled = self.terms if self.unit.dot else ()
        return ((self.lane, self.lanes), *((x, self.unit.rows) for x in self.rows), *((x, x.extent) for x in filled))

    @property
    def term_order(self) -> tuple[Loop, ...]:
        """The register tile's loops with the terms among them, as instructions take them."""
        if self.rows:
            groups, terms = self.terms
            return (*self.pixels, *self.vectors, *self.rows, groups, self.lane, terms)
        inner = (self.lane, *self.terms) if self.unit.dot else (*self.terms, self.lane)
        return (*self.pixels, *self.vectors, *inner)

    def place(self, of: str, size: int = 0) -> int | None:
        """Return the position of the innermost loop around the register tile that steps through the loop ``of``, in
        tiles of ``size`` unless that is 0; None if there is none.
        """
        return max((n for n, x in enumerate(self.around) if x.of == of and size in (0, x.tile)), default=None)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """All loops, outermost first: around the register tile, the reduction, and within the register tile."""
        return (*self.around, *self.reduce, *(self.term_order if self.terms else self.register))


def order_nest(
    s: Schedule, st: Statement, loops: Loops, config: Config, unit: ProductShape, scalable: bool = False
) -> Nest:
    """Bring the loops of ``st`` into the order that ``config`` gives them, and return their nest.

    Vectors of a tile lie side by side, but for ``scalable`` vectors: between the units of two lie those of all tiles.
    """
    classes = fuse_dims(s, st, config)
    nest = _Builder(s, st, loops, config, unit, scalable).nest(classes)
    s.run(reorder, (*nest.around, *nest.accumulators))
    return nest


def fuse_dims(s: Schedule, st: Statement, config: Config) -> list[Loop]:
    """Cut the loops of ``st`` into residue classes and fuse those that ``config`` fuses; return the loops over classes.
    """
    bring_together(s, st, config)
    classes = cut_classes(s, st, config)
    fuse_pairs(s, config)
    return classes


def bring_together(s: Schedule, st: Statement, config: Config) -> None:
    """Bring loops of ``st`` that ``config`` fuses side by side."""
    around = sorted((d for d in st.dims if d.kind != "k"), key=lambda d: KINDS.index(d.kind))
    if len(around) > 1 and config.fuse:
        s.run(reorder, tuple(d.name for d in around))
    if sum(n in pair for pair in config.fuse for n in st.reduce) > 1:
        s.run(reorder, st.reduce)


def fuse_pairs(s: Schedule, config: Config) -> None:
    """Fuse the loops that ``config`` fuses."""
    for a, b in config.fuse:
        s.run(fuse, a, b, fused_name(a, b))
    s.run(simplify)


class _Builder:
    """Splits every loop by its tiles, and collects the loops that result by role."""

    def __init__(
        self, s: Schedule, st: Statement, loops: Loops, config: Config, unit: ProductShape, scalable: bool
    ) -> None:
        self.s, self.st, self.loops, self.config, self.unit, self.scalable = s, st, loops, config, unit, scalable
        self.filled = filled_lanes(st, loops.dims[config.lane], unit)
        self.lane = loops.whole(config.lane)
        self.pixels: list[Loop] = []
        self.vectors: list[Loop] = []
        self.rows: list[Loop] = []
        self.terms: list[Loop] = []
        self.outer: dict[str, Loop] = {}
        self.reduce: dict[str, list[Loop]] = {}

    def nest(self, classes: Sequence[Loop]) -> Nest:
        """Return the nest, of which the loops over residue classes are a part."""
        config = self.config
        for name in self.loops.kinds:
            self.split(self.loops.whole(name, self.outermost(name)))
        around = [x for x in classes if x.role != "k"]
        reduce = [x for x in classes if x.role == "k"]
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
            self.unit, self.filled, self.lane, tuple(around), tuple(self.pixels), tuple(self.vectors),
            tuple(self.rows), tuple(reduce), tuple(self.terms), tuple(classes), depth, within, self.scalable,
        )  # fmt: skip

    def split(self, loop: Loop) -> None:
        """Enter the parts of ``loop``."""
        n, config, size = loop.of, self.config, self.config.size(loop.of)
        if n == config.lane and loop.role == "k":
            tiles, self.lane = self.tiles(loop, self.unit.lanes, "l", "instruction")
            self.reduce[n] = [tiles]
        elif n == config.lane:
            width = max(size, self.filled)
            if self.is_apart(n, width):
                self.split_apart(loop, width // self.filled)
                return
            self.outer[n], tile = self.tiles(loop, width, "t")
            vectors, self.lane = self.s.tile(tile, self.filled, "vl", ("register", "instruction"))
            self.vectors.append(vectors)
        elif n in dict(config.terms):
            level = "instruction" if self.unit.dot else "register"
            tiles, terms = self.tiles(loop, dict(config.terms)[n], "q", level)
            self.reduce[n] = [tiles]
            if self.unit.rows > 1:
                groups, terms = self.s.tile(terms, self.unit.group, "qp", (level, level))
                self.terms.append(groups._replace(is_tiled=self.unit.group > 1))
            self.terms.append(terms)
        elif self.unit.rows > 1 and loop.role == "m" and n in dict(config.register):
            height = _height(size, self.unit.rows)
            self.outer[n], tile = self.tiles(loop, size, "t")
            pixels, rows = self.s.tile(tile, height, "im", ("register", "instruction"))
            self.pixels.append(pixels)
            self.rows.append(rows)
        elif loop.role == "k" and (size > 1 or n in dict(config.ends)):
            self.reduce[n] = [*self.tiles(loop, size, "u")]
        elif size > 1:
            self.outer[n], tile = self.tiles(loop, size, "i")
            # Lanes along pixels: a weight serves all vectors of pixels, which stay in registers.
            is_outer = loop.role == "m" and self.loops.kinds[config.lane] != "m"
            (self.pixels if is_outer else self.vectors).append(tile)
        elif loop.role == "k":
            self.reduce[n] = [loop]
        else:
            self.outer[n] = loop

    def is_apart(self, n: str, width: int) -> bool:
        """Return whether the vectors of a tile of the lane loop lie apart, as far as tiles of ``width`` reach."""
        plain = self.loops.kinds[n] in ("batch", "n") and n not in self.loops.symbolic and n not in self.loops.residues
        whole = self.filled == self.unit.lanes and not self.loops.extents[n] % width and not self.cached(n)
        return self.scalable and plain and whole and width > self.filled

    def split_apart(self, loop: Loop, vectors: int) -> None:
        """Split the lane loop into as many parts as a tile has vectors, and these into vectors."""
        parts, part = self.s.tile(loop, loop.extent // vectors, "vt", ("register", "thread"))
        self.outer[loop.of], self.lane = self.s.tile(part, self.filled, "ol", (loop.level, "instruction"))
        self.vectors.append(parts)

    def tiles(self, loop: Loop, size: int, letter: str, level: str = "register") -> tuple[Loop, Loop]:
        """Split ``loop`` by ``size``, and return the loop over its tiles and that within a tile."""
        parts, levels = f"o{letter}", (loop.level, level)
        if loop.of in dict(self.config.ends):
            first, last = (x for _, x in self.config.ends)
            return self.s.tile_ends(loop, (first, size, last), parts, levels)
        return self.s.tile(loop, size, parts, levels)

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
        depth, first, seen = None, before, dict.fromkeys(self.loops.extents, 0)
        for n, size in self.config.cache:
            if size not in self.cached(n)[seen[n] :]:
                continue
            level = "cache" if seen[n] else "thread"
            seen[n] += 1
            tiles = self.outer.pop(n) if n in self.outer else self.reduce[n].pop(0)
            if size == tiles.tile:
                loop = tiles
            else:
                loop, tiles = self.s.tile(tiles, size // tiles.tile, ("b", ""), (level, tiles.level))
                if loop.role == "k":
                    self.reduce[n].insert(0, tiles)
                else:
                    self.outer[n] = tiles
            if loop.role == "k":
                depth, first = loop, before + len(cache_loops)
            cache_loops.append(loop)
        return cache_loops, depth, first


def _height(pixels: int, most: int) -> int:
    """Return the rows of each of the fragments that ``pixels`` are divided among."""
    return -(-pixels // -(-pixels // most))


def is_drained(config: Config, nest: Nest) -> bool:
    """Return whether accumulators are stored to memory, from which loops of their own write the result."""
    return bool(nest.rows) or (config.drain and bool(nest.accumulators) and not nest.along_k)


def tile_registers(s: Schedule, config: Config, nest: Nest, sums: Buffer | None = None) -> dict[Loop, Loop]:
    """Make the register tile of an ordered nest: split its body, sink it. Return the loops that write the result of
    each loop over drained accumulators.

    ``sums``, if given, is the parameter that keeps partial sums between cache tiles of a reduction loop, in the order
    of the iterations of the lane loop.
    """
    written: dict[Loop, Loop] = {}
    if nest.accumulators:
        s.run(fission, nest.accumulators, nest.widths)
    s.run(sink, nest.register)
    s.run(reorder, (*nest.reduce, *nest.terms))
    if nest.terms:
        s.run(reorder, nest.term_order)
    if nest.taps_of_rows:
        s.run(reorder, nest.taps_of_rows)
    if nest.along_k:
        s.run(rfactor, nest.lane, nest.lanes)
    elif is_drained(config, nest):
        written = s.drain((*nest.pixels, *nest.vectors, *nest.rows))
        if nest.rows and nest.vectors:
            # The vectors of a pixel are adjacent in memory.
            s.run(reorder, tuple(written[x] for x in (*nest.rows, *nest.vectors)))
    if nest.depth is not None and nest.within:
        place = (_position(nest, config.lane),) if sums is not None else ()
        s.run(block_reduction, nest.depth, nest.within, sums, place)
    return written


def _position(nest: Nest, of: str) -> Index:
    """Return the iteration of the loop ``of`` of the statement as an index over the loops of the nest."""
    return sum((Var(x.name) * x.tile for x in (*nest.around, *nest.register) if x.of == of), as_index(0))


def cut_classes(s: Schedule, st: Statement, config: Config) -> list[Loop]:
    """Cut loops that a stride must divide into residue classes, and return the loops over those that are no phases.

    Phases go outside, in runs that are all alike.
    """
    classes = split_classes(s, st, config)
    by_phase = {loop: phase for loop, phase in classes.items() if phase is not None}
    if by_phase:
        columns = phased(st, config.phases)
        order = [d.name for d in sorted(columns.dims, key=lambda d: KINDS.index(d.kind)) if d.kind != "k"]
        for loop, phase in by_phase.items():
            s.run(reorder, (loop, *(n for n in order if n != loop.name)))
            s.run(cut, loop, phase.cuts)
        s.run(simplify)
        s.run(reorder, tuple(order))
    return [loop for loop, phase in classes.items() if phase is None]


def split_classes(s: Schedule, st: Statement, config: Config) -> dict[Loop, Phase | None]:
    """Run each loop that a stride must divide once per residue class, and return the loops over classes, with the phase
    where they are those of a phase of ``config``. Of a reduction loop, an element of the result meets one class alone.
    """
    if not st.residues:
        return {}
    dims, found = {d.name: d for d in st.dims}, phases(st)
    classes: dict[Loop, Phase | None] = {}
    solved: list[Loop] = []
    for n, modulus in st.residues.items():
        dim, phase = dims[n], found[n] if n in config.phases and n in found else None
        loop = s.residue(loop_over(dim), modulus, phase.name if phase else "")
        if dim.kind == "k" and not indirect(st, config):
            solved.append(loop)
        else:
            classes[loop] = phase
    for loop in solved:
        s.run(solve, loop)
    return classes
