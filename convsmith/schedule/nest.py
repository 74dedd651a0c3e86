"""The nest of a statement on any machine: the loops that the tiles of a config make, each with its level and role."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, takewhile
from math import prod
from operator import mul

from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.schedule.group_fragments import WarpTile
from convsmith.schedule.loops import Loop
from convsmith.schedule.product_shape import ProductShape

UNROLLED = 512
"""Maximum number of products of a thread in straight-line code."""
UNROLLED_TERMS = 128
"""Maximum number of terms of a sum in straight-line code, from which assemblers load factors far ahead: with few sums,
those of hundreds of terms exceed the registers of a thread.
"""
OUTSIDE = ("class", "grid", "cluster", "thread", "cache")
"""Levels of loops around the tile of a group of threads, or of the registers of one thread."""


@record(frozen=True)
class Nest:
    """The loops ``made`` by tiling, outermost first within each level and role, and the ``unit`` of their products.

    Code asks for loops by level and role (`at`); the properties name frequent queries. Between the iterations of the
    loops ``depth``, which step over cache tiles of reduction loops, memory holds the sums of the loops ``within`` them.
    Vectors are ``scalable`` if the machine has vectors of any length. Warps that compute fragments have ``warp_size``
    lanes, and the tile ``warp`` if the lanes load the factors; otherwise ``copiers``, further threads, start copies,
    and each of the ``teams`` of warps has a tile.
    """

    made: tuple[Loop, ...]
    unit: ProductShape
    depth: tuple[Loop, ...] = ()
    within: tuple[Loop, ...] = ()
    scalable: bool = False
    warp: WarpTile | None = None
    warp_size: int = 1
    copiers: int = 0
    teams: int = 1

    def at(self, *levels: str, k: bool = False) -> tuple[Loop, ...]:
        """Return the loops of ``levels``: loops of the reduction if ``k``, otherwise loops of the result."""
        return tuple(x for x in self.made if x.level in levels and (x.role == "k") == k)

    # -- Around tiles -------------------------------------------------------------------------------------------------

    @cached_property
    def classes(self) -> tuple[Loop, ...]:
        """Loops over residue classes and phases."""
        return tuple(x for x in self.made if x.level == "class")

    @cached_property
    def around(self) -> tuple[Loop, ...]:
        """Loops over the result that step from tile to tile of a group, or of the registers of a thread."""
        return self.at(*OUTSIDE)

    @property
    def outside(self) -> tuple[Loop, ...]:
        """Loops around the register tile that enclose the whole of each sum."""
        return self.around[: len(self.around) - len(self.within)]

    @cached_property
    def parts(self) -> tuple[Loop, ...]:
        """Loops over parts of the reduction, each of which one group sums."""
        return self.at("grid", k=True)

    @property
    def grid(self) -> tuple[Loop, ...]:
        """Loops over groups of threads."""
        return (*self.around, *self.parts)

    @property
    def groups(self) -> int:
        """The number of groups of threads."""
        return prod(x.extent for x in self.grid)

    @cached_property
    def threads(self) -> tuple[Loop, ...]:
        """Loops over the threads, or warps, of a group."""
        return self.at("group")

    @property
    def size(self) -> int:
        """The number of threads of a group."""
        return prod(x.extent for x in self.threads) * self.teams * self.warp_size + self.copiers

    # -- The reduction ------------------------------------------------------------------------------------------------

    @cached_property
    def steps(self) -> tuple[Loop, ...]:
        """Loops of the reduction around the loops over sums; a group copies operands at each step."""
        return self.at("class", "thread", "cache", k=True)

    @cached_property
    def reduce(self) -> tuple[Loop, ...]:
        """The `steps`, followed by the loops of the reduction that are unrolled."""
        return self.at("class", "thread", "cache", "register", k=True)

    @cached_property
    def terms(self) -> tuple[Loop, ...]:
        """Loops of the reduction within a step of a group, or over the terms of an instruction or of straight-line code
        that shares their loads.
        """
        return (*self.at("group", k=True), *self.at("instruction", k=True))

    # -- Sums ---------------------------------------------------------------------------------------------------------

    @cached_property
    def lane(self) -> Loop:
        """The loop over the lanes of a vector."""
        return next(x for x in self.made if x.level == "lane")

    @cached_property
    def has_lanes(self) -> bool:
        """Whether a thread computes vectors of sums; otherwise threads of groups compute sums, or fragments of them."""
        return any(x.level == "lane" for x in self.made)

    @property
    def along_k(self) -> bool:
        """Whether vectors run along a reduction loop."""
        return self.lane.role == "k"

    @property
    def filled(self) -> int:
        """The number of lanes in use."""
        return self.lane.extent

    @property
    def lanes(self) -> int:
        """Elements of an accumulator."""
        return self.unit.lanes

    @cached_property
    def pixels(self) -> tuple[Loop, ...]:
        """Loops over the pixels of a register tile. Empty if lanes are pixels: a weight then serves all vectors of
        pixels, which stay in registers.
        """
        return tuple(x for x in self.at("register") if x.role == "m" and self.lane.role != "m")

    @cached_property
    def vectors(self) -> tuple[Loop, ...]:
        """The other loops over the vectors of a register tile."""
        return tuple(x for x in self.at("register") if x not in self.pixels)

    @cached_property
    def rows(self) -> tuple[Loop, ...]:
        """Loops over the rows of a fragment."""
        return self.at("instruction")

    @cached_property
    def runs(self) -> tuple[Loop, ...]:
        """Loops over adjacent elements that a thread loads or stores at once."""
        return tuple(x for x in self.made if x.level == "instruction")

    @cached_property
    def accumulators(self) -> tuple[Loop, ...]:
        """Loops over the sums of a thread or a warp: over accumulators and their elements."""
        return (*self.at("warp", "register"), *self.at("instruction"), *self.at("lane"))

    @cached_property
    def register(self) -> tuple[Loop, ...]:
        """Loops within the register tile."""
        return (*self.pixels, *self.vectors, *self.rows, self.lane)

    @property
    def units(self) -> tuple[Loop, ...]:
        """The loop whose iterations may be units of longer vectors: the loop over vectors, if they are scalable."""
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
    def unrolled(self) -> tuple[Loop, ...]:
        """Loops that are unrolled; for fragments, the loops over fragments. A thread of a group has straight-line code
        for its sums, and for as many terms as fit.
        """
        if not self.has_lanes:
            return _straight(self.accumulators, self.terms)
        if self.rows:
            return (*self.pixels, *self.vectors)
        return (*self.register, *self.terms, *self.at("register", k=True))

    @property
    def taps_of_rows(self) -> tuple[Loop, ...]:
        """The order of a tile's loops over rows and over taps, if lanes are pixels; empty unless the tile has both.

        A vector of the source is read for all taps of all rows that use it in sequence. Several channels have more
        weights than registers hold beside their sums, so each weight is read for all rows in sequence.
        """
        rows = tuple(x for x in self.vectors if x.role == "m" and x.of != self.lane.of)
        taps = self.at("register", k=True)
        if self.lane.role != "m" or not rows or not taps:
            return ()
        others = [x for x in self.vectors if x not in rows]
        channels = [x for x in others if x.role == "n" and x.extent > 1]
        if channels:
            return (*taps, *channels, *rows, *(x for x in others if x not in channels))
        return (*rows, *taps, *others)

    @property
    def widths(self) -> tuple[tuple[Loop, int], ...]:
        """The loops with room for a whole vector or fragment regardless of their extent, and that room."""
        if not self.has_lanes:
            return ()
        filled = self.terms if self.unit.dot else ()
        return ((self.lane, self.lanes), *((x, self.unit.rows) for x in self.rows), *((x, x.extent) for x in filled))

    @property
    def packed_widths(self) -> tuple[tuple[Loop, int], ...]:
        """The `widths` of packed operands; the channels of a register tile that fills no whole number of vectors are
        contiguous.
        """
        widths = self.widths
        is_partial = bool(widths) and self.lane.role == "n" and len(self.lane.dims) == 1 and self.filled < self.lanes
        return widths[is_partial:]

    @property
    def term_order(self) -> tuple[Loop, ...]:
        """The register tile's loops including the terms, in the order that instructions require."""
        if self.rows:
            groups, terms = self.terms
            return (*self.pixels, *self.vectors, *self.rows, groups, self.lane, terms)
        inner = (self.lane, *self.terms) if self.unit.dot else (*self.terms, self.lane)
        return (*self.pixels, *self.vectors, *inner)

    @cached_property
    def to_tile(self) -> tuple[Loop, ...]:
        """Loops around the register tile, including the loops ``depth`` of the reduction, outermost first."""
        return (*self.outside, *(self.depth if self.within else ()), *self.within)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """All loops, outermost first: around the register tile, the reduction, and within the register tile."""
        if not self.has_lanes:
            return (*self.grid, *self.steps, *self.threads, *self.terms, *self.accumulators)
        return (*self.around, *self.reduce, *(self.term_order if self.terms else self.register))


def _straight(sums: Sequence[Loop], terms: Sequence[Loop]) -> tuple[Loop, ...]:
    """Return the loops over ``sums``, and over the innermost ``terms`` whose products fit into straight-line code."""
    fitting = straight_terms(prod(x.extent for x in sums), [x.extent for x in reversed(terms)])
    return (*sums, *(x for x, _ in zip(reversed(terms), range(fitting))))


def straight_terms(sums: int, extents: Iterable[int]) -> int:
    """Return how many of the reduction loops with ``extents``, innermost first, are straight-line code of a thread with
    some ``sums``.
    """
    every = accumulate(extents, mul)
    return len([*takewhile(lambda terms: terms <= UNROLLED_TERMS and sums * terms <= UNROLLED, every)])
