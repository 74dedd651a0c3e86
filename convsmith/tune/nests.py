"""The nests of a problem among which the model chooses: lanes, fused loops, register tiles, orders, packed operands.

The loop along the vector lanes is one over output channels if there are enough of them; otherwise over input channels
(partial sums, added at the end), groups, groups fused with their channels, or pixels. How long a nest takes is a
question for the model (`tune/costs/model.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace as with_fields
from itertools import product
from math import prod

from convsmith.arith.evaluate import evaluate
from convsmith.ir.index import FloorDiv, Index, Mod, Var, is_true
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import DEFAULTS
from convsmith.schedule.loops import Loops, fused_chain
from convsmith.schedule.registers import register_file, shares_scalars
from convsmith.statement.parts import PART, splits
from convsmith.statement.phases import Phase, phases
from convsmith.statement.statement import Dim, View, view_steps
from convsmith.tune.blocks import blocked
from convsmith.tune.copied_rows import in_blocks_of_copied_rows
from convsmith.tune.costs.code_size import BORDERS, operations
from convsmith.tune.costs.model import Model
from convsmith.tune.costs.windows import STRIDE
from convsmith.tune.fragments import fragment_tiles
from convsmith.tune.parts import parts_of_sums
from convsmith.tune.register_tiles import (
    Family,
    fitting,
    gathers,
    gradients_of_taps,
    rows_of_vectors,
    runs_of_taps,
    vectors_by_pixels,
    windows,
)

FEW_LANES = 4
"""Minimum number of pixels along the lanes of a depthwise gradient whose groups are not adjacent."""
FEW_VECTORS = 3
"""Vectors of channels on one side of a gradient of weights below which lanes along its pixels are tried."""
PAIR = 2
"""Number of channels that a step of a sum reads if lanes are pixels."""
MAX_BORDERED = 2500
"""Maximum number of multiply-adds, in all pieces of its code, of a register tile whose vectors cross borders."""
CUT_TAPS = 16
"""Maximum number of taps whose first and last vectors of pixels have separate code."""
FEW_RESULTS = 4
"""Maximum number of channels of a result in residue classes whose rows meet borders in place of a copy without any."""
KEPT_OPERATIONS = 8
"""Minimum number of operations of an epilogue whose vectors of channels stay in registers while pixels of one tap pass.
"""
MAX_PIECES = 16
"""Maximum number of pieces of a loop whose tiles differ in their taps: each has code of its own."""


class Nests:
    """The nests of one problem that the model compares."""

    packs_source = False
    """Whether all nests read a packed source, whatever its layout is."""
    unfolded: tuple[str, ...] = ()
    """The operands that are unfolded before they are packed."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.problem, self.st, self.target, self.unit = model.problem, model.st, model.target, model.unit
        self.lanes, self.sizes, self.classes, self.phases = model.lanes, model.sizes, model.classes, model.phases
        self.n, self.k, self.batch, self.images, self.src = model.n, model.k, model.batch, model.images, model.src
        self.bytes = model.bytes

    def fusions(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs of pixel loops that are contiguous in source and destination, innermost first."""
        names = [d.name for d in self.st.of("m")]
        if self.model.is_copied and not self.packs_source:
            return ()
        out: list[tuple[str, str]] = []
        inner = names[-1]
        for a, b in zip(reversed(names[:-1]), reversed(names[1:])):
            if not self.is_even(a, b) or not is_true(self.st.a.mask):
                break
            out.append((a, inner))
            inner = self.model.fuse(a, inner)
        return tuple(out)

    def is_even(self, outer: str, inner: str) -> bool:
        """Return whether a step of a pixel loop is one past the end of the next one, in source and destination."""
        return all(s.get(Var(outer), 0) == self.sizes[inner] * s.get(Var(inner), 0) for s in (self.src, self.model.dst))

    def joined_rows(self) -> tuple[tuple[str, str], ...]:
        """Return the fusion of the rows of a copy for fragments, or of one with widened bytes, so that register tiles
        have pixels of several rows and fewer columns: of rows without borders, which follow each other in the copy, or
        of rows each of which fills most of a fragment. Empty if there is none, and where other factors are vectors.
        """
        is_of_fragments = self.unit.rows > 1 and self.unit.factor_file == self.unit.file
        if not (is_of_fragments or self.unit.copied) or not self.model.is_copied or self.packs_source or self.classes:
            return ()
        *outer, row = [d.name for d in self.st.of("m")]
        if self.images in outer[-1:] or self.sizes[outer[-1]] == 1:
            return ()
        fills = is_of_fragments and self.unit.rows // 2 < self.sizes[row] <= self.unit.rows
        return self.chain((outer[-1], row)) if fills or self.runs_on(outer[-1], row) else ()

    def runs_on(self, outer: str, row: str) -> bool:
        """Return whether the rows of a copy follow each other without borders."""
        return self.is_even(outer, row) and Var(row) not in variables_of(self.st.a.mask)

    def pixels(self) -> list[str]:
        """Return the pixel loops after fusing, outermost first."""
        names = [d.name for d in self.st.of("m")]
        for a, b in self.fusions():
            names = [*names[:-2], self.model.fuse(a, b)]
        return names

    def innermost(self, pixels: list[str]) -> str:
        """Return the last of the pixel loops that runs more than once, or the last of all."""
        return next((n for n in reversed(pixels) if self.sizes.get(n, 2) > 1), pixels[-1])

    def lane_choices(self) -> Iterator[tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]]:
        """Yield candidates for the lane loop, the fusions that they need, and the reduction loops that are fused."""
        pixels = self.fusions()
        yield from ((lane, (*needed, *pixels), ()) for lane, needed in self.lane_loops())
        if rows := self.joined_rows():
            yield self.n, rows, ()
        if self.model.copies_converted and pixels:
            yield self.n, tuple(pair for pair in pixels if self.images not in pair), ()
            yield self.n, (), ()
        if tap := self.merged_taps():
            yield self.n, self.chain((tap, self.k)), (tap, self.k)

    def chain(self, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        """Return the fusions that make adjacent loops one loop."""
        _, pairs = fused_chain(names)
        for a, b in pairs:
            self.model.fuse(a, b)
        return pairs

    def lane_loops(self) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
        """Yield candidates for the lane loop, with the fusions that they need."""
        columns, g = self.sizes[self.n], self.batch
        if self.phases:
            yield from self.phase_lanes()
            return
        channels = [d.size for d in self.st.dims if not d.axis and d.sort != "images" and d.name != g]
        depthwise = bool(g) and prod(channels) == 1
        yield (g if depthwise else self.n), ()
        whole = not self.unit.dot or not self.sizes[self.k] % self.unit.terms
        few = 2 * columns <= self.lanes and self.src.get(Var(g), 0) <= self.lanes
        if g and not depthwise and whole and few and not self.groups_cross_blocks():
            yield self.model.fuse(g, self.n), ((g, self.n),)
        if self.unit.dot:
            return
        pixel = self.innermost(self.pixels())
        inner = Var(self.model.dims[pixel][-1])
        adjacent = self.src.get(inner) == 1 or self.in_blocks(inner)
        written = not self.st.constant and self.model.dst.get(inner) == 1 and inner in self.src
        if (adjacent or written) and inner not in variables_of(self.st.a.mask):
            yield pixel, ()
        elif self.model.along_rows(pixel):
            yield pixel, ()
        if self.target.vectors.scalable and self.st.constant and columns >= self.lanes:
            return  # vectors of channels are scaled, those of terms have one unit
        short = columns % self.lanes and columns < 4 * self.lanes
        if not self.st.constant:
            short = short or min(columns, self.sizes[self.st.of("m")[-1].name]) < FEW_VECTORS * self.lanes
        near = 0 < self.src.get(Var(self.k), 0) <= (1 if self.st.constant else STRIDE)
        near = near or (self.st.constant and self.in_blocks(Var(self.k)))
        gathered = depthwise and not self.st.constant and self.src.get(Var(g), 0) > 1  # vectors of groups are gathered
        fills = self.sizes[self.k] >= min(self.lanes // 2, FEW_LANES if gathered else self.lanes) and near
        if short and fills and self.cut_apart() <= CUT_TAPS:
            yield self.k, ()

    def phase_lanes(self) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
        """Yield loops of lanes along phases of the innermost axis, alone or fused with the adjacent channels of the
        result.
        """
        phase = self.phases[-1].name
        apart, channels = self.model.dst.get(Var(phase)), self.sizes[self.n]
        if apart == 1:
            yield phase, ()
        elif apart == channels and self.model.dst.get(Var(self.n)) == 1:
            yield self.model.fuse(phase, self.n), ((phase, self.n),)

    def candidate_phases(self) -> tuple[Phase, ...]:
        """Return the phases that may fill the lanes that channels leave empty."""
        columns = self.sizes[self.n]
        if not self.classes or not columns % self.lanes or columns >= 4 * self.lanes:
            return ()
        return tuple(p for p in phases(self.st).values() if p.count > 1)

    def groups_cross_blocks(self) -> bool:
        """Return whether elements of a vector of whole groups may have no constant distances, because a vector, or the
        channels that a group reduces over, may begin within a block of channels and end in the next one.
        """
        groups, lanes = self.lanes // self.sizes[self.n], {Var(self.batch), Var(self.n)}
        views = (*self.st.factors, self.st.c)
        for block in (a for view in views for a in view_steps(view) if isinstance(a, Mod | FloorDiv)):
            step = dict(block.num.terms).get(Var(self.batch), 0)
            runs = [groups * step, *([step] if variables_of(block) - lanes else [])]
            if step and any(run % block.den and block.den % run for run in runs):
                return True
        return False

    def in_blocks(self, channel: Var) -> bool:
        """Return whether vectors of a ``channel`` of the source are within its blocks in memory."""
        within = (a for a, step in self.src.items() if isinstance(a, Mod) and a.num is channel and step == 1)
        return any(not a.den % self.lanes for a in within)

    def gathers(self, lane: str) -> bool:
        """Return whether adjacent channels of several groups are gathered into the lanes of a vector."""
        adjacent = self.model.dims[lane] == (self.batch, self.n) and self.src.get(Var(self.k)) == 1
        return adjacent and not self.unit.dot and 1 < self.sizes[self.k] < self.lanes

    def cut_apart(self) -> int:
        """Return the number of taps for which a row of pixels, as lanes, ends at a different position."""
        axes = {d.axis for d in self.st.of("k") if d.name == self.k} - {""}
        masked = variables_of(self.st.a.mask)
        return prod(d.size for d in self.st.of("m") if d.axis in axes and Var(d.name) in masked)

    def bordered_pieces(self, tile: dict[str, int]) -> int:
        """Return the largest number of pieces into which the borders of an image split a loop over tiles of several
        pixels: tiles at a border have different taps each. 1 where no border does, or `MAX_PIECES` are too few.
        """
        if self.classes or self.st.sizes:
            return 1
        found = 1
        for coordinate, size in zip(self.st.a.coords, self.st.a.layout.shape):
            own = variables_of(coordinate)
            pixels = next((d for d in self.st.of("m") if Var(d.name) in own and tile.get(d.name, 1) > 1), None)
            if pixels is None or Var(pixels.name) not in variables_of(self.st.a.mask):
                continue

            def at(pixel: int, last: bool, coordinate: Index = coordinate, dim: Dim = pixels) -> int:
                values = {v: (self.sizes[v.name] - 1) * last for v in variables_of(coordinate)}
                return int(evaluate(coordinate, {**values, Var(dim.name): pixel}))

            step = at(1, False) - at(0, False)
            if step <= 0:
                continue
            low, high = sorted((at(0, False), at(0, True)))  # taps of a gradient move backwards
            before = min(max(-(low // step), 0), pixels.size)
            within = min(max((size - 1 - high) // step + 1, 0), pixels.size)
            width = tile[pixels.name]
            pieces = -(-before // width) + 1 + -(-pixels.size // width) - within // width
            found = max(found, pieces)
        return found if found <= MAX_PIECES else 1

    def merged_taps(self) -> str:
        """Return the tap loop that, fused with few channels, leaves fewer terms of an instruction empty; empty if there
        is none.

        In a copy without borders, both loops together step through contiguous memory.
        """
        channels, terms = self.sizes[self.k], self.unit.terms
        vectors = self.unit.dot and self.unit.rows == 1
        is_copied = self.model.is_copied and not self.unit.copied
        if not vectors or not channels % terms or is_copied or self.classes or len(self.st.reduce) < 2:
            return ""
        tap = self.st.reduce[-2]
        even = self.src.get(Var(self.k)) == 1 and self.src.get(Var(tap)) == channels
        return tap if even and self.images and self.sizes[tap] > 1 else ""

    def realisation(self, lane: str, joined: bool, loops: Loops, tile: dict[str, int]) -> str:
        """Return how the source is read; ``joined`` taps and channels step through a copy without borders as one."""
        if joined or (self.model.is_copied and lane != self.batch):
            return "pad_copy"
        return "pad_copy" if self.model.bordered(lane) and not self.meets_borders(loops, lane, tile) else "peel"

    def meets_borders(self, loops: Loops, lane: str, tile: dict[str, int]) -> bool:
        """Return whether vectors of pixels that cross borders load the lanes that exist.

        Each tap along the row then has separate code for the first, the last and the other tiles of both axes, and in
        each residue class, of which those of many channels read a copy without borders often enough. Masks of the
        lanes make code of their kinds of tiles longer, which counts less than copying an image that loads prefetch.
        """
        if not 0 < self.target.masked_bytes <= self.bytes or not self.model.along_rows(lane):
            return False
        axis = loops.axes[lane]
        taps = prod(loops.extents[n] for n in loops.of("k") if loops.axes[n] == axis and n not in tile)
        counted = tile if self.prefetches_image() else (lane, *tile)
        tiles = prod(min(-(-loops.extents[n] // tile.get(n, 1)), BORDERS) for n in counted if loops.axes[n])
        copies = prod(count for name, count in self.classes.items() if name not in self.st.reduce)
        products = prod(tile.values()) // self.lanes * copies
        reach = max(tile[lane] * self.model.row_step(lane), 1) * (BORDERS - 1)
        if self.model.row_step(lane) > 1 and tile[lane] > self.lanes and self.overhang(lane) > STRIDE:
            return False  # neighbouring taps miss the same lanes, and `partition` makes one piece of them
        few = taps <= DEFAULTS["pieces"]
        if copies > 1:
            most = CUT_TAPS if self.target.has_masked_stores and self.bytes > 1 else CUT_TAPS // 2
            few = taps * copies <= most and self.sizes[self.n] <= FEW_RESULTS
        return few and self.overhang(lane) <= reach and taps * tiles * products <= MAX_BORDERED

    def prefetches_image(self) -> bool:
        """Return whether loads of vectors of pixels prefetch the lines of images of several channels, which the
        second-level cache does not hold, and masks take no registers of vectors.
        """
        a, least = self.st.a, self.target.costs.prefetched_pixels
        image = prod(a.layout.shape[1:]) * self.bytes // self.sizes.get(self.batch, 1)
        is_far = 0 < least <= a.bytes and image > self.target.l2.bytes and self.sizes[self.k] > 1
        return is_far and self.target.has_masked_stores

    def overhang(self, lane: str) -> int:
        """Return the elements of a row's windows before its first element and after its last."""
        pixel = Var(self.model.dims[lane][-1])
        dim = next(n for n, x in enumerate(self.st.a.coords) if pixel in variables_of(x))
        names = sorted(variables_of(self.st.a.coords[dim]), key=lambda v: v.name)
        corners = product(*((0, self.sizes[v.name] - 1) for v in names))
        found = [int(evaluate(self.st.a.coords[dim], dict(zip(names, corner)))) for corner in corners]
        low, high = min(found), max(found)
        return max(0, -low) + max(0, high - self.st.a.layout.shape[dim] + 1)

    def order(self, loops: Loops, lane: str, threads: int = 1) -> tuple[str, ...]:
        """Return the order of loops: images outermost; then channels, whose weights stay in the cache while pixels
        stream, or pixels if all weights stay. Pixels of one tap pass each vector of a long epilogue.

        A result whose vectors are scattered, or that is as large as weights, is written in the order of memory.
        """
        names = [n for n in loops.extents if loops.kinds[n] != "k"]
        if self.model.stride_of(lane) > 1 or not self.st.constant:
            return tuple(sorted(names, key=lambda n: -self.model.stride_of(n)))
        groups = [self.batch] if self.model.bordered(lane) and self.batch in names else []
        pixels = [n for n in names if loops.kinds[n] == "m" and n != self.images]
        channels = [n for n in names if n not in pixels and n != self.images]
        far = lane == self.batch and self.apart(lane) > self.model.row_step(self.model.dims[pixels[0]][-1])
        kept = lane == self.batch and self.model.taps == 1 and operations(self.problem, self.st) >= KEPT_OPERATIONS
        inner = [*pixels, *channels] if self.model.pixels_first() and not (far or kept) else [*channels, *pixels]
        if self.model.turns_pages(lane) and not self.model.bordered(lane):
            inner = [*channels, *pixels]
        if self.model.bordered(lane) and threads > 1 and not groups:
            inner = [*pixels, *channels]  # each thread copies rows once
        outer = [*(n for n in names if n == self.images), *groups]
        return (*outer, *(n for n in inner if n not in outer))

    def apart(self, lane: str) -> float:
        """Return the elements of the source between adjacent vectors along ``lane``; in blocks, those in the mean."""
        last = self.sizes[lane] - 1
        return self.lanes * self.model.moved(lane, last) / last

    def shared_terms(self, lane: str) -> tuple[tuple[str, int], ...]:
        """Return the terms that are placed innermost because gathers of adjacent channels share their vectors.

        With lanes along pixels that are read once, two channels are loaded at a time, so that more loads are in flight.
        """
        channels = self.sizes[self.k]
        if self.unit.dot:
            return ((self.k, self.unit.terms),) if lane != self.batch else ()
        if not self.gathers(lane):
            return ((self.k, PAIR),) if self.reads_pairs(lane) else ()
        return ((self.k, next(q for q in (8, 6, 4, 3, 2, 5, 7, 1) if q == channels or not channels % q)),)

    def reads_pairs(self, lane: str) -> bool:
        """Return whether a step may read two channels of pixels along the lanes, each of which is read once.

        At a border, code for single vectors would keep the weights of both channels in registers from one to the next.
        """
        along = any(d.name == self.model.dims[lane][-1] for d in self.st.of("m")) and self.st.constant
        plain = self.model.reads_once() and not (self.unit.dot or self.classes or self.phases)
        plain = plain and not self.model.bordered(lane)
        return along and plain and not self.sizes[self.k] % PAIR

    def taps_of_lines(self, lane: str, taps: Sequence[str]) -> list[str]:
        """Return the last of ``taps``, whose elements share the source's cache lines, if each channel has its own
        lines.

        It runs within the channels, so that their lines are read once for all its taps.
        """
        apart = self.src.get(Var(self.k), 0) * self.bytes >= self.target.l1.line and self.st.constant
        plain = apart and not self.unit.dot and not self.classes and not self.model.is_copied
        along = any(d.name == lane for d in self.st.of("n"))
        return [n for n in taps[-1:] if plain and along and self.sizes[n] > 1]

    def packed(self, lane: str) -> tuple[str, ...]:
        """Return the operands that are packed: constant operands, and operands whose vectors are scattered in memory.
        """
        b, steps = self.st.b, view_steps(self.st.b)
        single = all(Var(name) not in steps for name in self.model.dims[lane]) and not self.crosses(b, lane)
        inner = steps.get(Var(self.n)) == 1 and steps.get(Var(self.batch), 0) == self.sizes[self.n]
        ready = single or steps.get(Var(lane)) == 1 or (inner and self.model.dims[lane] == (self.batch, self.n))
        inner_pixel = next((d.name for d in self.st.of("m") if d.name == self.model.dims[lane][-1]), "")
        apart = inner_pixel and not (self.phases or self.classes) and self.src.get(Var(inner_pixel)) != 1
        apart = apart and self.model.reads_once() and not self.model.bordered(lane)
        apart = apart and not self.in_blocks(Var(inner_pixel))
        a = (self.st.a.name,) if self.st.a.requantised is not None or apart else ()
        return (*a, b.name) if self.st.constant or not ready else a

    def crosses(self, view: View, lane: str) -> bool:
        """Return whether vectors along ``lane`` cross blocks of channels, because a group does not begin with one.

        That is no loss where multiply-adds are fewer than the cycles of a call that packs.
        """
        if self.problem.flops_dense < 2 * self.target.costs.pack_call:
            return False
        moving = ({v.name for v in variables_of(e) if self.sizes.get(v.name, 1) > 1} for e in view_steps(view))
        return any(lane in names and len(names) > 1 for names in moving)

    def rows_of_fragments(self, loops: Loops) -> str:
        """Return the loop over pixels that the rows of fragments run along: the innermost one of several pixels."""
        pixels = loops.of("m")
        return next((n for n in reversed(pixels) if loops.extents[n] > 1), pixels[-1])

    def tiles(self, loops: Loops, lane: str) -> Iterator[dict[str, int]]:
        """Yield register tiles that fit the registers; where vectors are scalable, those that leave units for longer
        vectors, if there are any.
        """
        if self.unit.rows > 1:
            rows = self.n if loops.kinds[lane] == "m" else self.rows_of_fragments(loops)
            file = register_file(self.target, self.unit)
            count = file.count // self.unit.registers_of_fragment(file)
            pair = next(iter(self.joined_rows()), None)
            if pair is None or self.model.fuse(*pair) != rows or self.runs_on(*pair):
                tiles = fragment_tiles(rows, loops.extents[rows], lane, loops.extents[lane], self.unit, count)
                return self._with_units(loops, lane, tiles, self.unit.lanes)
            row = self.sizes[pair[1]]  # each fragment is one row: as many as the tile's pixels need
            found = fragment_tiles(
                rows, loops.extents[rows], lane, loops.extents[lane], with_fields(self.unit, rows=row), count
            )
            even = (x for x in found if x[rows] == row * -(-x[rows] // self.unit.rows))
            return self._with_units(loops, lane, even, self.unit.lanes)
        filled = self.model.filled(lane)
        found = fitting(self._families(loops, lane), loops, lane, filled, self._registers(loops, lane))
        return self._with_units(loops, lane, found, filled)

    def _with_units(
        self, loops: Loops, lane: str, found: Iterator[dict[str, int]], filled: int
    ) -> Iterator[dict[str, int]]:  # fmt: skip
        """Yield the tiles ``found``; where vectors are scalable, those that leave units, if there are any."""
        if not self.target.vectors.scalable:
            return found
        every = [*found]
        return iter([x for x in every if self._leaves_units(loops, lane, x.get(lane, filled), filled)] or every)

    def _leaves_units(self, loops: Loops, lane: str, width: int, filled: int) -> bool:
        """Return whether tiles of ``width`` along ``lane`` leave units for longer vectors."""
        count, rest = divmod(loops.extents[lane], width)
        plain = loops.kinds[lane] in ("batch", "n") and not rest
        return width <= filled or (plain and count >= self.target.costs.scalable_units)

    def _registers(self, loops: Loops, lane: str) -> int:
        """Return the registers for tiles, which leave one of them to the factor that all lanes share."""
        return self.target.registers + shares_scalars(loops, lane, self.target)

    @property
    def _sums(self) -> int:
        """The vectors of sums that registers of their own hold; 0 if the registers of factors hold them."""
        file = register_file(self.target, self.unit)
        return 0 if file is self.target.vectors else file.count // self.unit.lanes

    def _families(self, loops: Loops, lane: str) -> Iterator[Family]:
        """Yield the families of register tiles of vectors along ``lane``."""
        lanes, registers = self.model.filled(lane), self._registers(loops, lane)
        if lane == self.batch:
            yield from windows(loops, lane, lanes, self.src, self.target.sums_in_turn)
            if self.st.constant and dtype(self.st.a.dtype).bits < dtype(self.st.acc).bits:  # each load widens elements
                yield from runs_of_taps(loops, lane, lanes, self.src)
            if not self.st.constant:
                yield from gradients_of_taps(loops, lane, lanes)
        if self.gathers(lane):
            yield from gathers(loops, lane, lanes, self.k)
        if loops.kinds[lane] == "m" and self.model.along_rows(lane):
            yield from rows_of_vectors(loops, lane, lanes, self.n, registers)
        tap = next((n for n in reversed(self.st.reduce[:-1]) if n not in self.classes), "")
        unrolled = tap if loops.extents.get(tap, 1) > 1 else ""
        pixels = loops.of("m")
        if self.st.constant and loops.kinds[lane] == "n":  # images of one pixel share the weights of a tile
            pixels = [n for n in pixels if loops.extents[n] > 1] or pixels[-1:]
        along_k = lane == self.k
        yield from vectors_by_pixels(loops, pixels, lane, lanes, self.n, along_k, unrolled, registers, self._sums)

    def complete(self, loops: Loops, config: Config) -> Config:
        """Return ``config`` with its reduction in parts for threads, or otherwise with blocks of channels, or of copied
        rows, if any of these is faster.
        """
        splittable = splits(self.model.whole)
        whole = self.model.whole
        if splittable and (parts := parts_of_sums(self.problem, whole, loops, config, self.unit, self.target)):
            return config.changed(split=parts, order=(PART, *config.order))
        if not self.st.constant:
            return config
        return in_blocks_of_copied_rows(self.model, loops, blocked(whole, loops, config, self.target))
