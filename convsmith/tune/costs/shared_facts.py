"""The facts of a problem on a machine that all candidates share: lanes, borders, strides, places of elements."""

from __future__ import annotations

from collections import Counter
from math import gcd, prod
from typing import Any

from convsmith.arith.evaluate import evaluate
from convsmith.diag.forking import cached_property
from convsmith.ir.index import FloorDiv, Mod, Var, is_true
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.problem.post_ops import SumPostOp
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.copies import has_groups_apart
from convsmith.schedule.loops import Loops, fused_name
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.registers import filled_lanes
from convsmith.schedule.transposed_results import MIN_NEIGHBOURS, transposes
from convsmith.statement.phases import Phase, phased
from convsmith.statement.statement import Statement, view_steps
from convsmith.tune.costs.borders import Presence, presence
from convsmith.tune.costs.code_size import operations
from convsmith.tune.costs.traffic import Traffic
from convsmith.tune.costs.windows import STRIDE, fraction_read


class SharedFacts:
    """The facts of ``problem`` that all candidates with ``unit`` share; ``along`` are the phases of its pixels."""

    in_place: tuple[str, ...] = ("peel",)
    """Realisations under which steps read each channel of a pixel where it is."""

    def __init__(
        self, problem: Problem, st: Statement, target: Machine, unit: ProductShape, along: tuple[Phase, ...] = ()
    ) -> None:
        self.problem = problem
        self.target = target
        self.phases = along
        self.whole = st
        self.st = st = phased(st, tuple(p.pixel for p in along))
        self.bytes = dtype(st.a.dtype).bytes
        self.unit = unit
        self.src, self.dst = view_steps(st.a), view_steps(st.c)
        self.classes = st.residues
        near = self.src.get(Var(st.reduce[-1])) == 1 or (unit.rows == 1 and self.terms_in_blocks())
        apart = st.constant and self.unit.dot and not near
        self.images = next((d.name for d in st.of("m") if d.sort == "images"), "")
        absent = unit.rows > 1 and not st.present_by_class
        self.is_copied = (absent or apart or bool(unit.copied)) and bool(self.images)
        if apart and not self.is_copied and st.acc != "s32":
            self.unit = ProductShape.plain(st, target)
        self.lanes = self.unit.lanes
        self.product = self.unit.name if self.unit.name in target.prices else "multiply_add"
        narrow = dtype(st.a.dtype).kind == "float" and st.a.dtype != st.acc
        self.converts = st.constant and self.unit.converts and narrow
        self.sizes = st.extents
        self.dims: dict[str, tuple[str, ...]] = {d.name: (d.name,) for d in st.dims}
        self.n = st.n
        self.batch = next((d.name for d in reversed(st.of("batch"))), "")
        self.k = st.reduce[-1]
        self.terms = prod(d.size for d in st.of("k")) // self.reduction_classes()
        self.taps = prod(d.size for d in st.of("k") if d.sort == "taps") // self.reduction_classes()
        self.weight_bytes = dtype(st.acc).bytes if self.converts else self.bytes
        """Bytes of an element of packed weights; those of 16-bit floats are converted where no dot product reads them.
        """
        self.traffic = Traffic(st, target)
        self._row_steps: dict[str, int] = {}
        self._filled: dict[tuple[str, ...], int] = {}
        self._bordered: dict[str, bool] = {}
        self._counts: dict[tuple[tuple[int, int], ...], tuple[int, ...]] = {}
        self.tiles: dict[tuple[object, ...], list[Any]] = {}
        """The register tiles of configs, counted by their sizes (`tune/costs/tile_counts.py`)."""
        self._evicts: dict[tuple[object, ...], bool] = {}
        self._at_border: dict[tuple[object, ...], tuple[int, int]] = {}
        self._windows: dict[tuple[object, ...], float] = {}
        self._lines: dict[tuple[object, ...], float] = {}
        """Cycles of windows that wait for no cache line, and cycles of waiting for lines, by config."""
        self._neighbours: dict[tuple[str, ...], str] = {}
        """The loop along which neighbours of the result lie, where tiles are transposed, by lane loop and tile."""

    def terms_in_blocks(self) -> bool:
        """Return whether the terms that an instruction adds up are adjacent in a source whose channels are in blocks.

        Blocks, and groups of channels that begin within a block, are then a multiple of these terms.
        """
        channel = Var(self.st.reduce[-1])
        atoms = [(atom, step) for atom, step in self.src.items() if channel in variables_of(atom)]
        blocks = [(atom, step) for atom, step in atoms if isinstance(atom, Mod | FloorDiv)]
        within = [step for atom, step in blocks if isinstance(atom, Mod)]
        begins = (n for atom, _ in blocks for v, n in atom.num.terms if v != channel)
        sizes = (atom.den for atom, _ in blocks)
        whole = not any(n % self.unit.terms for n in (*begins, *sizes, *(atom.num.const for atom, _ in blocks)))
        return whole and within == [1] and len(blocks) == len(atoms)

    def along_rows(self, pixel: str) -> bool:
        """Return whether vectors of pixels run along rows of a result and of a source, which may have borders or a
        stride.
        """
        if not self.st.constant or self.phases or self.dims[pixel] != (pixel,) or self.stride_of(pixel) != 1:
            return False
        step = self.row_step(pixel)
        packed = step > 1 and self.reads_once() and not self.bordered(pixel)
        if step != 1 and not packed and not (step == STRIDE and self.window(step) <= self.target.l1.kept):
            return False
        if not self.bordered(pixel):
            return True
        is_masked = 0 < self.target.masked_bytes <= self.bytes  # a copy cannot hold the zero point in absent elements
        return not (self.st.a.requantised is not None or self.st.sizes) and (is_masked or not self.st.shifted)

    def row_step(self, pixel: str) -> int:
        """Return the elements of the source between adjacent pixels; with a stride that must divide them, of one
        residue class.
        """
        if pixel not in self._row_steps:
            self._row_steps[pixel] = self.moved(pixel, self.classes.get(pixel, 1)) - self.moved(pixel, 0)
        return self._row_steps[pixel]

    def reads_once(self) -> bool:
        """Return whether packing repeats no element for taps: pixels have one tap, or the result is that of weights."""
        return not self.st.constant or all(d.size == 1 for d in self.st.of("k") if d.axis)

    @cached_property
    def strided_access(self) -> bool:
        """Whether each channel of a pixel is on another cache line, and pixels have one tap."""
        apart = self.src.get(Var(self.k), 0) * self.bytes >= self.target.l1.line
        return self.st.constant and self.reads_once() and self.sizes[self.k] > 1 and apart and not self.phases

    def window(self, step: int) -> int:
        """Return the bytes of the source that two vectors of pixels, ``step`` elements apart, read in all rows of their
        taps.
        """
        rows = self.terms // next((d.size for d in reversed(self.st.of("k")) if d.axis), 1)
        return rows * 2 * step * self.lanes * self.bytes

    def joins_groups(self, config: Config) -> bool:
        """Return whether a padded copy makes groups adjacent that lie apart in memory, because they are lanes."""
        return config.realise == "pad_copy" and config.lane == self.batch and has_groups_apart(self.st, config)

    def bordered(self, lane: str) -> bool:
        """Return whether lanes along pixels cross borders, beyond which only a padded copy of the source has elements.
        """
        pixel = self.dims[lane][-1]
        if pixel not in self._bordered:
            along = any(d.name == pixel for d in self.st.of("m"))
            is_masked = Var(pixel) in variables_of(self.st.a.mask)
            self._bordered[pixel] = self.st.constant and along and not self.phases and is_masked
        return self._bordered[pixel]

    def filled(self, lane: str) -> int:
        """Return the lanes of a vector that are in use along a lane loop."""
        dims = self.dims[lane]
        if dims not in self._filled:
            self._filled[dims] = filled_lanes(self.st, dims, self.unit)
        return self._filled[dims]

    def lacking_terms(self, config: Config) -> float:
        """Return the fraction of the loads of a pixel's terms that lack some, because channels do not fill them."""
        channels, terms = self.sizes[self.k], self.unit.terms
        alone = self.unit.dot and self.unit.rows == 1 and config.tiles_at("k_step") == ((self.k, terms),)
        return 1 / -(-channels // terms) if alone and channels % terms else 0.0

    def columns(self, loops: Loops, lane: str) -> list[int]:
        """Return the numbers of columns along the lanes, of each run that vectors do not cross."""
        for p in self.phases:
            if p.name in self.dims[lane]:
                return [n * loops.extents[lane] // p.count for n in p.runs]
        return [loops.extents[lane]]

    def ways(self, loops: Loops, tile: dict[str, int]) -> int:
        """Return the maximum number of pixels of a register tile that fall into one set of the first-level cache."""
        return max(self._pixels_of_sets(loops, tile))

    def evicted_pixels(self, loops: Loops, tile: dict[str, int], pixels: int) -> float:
        """Return the number of pixels of a register tile that others evict from the first-level cache in each step, so
        that the next step loads their lines again: those of a set beyond its ways, of which weights need one.

        Of the tile, ``pixels`` are computed. Lines of a gradient's factors arrive in each step and need the added ways.
        """
        kept = self.target.l1.ways - 1 + (self.target.costs.added_ways if self.st.constant else 0)
        if pixels <= kept:
            return 0.0
        part = pixels / prod(tile.get(name, 1) for name in loops.of("m"))
        return sum(max(count * part - kept, 0.0) for count in self._pixels_of_sets(loops, tile))

    def _pixels_of_sets(self, loops: Loops, tile: dict[str, int]) -> tuple[int, ...]:
        """Return the number of pixels of a register tile that fall into each set of the first-level cache."""
        counts = {self.dims[name][-1]: tile.get(name, 1) for name in loops.of("m")}
        return self._sets(tuple((self.row_step(n), count) for n, count in counts.items() if count > 1))

    def evicts(self, loops: Loops, tile: dict[str, int], near: bool = False) -> bool:
        """Return whether the pixels under the windows of a register tile evict each other from the first-level cache.

        Then no tap finds elements there that another tap has read; ``near`` taps of a row are those that read the same
        pixels one after the other.
        """
        known = (near, *loops.extents, *tile.items())
        if known not in self._evicts:
            self._evicts[known] = self._is_evicted(loops, tile, near)
        return self._evicts[known]

    def _is_evicted(self, loops: Loops, tile: dict[str, int], near: bool) -> bool:
        steps: dict[str, int] = {}
        reach: dict[str, int] = {}
        for name in (*loops.of("m"), *loops.of("k")):
            axis, step = loops.axes[name], abs(self.row_step(self.dims[name][-1]))
            if axis and step:
                count = loops.extents[name] if loops.kinds[name] == "k" else tile.get(name, 1)
                if near and loops.kinds[name] == "k":
                    pixel = loops.of("m")[-1]
                    apart = abs(self.row_step(self.dims[pixel][-1])) if axis == loops.axes[pixel] else 0
                    count = min(count, max(apart // step, 1) + 1) if apart else 1
                steps[axis] = gcd(step, steps.get(axis, 0))
                reach[axis] = reach.get(axis, 0) + step * (count - 1)
        lines = tuple((step, reach[axis] // step + 1) for axis, step in steps.items())
        within = prod(count for _, count in lines) * self.target.l1.line <= self.target.l1.bytes
        return not within or max(self._sets(lines)) > self.target.l1.ways

    def first_of_taps(self, loops: Loops, tile: dict[str, int]) -> float:
        """Return the fraction of the loads of a register tile's windows that find no element which a tap before has
        read, where loops run over the taps of a row.
        """
        pixel = loops.of("m")[-1]
        tap = next((n for n in loops.of("k") if loops.axes[n] and loops.axes[n] == loops.axes[pixel]), "")
        if not tap or any(loops.kinds[n] == "k" for n in tile) or self.evicts(loops, tile, near=True):
            return 1.0
        return fraction_read(tile.get(pixel, 1), loops.extents[tap], self.row_step(pixel), self.row_step(tap))

    def _sets(self, lines: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
        """Return the number of elements that fall into each set of the first-level cache, given the number of elements
        and the step along each axis.
        """
        if lines not in self._counts:
            line, way, places = self.target.l1.line, self.target.l1.way, [0]
            for step, count in lines:
                places = [x + i * step * self.bytes for x in places for i in range(count)]
            self._counts[lines] = tuple(Counter(x % way // line for x in {x // line * line for x in places}).values())
        return self._counts[lines]

    def turns_pages(self, lane: str) -> bool:
        """Return whether lanes along pixels write a result whose channels are in pages of their own."""
        along = any(d.name == self.dims[lane][-1] for d in self.st.of("m"))
        return self.st.constant and along and self.stride_of(lane) == 1 and self.has_pages_of_channels

    @cached_property
    def has_pages_of_channels(self) -> bool:
        """Whether the result exceeds the caches, and its channels begin more than half a page apart, on more pages than
        keep their entries in the first table of addresses.
        """
        size, costs = dtype(self.st.c.dtype).bytes, self.target.costs
        far = prod(self.st.c.layout.shape) * size > costs.images_near and self.sizes[self.n] > costs.turned_pages
        return far and costs.page_turn > 0 and 2 * self.stride_of(self.n) * size > costs.page

    def transposed(self, lane: str, tile: dict[str, int], most: int) -> int:
        """Return the number of contiguous elements of the result that are written as a vector if tiles are transposed;
        otherwise 0.

        A tile has at most ``most`` elements.
        """
        key = (lane, *tile)
        if key not in self._neighbours:
            apart, names = self.dims[lane][-1], [n for n in tile if n != lane]
            found = (n for n in names if transposes(self.st, apart, self.dims[n][-1], self.lanes, self.target))
            fits = not self.phases and apart != self.k
            self._neighbours[key] = next(found, "") if fits else ""
        count = min(tile.get(self._neighbours[key], 0), most)
        return -(-count // -(-count // self.lanes)) if count >= MIN_NEIGHBOURS else 0

    def taps_of_a_row(self, config: Config) -> int:
        """Return the taps along a row, which read the same pixels unless the windows of pixels are copied."""
        along = {d.axis for d in self.st.of("m")[-1:]} - {""}
        return 1 if config.realise == "window_copy" else prod(d.size for d in self.st.of("k") if d.axis in along)

    def shares_rows(self, loops: Loops) -> bool:
        """Return whether taps read the same pixels of several rows, which one loop runs through."""
        along = {d.axis for d in self.st.of("m") if d.name in loops.dims[loops.of("m")[-1]]} - {""}
        return any(d.sort == "taps" and d.size > 1 and d.axis in along for d in self.st.of("k"))

    def footprint(self) -> int:
        """Return the bytes of all images and their results, or of the gradients of both."""
        images = (self.st.a, self.st.c) if self.st.constant else self.st.factors
        return sum(prod(v.layout.shape) for v in images) * self.bytes

    def reduction_classes(self) -> int:
        """Return the number of residue classes of reduction loops; each class of the result reads one of them."""
        return prod(m for name, m in self.classes.items() if name in self.st.reduce)

    @cached_property
    def inside(self) -> dict[str, Presence]:
        """The pixels of the result that each term of a sum finds inside the image, along loops that meet a border; none
        of a gradient of the weights.
        """
        return {} if self.phases or not self.st.constant or is_true(self.st.a.mask) else presence(self.st)

    @cached_property
    def classes_per_tap(self) -> int:
        """The residue classes of the result for each one that a tap meets: those that meet no single tap, or none of
        the taps whose distance shares a factor with the stride, are zero.
        """
        met = {d.axis: 1 if d.size == 1 else self.classes.get(d.name, 1) for d in self.st.of("k") if d.axis}
        return prod(max(self.classes.get(d.name, 1) // met[d.axis], 1) for d in self.st.of("m") if d.axis in met)

    def pixels_first(self) -> bool:
        """Return whether caches keep all weights, which are read again for each tile of pixels, or prefetches hide the
        latency of the second-level cache.
        """
        groups, cost = self.sizes.get(self.batch, 1), self.target.costs
        share = cost.weights_kept * (2 if self.classes else 1)  # the result then dominates the time
        size = groups * prod(d.size for d in self.st.of("n")) * self.terms * self.weight_bytes
        return size <= share or (cost.prefetches(size) and size <= self.target.l2.bytes)

    def stride_of(self, loop: str) -> int:
        """Return the elements of the result between adjacent iterations of a loop; for a fused loop, of its innermost
        dim.
        """
        return self.dst.get(Var(self.dims[loop][-1]), 1)

    def moved(self, loop: str, by: int) -> int:
        """Return the distance in the source, in elements, from the first iteration of ``loop`` to iteration ``by``."""
        values = {v: by * (v.name == loop) for e in self.src for v in variables_of(e)}
        return sum(c * int(evaluate(e, values)) for e, c in self.src.items())

    def fuse(self, a: str, b: str) -> str:
        """Return the name of the loop that results from fusing two loops."""
        name = fused_name(a, b)
        self.dims[name] = (*self.dims[a], *self.dims[b])
        return name

    def flip(self) -> tuple[str, ...]:
        """Return the operands that are flipped."""
        return tuple(view.name for view in (self.st.a, self.st.b) if view.flipped)

    @cached_property
    def operations(self) -> int:
        """The number of operations from a sum to the result's element; 1 where the statement's result is not that of
        the problem.
        """
        is_result = self.whole.c.name in {t.name for t in self.problem.tensors}
        return operations(self.problem, self.whole) if is_result else 1

    @cached_property
    def copies_converted(self) -> bool:
        """Whether vectors of channels of each image may be copied with elements of the type of sums."""
        near = next((b for b in self.st.a.layout.blocks if b.stride == 1), None)
        vectors = near is not None and near.dim == 1 and (self.st.a.layout.is_plain or not near.size % self.lanes)
        can = self.converts and self.target.costs.convert > 0 and bool(self.images) and vectors
        return can and not (self.classes or self.phases or self.target.vectors.scalable)

    @cached_property
    def copies_classes(self) -> bool:
        """Whether dot products read a copy whose residue classes pixels meet; others read each class where it lies."""
        return self.is_copied and bool(self.classes) and self.unit.dot and self.st.acc != "s32"

    @cached_property
    def adds_result(self) -> bool:
        """Whether sums are added to the previous contents of the result."""
        return any(isinstance(op, SumPostOp) and not op.array for op in self.problem.post_ops)
