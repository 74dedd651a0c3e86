"""The candidate tiles, orders and lanes.

The model first chooses the loop along the vector lanes.  Output channels are best if there are enough of them;
otherwise input channels (partial sums, added at the end), groups, or groups fused with their channels.  It then chooses
the register tile: vectors times pixels that fit the registers, with short tails, and pixels in different sets of the
first-level cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from math import lcm, prod

from convsmith.arith.evaluate import evaluate
from convsmith.diag.forking import cached_property
from convsmith.ir.index import Mod, Var, is_true
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.problem.post_ops import SumPostOp
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import DEFAULTS
from convsmith.schedule.loops import Loops, fused_name, loops_after_fusing
from convsmith.schedule.lower import has_full_vectors
from convsmith.schedule.registers import register_file
from convsmith.statement.parts import PART, splits
from convsmith.statement.phases import Phase, phases
from convsmith.statement.statement import View, view_steps
from convsmith.tune.blocks import BLOCKS_A_THREAD, blocked, with_near_pixels
from convsmith.tune.cost_model import CostModel
from convsmith.tune.features import overlapped
from convsmith.tune.fragments import fragment_tiles, streamed_operand
from convsmith.tune.orders import MIN_TRAFFIC_GAIN, ordered, with_depth_within
from convsmith.tune.parts import parts_of_sums
from convsmith.tune.windows import STRIDE, gathered_tiles, row_tiles, tap_tiles, weights_fit, window_tiles

FEW_VECTORS = 3
"""Vectors of channels on one side of a gradient of weights below which lanes along its pixels are tried."""
MOST_TAPS = 5
"""Maximum number of taps of a row that run within the channels."""
PAIR = 2
"""Number of channels that a step of a sum reads if lanes are pixels."""
BORDERS = 3
"""Maximum number of kinds of tiles along an axis: the first, the last, and all others."""
MOST_BORDERED = 2500
"""Maximum number of multiply-adds, in all pieces of its code, of a register tile whose vectors cross borders."""
CUT_TAPS = 16
"""Maximum number of taps whose first and last vectors of pixels have separate code."""


class Model(CostModel):
    """The candidates of one problem."""

    def fuse(self, a: str, b: str) -> str:
        """Return the name of the loop that results from fusing two loops."""
        name = fused_name(a, b)
        self.dims[name] = (*self.dims[a], *self.dims[b])
        return name

    def flip(self) -> tuple[str, ...]:
        """Return the operands that are flipped."""
        return tuple(view.name for view in (self.st.a, self.st.b) if view.flipped)

    def fusions(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs of pixel loops that are contiguous in source and destination, innermost first."""
        sizes = self.sizes
        names = [d.name for d in self.st.of("m")]
        if self.is_copied:
            return ()
        out: list[tuple[str, str]] = []
        inner = names[-1]
        for a, b in zip(reversed(names[:-1]), reversed(names[1:])):
            even = all(s.get(Var(a), 0) == sizes[b] * s.get(Var(b), 0) for s in (self.src, self.dst))
            if not even or not is_true(self.st.a.mask):
                break
            out.append((a, inner))
            inner = self.fuse(a, inner)
        return tuple(out)

    def pixels(self) -> list[str]:
        """Return the pixel loops after fusing, outermost first."""
        names = [d.name for d in self.st.of("m")]
        for a, b in self.fusions():
            names = [*names[:-2], self.fuse(a, b)]
        return names

    def innermost(self, pixels: list[str]) -> str:
        """Return the last of the pixel loops that runs more than once, or the last of all."""
        return next((n for n in reversed(pixels) if self.sizes.get(n, 2) > 1), pixels[-1])

    def lane_choices(self) -> Iterator[tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]]:
        """Yield candidates for the lane loop, the fusions that they need, and the reduction loops that are fused."""
        pixels = self.fusions()
        yield from ((lane, (*needed, *pixels), ()) for lane, needed in self.lane_loops())
        if self.copies_converted and pixels:
            yield self.n, tuple(pair for pair in pixels if self.images not in pair), ()
            yield self.n, (), ()
        if tap := self.merged_taps():
            yield self.n, self.chain((tap, self.k)), (tap, self.k)

    def chain(self, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        """Return the fusions that make adjacent loops one loop."""
        pairs = []
        first = names[0]
        for name in names[1:]:
            pairs.append((first, name))
            first = self.fuse(first, name)
        return tuple(pairs)

    def joined_name(self, names: tuple[str, ...]) -> str:
        """Return the name of the loop that :meth:`chain` makes of loops; empty for no loops."""
        return reduce(fused_name, names) if names else ""

    def realisation(self, lane: str, joined: bool, loops: Loops, tile: dict[str, int]) -> str:
        """Return how the source is read; ``joined`` taps and channels step through a copy without borders as one."""
        if joined or (self.is_copied and lane != self.batch):
            return "pad_copy"
        return "pad_copy" if self.bordered(lane) and not self.meets_borders(loops, lane, tile) else "peel"

    def meets_borders(self, loops: Loops, lane: str, tile: dict[str, int]) -> bool:
        """Return whether vectors of pixels that cross borders load the lanes that exist.

        Each tap along the row then has separate code for the first, the last and the other tiles of both axes.
        """
        if not 0 < self.target.masked_bytes <= self.bytes or self.classes or not self.along_rows(lane):
            return False
        axis = loops.axes[lane]
        taps = prod(loops.extents[n] for n in loops.of("k") if loops.axes[n] == axis and n not in tile)
        tiles = prod(min(-(-loops.extents[n] // tile.get(n, 1)), BORDERS) for n in (lane, *tile) if loops.axes[n])
        products = prod(tile.values()) // self.lanes
        reach = max(tile[lane] * self.row_step(lane), 1) * (BORDERS - 1)
        if self.row_step(lane) > 1 and tile[lane] > self.lanes and self.overhang(lane) > STRIDE:
            return False  # neighbouring taps miss the same lanes, and `partition` makes one piece of them
        return taps <= DEFAULTS["pieces"] and self.overhang(lane) <= reach and taps * tiles * products <= MOST_BORDERED

    def overhang(self, lane: str) -> int:
        """Return the elements of a row's windows before its first element and after its last."""
        pixel = Var(self.dims[lane][-1])
        dim = next(n for n, x in enumerate(self.st.a.coords) if pixel in variables_of(x))
        ends = [{v: (self.sizes[v.name] - 1) * n for v in variables_of(self.st.a.coords[dim])} for n in (0, 1)]
        low, high = sorted(int(evaluate(self.st.a.coords[dim], values)) for values in ends)
        return max(0, -low) + max(0, high - self.st.a.layout.shape[dim] + 1)

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
        if g and not depthwise and whole and 2 * columns <= self.lanes and self.src.get(Var(g), 0) <= self.lanes:
            yield self.fuse(g, self.n), ((g, self.n),)
        if self.unit.dot:
            return
        pixel = self.innermost(self.pixels())
        inner = Var(self.dims[pixel][-1])
        moves = inner in self.src or self.in_blocks(inner)
        written = not self.st.constant and self.dst.get(inner) == 1 and moves
        if (self.src.get(inner) == 1 or written) and inner not in variables_of(self.st.a.mask):
            yield pixel, ()
        elif self.along_rows(pixel):
            yield pixel, ()
        short = columns % self.lanes and columns < 4 * self.lanes
        if not self.st.constant:
            short = short or min(columns, self.sizes[self.st.of("m")[-1].name]) < FEW_VECTORS * self.lanes
        near = 0 < self.src.get(Var(self.k), 0) <= (1 if self.st.constant else STRIDE)
        fills = self.sizes[self.k] >= self.lanes // 2 and near
        if short and fills and self.cut_apart() <= CUT_TAPS:
            yield self.k, ()

    def in_blocks(self, channel: Var) -> bool:
        """Return whether vectors of a ``channel`` of the source are within its blocks in memory."""
        within = (a for a, step in self.src.items() if isinstance(a, Mod) and a.num is channel and step == 1)
        return any(not a.den % self.lanes for a in within)

    def nearby(self, loops: Loops, config: Config) -> Config | None:
        """Return ``config`` with a copy of the pixels that a tile reads, made once for all channels of the result.

        None if no copy can be made.
        """
        pixels = [n for n in config.order if n != self.images and loops.kinds[n] == "m"]
        a = self.st.a
        fits = self.strided_access and config.realise == "peel" and is_true(a.mask) and a.requantised is None
        fits = fits and bool(pixels) and not self.target.vectors.scalable
        if not fits or config.lane in (self.batch, self.k) or self.n not in loops.extents:
            return None
        if loops.extents[self.n] <= config.size(self.n):
            return None
        tiles = prod(-(-loops.extents[n] // config.size(n)) for n in config.order if loops.kinds[n] == "m")
        if config.threads > 1 and tiles < BLOCKS_A_THREAD * config.threads:
            return None
        inner = config.lane if config.lane in pixels else pixels[-1]
        outer = [n for n in config.order if n == self.images]
        outer += [n for n in (self.batch,) if n in config.order]
        outer += [n for n in pixels if n != inner] + [inner]
        order = (*outer, *(n for n in config.order if n not in outer))
        return config.changed(
            order=order, pack=tuple(n for n in config.staged("pack") if n != a.name), pack_at=((a.name, inner),)
        )

    @cached_property
    def copies_converted(self) -> bool:
        """Whether vectors of channels of each image may be copied with elements of the type of sums."""
        near = next((b for b in self.st.a.layout.blocks if b.stride == 1), None)
        vectors = near is not None and near.dim == 1 and (self.st.a.layout.is_plain or not near.size % self.lanes)
        can = self.converts and self.target.costs.convert > 0 and bool(self.images) and vectors
        return can and not (self.classes or self.phases or self.target.vectors.scalable)

    def with_converted(self, loops: Loops, config: Config) -> Config | None:
        """Return ``config`` with a copy of the source converted to the type of sums, or None.

        Threads copy rows of an image.
        """
        of_image = self.images in config.order and loops.kinds[config.lane] == "n"
        if not (self.copies_converted and of_image and config.realise == "peel"):
            return None
        rows = not any(len(self.dims[n]) > 1 for n in loops.of("m"))
        return config.changed(realise="pad_copy") if rows or config.threads == 1 else None

    def cut_apart(self) -> int:
        """Return the number of taps for which a row of pixels, as lanes, ends at a different position."""
        axes = {d.axis for d in self.st.of("k") if d.name == self.k} - {""}
        masked = variables_of(self.st.a.mask)
        return prod(d.size for d in self.st.of("m") if d.axis in axes and Var(d.name) in masked)

    def candidate_phases(self) -> tuple[Phase, ...]:
        """Return the phases that may fill the lanes that channels leave empty."""
        columns = self.sizes[self.n]
        if not self.classes or not columns % self.lanes or columns >= 4 * self.lanes:
            return ()
        return tuple(p for p in phases(self.st).values() if p.count > 1)

    def phase_lanes(self) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
        """Yield loops of lanes along phases of the innermost axis, alone or fused with the adjacent channels of the
        result.
        """
        phase = self.phases[-1].name
        apart, channels = self.dst.get(Var(phase)), self.sizes[self.n]
        if apart == 1:
            yield phase, ()
        elif apart == channels and self.dst.get(Var(self.n)) == 1:
            yield self.fuse(phase, self.n), ((phase, self.n),)

    def tiles(self, loops: Loops, lane: str) -> Iterator[dict[str, int]]:
        """Yield register tiles that fit the registers."""
        pixels = loops.of("m")
        inner = pixels[-1]
        if lane in pixels:
            inner = lane
        size = loops.extents[inner]
        if self.unit.rows > 1:
            count = register_file(self.target, self.unit).count
            yield from fragment_tiles(inner, size, lane, loops.extents[lane], self.unit, count)
            return
        if lane == self.batch:
            yield from window_tiles(loops, lane, self.lanes, self.target.registers, self.src)
            if not self.st.constant:
                yield from tap_tiles(loops, lane, self.lanes, self.target.registers)
        if self.gathers(lane):
            yield from gathered_tiles(loops, lane, self.filled(lane), self.k)
        if loops.kinds[lane] == "m" and self.along_rows(lane):
            yield from row_tiles(loops, lane, self.n, self.lanes, self.target.registers)
        along_k = lane == self.k
        tap = next((n for n in reversed(self.st.reduce[:-1]) if n not in self.classes), self.k)
        taps = self.sizes[tap]
        lanes = self.filled(lane)
        columns = loops.extents[self.n] if along_k else -(-loops.extents[lane] // lanes)
        for v in range(1, min(columns, 7) + 1):
            widest = (self.target.registers - 1 - v) // v
            if widest < 1:
                break
            wide = min(widest, loops.extents[self.n] if lane == inner else size)
            widths = {wide, wide - 1, *(m for m in (4, 5, 6, 7, 8, 12, 14, 16, 28) if m < wide)}
            for m in sorted(w for w in widths if w > 0):
                if lane == inner:
                    tile = {self.n: min(m, loops.extents[self.n]), lane: v * lanes}
                else:
                    tile = {inner: m, **({self.n: v} if along_k else {lane: v * lanes})}
                yield tile
                if along_k and tap != self.k and 1 < taps <= 3 and m * v + m + v < self.target.registers - 1:
                    yield {**tile, tap: taps}
                if m == size <= 5 and len(pixels) > 1 and m * 2 <= widest:
                    rows = loops.extents[pixels[-2]]
                    for r in {min(rows, widest // m), 2}:
                        if 1 < r <= rows:
                            yield {pixels[-2]: r, **tile}
                    if along_k and len(pixels) > 2 and m * rows * loops.extents[pixels[-3]] <= widest:
                        yield {pixels[-3]: loops.extents[pixels[-3]], pixels[-2]: rows, **tile}

    def merged_taps(self) -> str:
        """Return the tap loop that, fused with few channels, leaves fewer terms of an instruction empty; empty if there
        is none.

        In a copy without borders, both loops together step through contiguous memory.
        """
        channels, terms = self.sizes[self.k], self.unit.terms
        vectors = self.unit.dot and self.unit.rows == 1
        if not vectors or not channels % terms or self.is_copied or self.classes or len(self.st.reduce) < 2:
            return ""
        tap = self.st.reduce[-2]
        even = self.src.get(Var(self.k)) == 1 and self.src.get(Var(tap)) == channels
        return tap if even and self.images and self.sizes[tap] > 1 else ""

    def order(self, loops: Loops, lane: str, threads: int = 1) -> tuple[str, ...]:
        """Return the order of loops: images outermost; then channels, whose weights stay in the cache while pixels
        stream, or pixels if all weights stay.

        A result whose vectors are scattered, or that is as large as weights, is written in the order of memory.
        """
        names = [n for n in loops.extents if loops.kinds[n] != "k"]
        if self.stride_of(lane) > 1 or not self.st.constant:
            return tuple(sorted(names, key=lambda n: -self.stride_of(n)))
        groups = [self.batch] if self.bordered(lane) and self.batch in names else []
        pixels = [n for n in names if loops.kinds[n] == "m" and n != self.images]
        channels = [n for n in names if n not in pixels and n != self.images]
        far = lane == self.batch and self.moved(lane, self.lanes) > self.row_step(pixels[0])
        inner = [*pixels, *channels] if self.pixels_first() and not far else [*channels, *pixels]
        if self.turns_pages(lane) and not self.bordered(lane):
            inner = [*channels, *pixels]
        if self.bordered(lane) and threads > 1 and not groups:
            inner = [*pixels, *channels]  # each thread copies rows once
        outer = [*(n for n in names if n == self.images), *groups]
        return (*outer, *(n for n in inner if n not in outer))

    def arranged(self, loops: Loops, config: Config) -> Config:
        """Return the config in the order of loops, or with the blocks of pixels and the packed factors of a gradient of
        the weights, that move least between memories.

        If threads share the pixels of a gradient of the weights, it has no blocks.
        """
        if config.realise != "peel" or config.staged("resident") or self.classes or self.phases:
            return config
        if not self.st.constant:
            if config.tiles_at("split") or self.unit.rows > 1:
                return config
            nests = [(loops, config), *self.with_joined_rows(config)]
            near = partial(self.cycles, near=True)
            return with_near_pixels(self.traffic, nests, self.packed_once(loops, config), near, self.delivered)
        config = self.with_inner_taps(loops, config)
        if not self.traffic.is_far(config):
            return config
        config = self.with_depth_within(loops, config)
        if config.lane == self.batch or self.stride_of(config.lane) != 1 or self.turns_pages(config.lane):
            return config
        chosen = ordered(self.traffic, loops, config, self.images)
        return chosen.changed(stream=self.streamed(loops, chosen)) if self.unit.rows > 1 else chosen

    def with_joined_rows(self, config: Config) -> Iterator[tuple[Loops, Config]]:
        """Yield the loops and the config of a gradient of the weights with the loops over images and rows fused, if
        rows have a constant stride in memory.
        """
        images = next((d.name for d in self.st.of("k") if d.sort == "images" and d.size > 1), "")
        pixels = [n for n in self.st.reduce if n in config.reduce and n != config.lane]
        if pixels[:1] != [images] or len(pixels) < 2 or not all(is_true(view.mask) for view in self.st.factors):
            return
        rows, steps = pixels[1], [view_steps(view) for view in self.st.factors]
        if any(s.get(Var(images), 0) != self.sizes[rows] * s.get(Var(rows), 0) for s in steps):
            return
        reduce = (fused_name(images, rows), *(n for n in config.reduce if n not in pixels[:2]))
        joined = config.changed(fuse=(*config.fuse, (images, rows)), reduce=reduce)
        yield loops_after_fusing(self.st, joined), joined

    def packed_once(self, loops: Loops, config: Config) -> tuple[str, ...]:
        """Return the factors of a gradient of the weights that may be packed: tiles read them again, and packing
        repeats no element.

        Taps of a register tile, or fused with channels, would copy the pixels that they read. Windows along pixels read
        a single channel, for which a copy is as slow as direct loads.
        """
        if config.lane == self.batch:
            return ()
        taps = {d.name for d in self.st.dims if d.axis and d.kind != "k" and d.size > 1}
        within = (n for n in loops.extents if taps.intersection(loops.dims[n]))
        apart = all(len(loops.dims[n]) == 1 and n != config.lane and config.size(n) == 1 for n in within)
        return (self.st.a.name, self.st.b.name) if apart else (self.st.b.name,)

    def with_depth_within(self, loops: Loops, config: Config) -> Config:
        """Return ``config`` with the loop over depths within that over rows, if loading all operands is then clearly
        faster: in dense kernels, arithmetic hides that planes are read again for each depth of a window.
        """
        other = with_depth_within(loops, config, self.images)
        if other is None:
            return config
        now, then = (self.delivered(loops, c, self.cycles(loops, c, near=True)) for c in (config, other))
        return other if then * MIN_TRAFFIC_GAIN < now else config

    def with_inner_taps(self, loops: Loops, config: Config) -> Config:
        """Return ``config`` with the taps of a row within the channels, if the second-level cache is the bottleneck and
        then delivers pixels faster.

        Adjacent taps share pixels, which registers must hold besides accumulators and weights.
        """
        *outer, tap, channels = config.reduce if len(config.reduce) > 1 else ("", "")
        tile, along = dict(config.tiles_at("register")), {d.axis for d in self.st.of("m")[-1:]} - {""}
        taps = {d.name for d in self.st.of("k") if d.axis in along and 1 < d.size <= MOST_TAPS and d.name not in tile}
        if self.unit.dot or channels != self.k or tap not in taps or loops.kinds[config.lane] != "n":
            return config
        pixels = prod(n for name, n in tile.items() if name != config.lane)
        vectors = tile[config.lane] // self.filled(config.lane)
        if pixels * vectors + pixels + vectors >= self.target.registers:
            return config
        other = config.changed(reduce=(*outer, channels, tap))
        lanes = self.sizes[self.n] / -(-self.sizes[self.n] // self.filled(config.lane))
        products = self.problem.flops_real / 2 / lanes * self.product
        now, then = (
            max(products, self.traffic.moved(loops, c).means[0] / self.target.costs.refill) for c in (config, other)
        )
        return other if then * self.target.costs.inner_taps < now else config

    def delivered(self, loops: Loops, config: Config, cycles: float) -> float:
        """Return the cycles of a config, transfers between memories included, which takes ``cycles`` without them."""
        return cycles if self.unit.rows > 1 else overlapped(cycles, self.traffic.cycles(loops, config))

    def holding(self, loops: Loops, config: Config) -> Config | None:
        """Return ``config`` with a window's weights held in registers while pixels of its channels stream, or None."""
        tile = dict(config.tiles_at("register"))
        if config.lane != self.batch or not self.st.constant or self.stride_of(config.lane) > 1:
            return None
        if not weights_fit(loops, tile, -(-tile[config.lane] // self.lanes), self.target.registers, self.src):
            return None
        names = [n for n in config.order if n != self.images and loops.kinds[n] == "m"]
        channels = [n for n in config.order if n not in names and n != self.images]
        images = [n for n in config.order if n == self.images]
        return config.changed(order=(*images, *channels, *names), resident=(self.st.b.name,))

    def with_near_channels(self, loops: Loops, config: Config, most: float) -> Config | None:
        """Return ``config`` with blocks of channels outside of the loops over pixels, if that is clearly faster, and if
        it takes at most ``most`` cycles where no line is waited for.

        The rows under a tile of windows are then still in the first-level cache where the next tiles read them.
        """
        if config.lane != self.batch or not self.st.constant or self.src.get(Var(self.batch)) != 1 or self.phases:
            return None
        cycles = self.cycles_of_windows(loops, config)
        if cycles > most or self.exposed_lines(loops, config) <= cycles * (MIN_TRAFFIC_GAIN - 1):
            return None
        row = self.dims[[n for n in loops.of("m") if loops.axes[n]][-1]][-1]
        line = self.target.l1.line // self.bytes
        sizes = {**{n: 1 for n in self.sizes}, **dict(config.tiles_at("register")), config.lane: line}
        sizes |= {n: self.sizes[n] for n in (*self.st.reduce, row)}
        channel = sum(array.touched(sizes)[0][0] for array in self.traffic.of(config)) / line
        unit, count = lcm(config.size(config.lane), line), loops.extents[config.lane]
        parts = -(-count * channel // self.target.l1.kept)
        size = int(-(-count // (parts * unit)) * unit)
        if size >= count:
            return None
        other = config.changed(cache=((config.lane, size),))
        lines, fewer = self.exposed_lines(loops, config), self.exposed_lines(loops, other)
        return other if (cycles + fewer) * MIN_TRAFFIC_GAIN < cycles + lines else None

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
        """Return whether a step may read two channels of pixels along the lanes, each of which is read once."""
        along = any(d.name == self.dims[lane][-1] for d in self.st.of("m")) and self.st.constant
        plain = self.reads_once() and not (self.unit.dot or self.classes or self.phases)
        return along and plain and not self.sizes[self.k] % PAIR

    def gathers(self, lane: str) -> bool:
        """Return whether adjacent channels of several groups are gathered into the lanes of a vector."""
        adjacent = self.dims[lane] == (self.batch, self.n) and self.src.get(Var(self.k)) == 1
        return adjacent and not self.unit.dot and 1 < self.sizes[self.k] < self.lanes

    def taps_of_lines(self, lane: str, taps: Sequence[str]) -> list[str]:
        """Return the last of ``taps``, whose elements share the source's cache lines, if each channel has its own
        lines.

        It runs within the channels, so that their lines are read once for all its taps.
        """
        apart = self.src.get(Var(self.k), 0) * self.bytes >= self.target.l1.line and self.st.constant
        plain = apart and not self.unit.dot and not self.classes and not self.is_copied
        along = any(d.name == lane for d in self.st.of("n"))
        return [n for n in taps[-1:] if plain and along and self.sizes[n] > 1]

    def crosses(self, view: View, lane: str) -> bool:
        """Return whether vectors along ``lane`` cross blocks of channels, because a group does not begin with one.

        That is no loss where multiply-adds are fewer than the cycles of a call that packs.
        """
        if self.problem.flops_dense < 2 * self.target.costs.pack_call:
            return False
        moving = ({v.name for v in variables_of(e) if self.sizes.get(v.name, 1) > 1} for e in view_steps(view))
        return any(lane in names and len(names) > 1 for names in moving)

    def packed(self, lane: str) -> tuple[str, ...]:
        """Return the operands that are packed: constant operands, and operands whose vectors are scattered in memory.
        """
        b, steps = self.st.b, view_steps(self.st.b)
        single = all(Var(name) not in steps for name in self.dims[lane]) and not self.crosses(b, lane)
        inner = steps.get(Var(self.n)) == 1 and steps.get(Var(self.batch), 0) == self.sizes[self.n]
        ready = single or steps.get(Var(lane)) == 1 or (inner and self.dims[lane] == (self.batch, self.n))
        inner_pixel = next((d.name for d in self.st.of("m") if d.name == self.dims[lane][-1]), "")
        apart = inner_pixel and not (self.phases or self.classes) and self.src.get(Var(inner_pixel)) != 1
        apart = apart and self.reads_once() and not self.bordered(lane) and not self.in_blocks(Var(inner_pixel))
        a = (self.st.a.name,) if self.st.a.requantised is not None or apart else ()
        return (*a, b.name) if self.st.constant or not ready else a

    def streamed(self, loops: Loops, config: Config) -> tuple[str, ...]:
        """Return the operands whose fragments bypass the nearest cache, or that are prefetched, and a result that
        bypasses the caches or that is accumulated with prefetches.
        """
        if self.unit.rows == 1:
            result = self.st.c
            size, cost = prod(result.layout.shape) * dtype(result.dtype).bytes, self.target.costs
            is_added = self.adds_result and 0 < cost.prefetched_results <= size
            far = is_added or size > cost.result_near
            passes = far and self.target.fence and has_full_vectors(self.st, config, self.lanes)
            return (*self._prefetched(loops, config), *((result.name,) if passes else ()))
        if self.target.fragments is None:
            return ()
        panels, columns = self.panels(loops, config), config.size(config.lane) // self.lanes
        chosen = streamed_operand(panels, columns, self.target.costs.fragment_kept)
        return tuple(view.name for view, role in ((self.st.a, "source"), (self.st.b, "weights")) if role == chosen)

    @cached_property
    def adds_result(self) -> bool:
        """Whether sums are added to the previous contents of the result."""
        return any(isinstance(op, SumPostOp) and not op.array for op in self.problem.post_ops)

    def _prefetched(self, loops: Loops, config: Config) -> tuple[str, ...]:
        """Return the packed weights and the source, if loads of their vectors prefetch lines."""
        weights = self.st.b
        is_packed = self.st.constant and weights.name in config.staged("pack")
        is_vectors = any(d.name == config.lane for d in self.st.of("n"))
        size = prod(weights.layout.shape) * dtype(weights.dtype).bytes
        fetched = (weights.name,) if is_packed and is_vectors and self.target.costs.prefetches(size) else ()
        return (*fetched, self.st.a.name) if self._prefetches_pixels(loops, config) else fetched

    def _prefetches_pixels(self, loops: Loops, config: Config) -> bool:
        """Return whether loads of vectors of pixels prefetch lines."""
        source, least = self.st.a, self.target.costs.prefetched_pixels
        plain = (
            self.st.constant
            and config.realise == "peel"
            and source.name not in config.staged("pack")
            and not config.staged_at("pack_at")
        )
        return plain and loops.kinds[config.lane] == "m" and 0 < least <= prod(source.layout.shape) * self.bytes

    def complete(self, loops: Loops, config: Config) -> Config:
        """Return ``config`` with its reduction in parts for threads, or otherwise with blocks of channels, if either is
        faster.
        """
        splittable = splits(self.whole)
        if splittable and (parts := parts_of_sums(self.problem, self.whole, loops, config, self.unit, self.target)):
            return config.changed(split=parts, order=(PART, *config.order))
        return config if not self.st.constant else blocked(self.whole, loops, config, self.target)
