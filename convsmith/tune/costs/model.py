"""The cost of a config: the features of a problem's kernel on one thread, and their cycles.

Arithmetic, loads and latency overlap; traffic between memories, packing and copies are added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from math import inf, prod

from convsmith.ir.index import Var, is_true
from convsmith.ir.types import dtype
from convsmith.ir.value import MAX_SPREAD
from convsmith.ir.walk import variables_of
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import DEFAULTS
from convsmith.schedule.loops import Loops
from convsmith.tune.costs.channel_lines import lines_of_far_channels
from convsmith.tune.costs.channels_apart import (
    arriving_lines,
    crossings,
    late_stores,
    lines_apart,
    packed_pixels,
    waited_lines,
)
from convsmith.tune.costs.code_size import bytes_of_code, passes
from convsmith.tune.costs.cold_weights import weights_read
from convsmith.tune.costs.copies import copied, packed
from convsmith.tune.costs.far_lines import (
    copied_lines_of_memory,
    lines_of_memory,
    lines_of_pixels_of_a_page,
    lines_of_rows_of_fragments,
    lines_of_short_rows,
    lines_of_short_runs,
    lines_out_of_order,
    outpaces_prefetcher,
)
from convsmith.tune.costs.features import Events, Features, Section, cycles, overlapped
from convsmith.tune.costs.shared_factors import arriving_steps, vectors_of_first_passes
from convsmith.tune.costs.shared_facts import SharedFacts
from convsmith.tune.costs.tile_counts import ADDRESSES, TileCount, parts_inside, rows_cross_blocks, whole_tiles
from convsmith.tune.costs.windows import (
    elements_at_a_border,
    first_reads,
    first_reads_of_pixels,
    live_vectors,
    merged_taps,
    spilled_by_taps,
)
from convsmith.tune.fragments import Panels, fragment_sections, runs_of_results

LATE_LINES = 2.0
"""Lines that the second-level cache delivers in the time which the first line of a run takes besides, in a loop."""
BORDERED = 2
"""Number of tiles of a row that meet a border, the first and the last, if there are as many."""


class Model(SharedFacts):
    """The features of the kernels of one problem, and their cycles."""

    group_load = "l1"
    """The event of loading a vector of groups from the first-level cache."""
    pointer = 1.0
    """The loads that take as long as a pointer of a table."""

    def arriving_loads(self, loops: Loops, config: Config, m: int, columns: int) -> float:
        """Return the fraction of the loads of a gradient of the weights, in tiles of ``m`` by ``columns``, whose lines
        are still in flight.

        Elements that the first-level cache holds from one tap to the next are only late for the first tap.
        """
        along = {d.name for d in self.st.dims if d.axis}
        taps = [loops.extents[n] for n in takewhile(lambda n: along.issuperset(loops.dims[n]), reversed(config.order))]
        panels = (m + columns) * self.terms * self.bytes
        again = prod(taps) if panels <= self.target.l1.bytes else 1
        return 1 / again

    def cycles(self, loops: Loops, config: Config, near: bool = False, most: float = inf) -> float:
        """Return the cycles of the whole problem on one thread.

        Where operands are ``near``, no load waits for a line. If there are more than ``most`` cycles, the result is a
        lower bound: of windows, without the lines for which they wait.
        """
        if near or config.lane != self.batch:
            return cycles(self._sections(loops, config, near), self.target, most)
        least = self.least(loops, config)
        return least if least > most else self.cycles_of_windows(loops, config) + self.exposed_lines(loops, config)

    def least(self, loops: Loops, config: Config) -> float:
        """Return the cycles of windows if they wait for each line once; 0 for another kind of tiles."""
        if config.lane != self.batch:
            return 0.0
        once = self.traffic.once(config) * self.target.prices["exposed_near_byte"]
        return self.cycles_of_windows(loops, config) + once

    def multiplying(self) -> float:
        """Return a lower bound of the cycles of any config: its multiply-adds, in full vectors; 0 for fragments."""
        if self.unit.rows > 1:
            return 0.0
        terms = self.lanes * self.unit.terms * self.classes_per_tap
        products = prod(d.size for d in self.st.dims if d.kind != "k") * self.terms / terms
        products *= prod(x.mean() / self.sizes[name] for name, x in self.inside.items())
        return products * self.target.prices[self.product]

    def features(self, loops: Loops, config: Config) -> Features:
        """Return the features of the whole problem on one thread."""
        lines = (self.lines_of_windows(loops, config),) if config.lane == self.batch else ()
        return *self.kernel(loops, config), *lines

    def delivered(self, loops: Loops, config: Config, cycles: float) -> float:
        """Return the cycles of a config, transfers between memories included, which takes ``cycles`` without them.

        The cycles of a gradient that packs blocks of pixels include them.
        """
        if self.unit.rows > 1 or config.staged_at("pack_at"):
            return cycles
        return overlapped(cycles, self.traffic.cycles(loops, config))

    @staticmethod
    def _places(config: Config) -> tuple[object, ...]:
        """Return what decides beside tiles what windows read, and where."""
        staged = (config.staged(scope) for scope in ("pack", "resident"))
        return config.fuse, config.order, config.reduce, config.realise, config.staged_at("pack_at"), *staged

    def cycles_of_windows(self, loops: Loops, config: Config) -> float:
        """Return the cycles of windows that wait for no line; blocks of channels and prefetches change none of them."""
        key = (config.lane, config.tiles_at("register"), config.tiles_at("k_step"), *self._places(config))
        if key not in self._windows:
            self._windows[key] = cycles(self.kernel(loops, config), self.target)
        return self._windows[key]

    def kernel(self, loops: Loops, config: Config, near: bool = False) -> Features:
        """Return the features of the whole problem on one thread, without the lines that windows wait for."""
        return tuple(self._sections(loops, config, near))

    def nests(self, loops: Loops, config: Config) -> Features:
        """Return the features of a kernel whose weights are in caches."""
        return tuple(self._of_nests(loops, config))

    def _sections(self, loops: Loops, config: Config, near: bool = False) -> Iterator[Section]:
        """Yield the sections of `kernel`, those that take longest first, so that a bound on the cycles ends it soon."""
        yield from self._of_nests(loops, config, near)
        yield weights_read(self.st, self.target)

    def _of_nests(self, loops: Loops, config: Config, near: bool = False) -> Iterator[Section]:
        """Yield the sections of `nests`."""
        lane, tile, target = config.lane, dict(config.tiles_at("register")), self.target
        along_k = loops.kinds[lane] == "k"
        channels = next((loops.extents[n] for n, _ in config.tiles_at("k_step")), self.sizes[self.k])
        steps = self.terms // channels * (-(-channels // (self.lanes if along_k else self.unit.terms)))
        steps = -(-steps // self.classes_per_tap)
        tiles = whole_tiles(self, loops, config)
        if self.unit.rows > 1:
            panels = self.panels(loops, config)
            again = self.sums_kept(loops, config) - 1
            kept = target.l1.bytes // (2 if again else 1)  # both factors of a block are in a cache
            by_row = self.unit.file == target.vectors.name
            yield from fragment_sections(tiles, steps, self.unit, panels, kept, by_row)
            for t in tiles:
                stores = ("scatter_clash", self.evicted_stores(lane, tile, t.pixels, t.sums))
                runs = runs_of_results(self, lane, tile, t)
                yield Section(t.number, (("write-back", (*self.written(lane, tile, t.pixels, t.sums), stores, runs)),))
            if waits := lines_of_rows_of_fragments(self, loops, config, tiles):
                yield Section(1, (("far memory", waits),))
            fragments = sum(-(-t.pixels // self.unit.rows) * t.vectors * t.number for t in tiles)
            if again > 0:
                yield Section(again, (("sums between blocks", (("fragment_move_far", 2 * fragments),)),))
            yield Section(1, (("calls", (("fragment_configuration", 1),)),))
        else:
            yield from self.vector_sections(loops, config, tiles, steps, near)
            for lines in (lines_of_short_runs, lines_of_short_rows, lines_of_pixels_of_a_page):
                if not near and (waits := lines(self, loops, config, tiles)):
                    yield Section(1, (("far memory", waits),))
            if config.staged_at("pack_at") and (again := self.sums_kept(loops, config) - 1):
                sums = sum(t.sums * t.number for t in tiles)
                place = "l2" if sums * target.vector_bits <= 8 * target.l2.bytes else "streamed_line"
                yield Section(again, (("sums between blocks", ((place, 2 * sums),)),))
        copies = (packed_pixels(self, loops, config),) if config.staged_at("pack_at") and self.st.constant else ()
        for events in (*packed(self, config), *copies):
            yield Section(1, (("packing", events),))
        if copy := copied(self, loops, config):
            yield Section(1, (("padded copy", (*copy, *copied_lines_of_memory(self, config))),))
        if (far := bytes_of_code(self, loops, config) - target.costs.code_kept) > 0:
            yield Section(passes(self, loops, config), (("code", (("code_byte", far),)),))

    def passes_channels(self, config: Config) -> bool:
        """Return whether tiles of all channels are computed between two tiles of a channel."""
        return self.pixels_first()

    def written(self, lane: str, tile: dict[str, int], most: int, vectors: int) -> Events:
        """Return the events of writing ``vectors`` of results whose lanes are not adjacent, of tiles with ``most``
        pixels, beside the time of `evicted_stores`.
        """
        lanes = vectors * self.lanes
        if neighbours := self.transposed(lane, tile, most):
            return (("pack", lanes / neighbours * self.lanes),)
        if (apart := self.stride_of(lane)) != 1:
            return (("scatter" if apart * self.bytes < self.target.l1.line else "scatter_far", lanes),)
        if lane not in self.classes or lane == self.n:
            return ()
        return (("scatter", vectors * self._stores_of_class(lane)),)

    def evicted_stores(self, lane: str, tile: dict[str, int], most: int, vectors: int) -> float:
        """Return the lines that stores of ``vectors`` of results, of tiles with ``most`` pixels, find evicted by those
        of the tile's other lanes, because they share few sets. Whole lines are not read before they are written. Memory
        takes the stores of a tile while the next one multiplies.
        """
        l1, size, lanes = self.target.l1, dtype(self.st.c.dtype).bytes, tile.get(lane, 1)
        if (apart := self.stride_of(lane) * size) < l1.line:
            return 0.0
        kept = l1.lines_kept(apart, self.target.costs.added_ways)
        neighbours = self.transposed(lane, tile, most) or 1
        run = neighbours * size * self.classes.get(self._neighbours[lane, *tile], 1)
        if lanes <= kept or (run == neighbours * size and not run % l1.line):
            return 0.0
        return vectors * self.lanes / neighbours * max(run / l1.line, 1.0) * (1 - kept / lanes)

    def _stores_of_class(self, lane: str) -> int:
        """Return the stores of a vector of results of one residue class: masked ones of the vectors that they reach, or
        one for each lane.
        """
        step, target = self.classes[lane], self.target
        is_word = dtype(self.st.c.dtype).bytes >= target.costs.masked_word
        is_spread = target.has_masked_stores and is_word and 2 * step * step < self.sizes[lane]
        return step if is_spread and step <= MAX_SPREAD else self.lanes

    def panels(self, loops: Loops, config: Config) -> Panels:
        """Return the bytes that tiles of fragments read; taps along a row share pixels."""
        if not self.st.constant:
            return self.panels_of_gradient(loops, config)
        again, terms = self.taps_of_a_row(config), self.terms * self.bytes
        pixels = prod(d.size for d in self.st.of("m") if d.sort != "images")
        turned = loops.kinds[config.lane] == "m"
        if turned:
            pixels = self.sizes[self.n]
        columns = -(-loops.extents[config.lane] // self.lanes)
        column = terms * self.lanes
        stays = loops.kinds[config.order[-1]] == ("n" if turned else "m")
        stays = stays and columns * self.lanes > config.size(config.lane)
        copied = config.realise == "window_copy"
        return Panels(
            terms / again, column, pixels * terms / again, columns * column, stays,
            shared=again > 1 or (not copied and self.shares_rows(loops)), copied=copied,
        )  # fmt: skip

    @staticmethod
    def sums_kept(loops: Loops, config: Config) -> int:
        """Return the number of blocks of the reduction, between which memory keeps the sums."""
        tiles = (tile for tile in config.tiles_at("cache") if loops.kinds.get(tile[0]) == "k")
        return prod(-(-loops.extents[n] // size) for n, size in tiles)

    def panels_of_gradient(self, loops: Loops, config: Config) -> Panels:
        """Return the bytes that tiles of a gradient of the weights read: between consecutive tiles, the factor of the
        columns stays if the innermost loop that runs more than once moves the other factor.
        """
        row = self.terms * self.bytes / self.sums_kept(loops, config)
        (rows,) = (n for n, _ in config.tiles_at("register") if n != config.lane)
        column = row * self.lanes
        inner = next((n for n in reversed(config.order) if loops.extents[n] > config.size(n)), rows)
        stays = (loops.kinds[inner] == "m") != (loops.kinds[config.lane] == "m")
        columns = -(-loops.extents[config.lane] // self.lanes)
        return Panels(row, column, loops.extents[rows] * row, columns * column, stays)

    def vector_sections(
        self, loops: Loops, config: Config, tiles: Sequence[TileCount], steps: int, near: bool = False
    ) -> Iterator[Section]:
        """Yield the sections of register ``tiles``, whose sums have ``steps`` steps."""
        lane, tile, target = config.lane, dict(config.tiles_at("register")), self.target
        kind, is_held = loops.kinds[lane], bool(config.staged("resident"))
        in_place = not {view.name for view in self.st.factors} <= config.packed
        in_order = self.unit.dot or not in_place  # prefetchers follow packed data
        along_k, across = kind == "k", kind == "m"
        if self.passes_channels(config) and not config.staged_at("pack_at"):
            passing = loops.extents[self.n] if along_k else -(-loops.extents[lane] // self.filled(lane))
        else:
            passing = max(t.vectors for t in tiles)
        weights = passing * self.lanes * steps * self.weight_bytes
        read, each = "l1" if weights <= target.l1.kept else "l2", self.unit.vectors_of_weights(target)
        along_rows = across and self.along_rows(lane)
        if along_rows:
            read, each = self.row_read(lane, weights)
            each *= self.gathers_of_taps(loops, tile, lane)
        if is_held:
            each = 0.0
        apart = self.src.get(Var(self.k), 1) if along_k else 1
        of_lanes = self.st.a if across else self.st.b
        interleaves = self.unit.dot and not self.st.constant and of_lanes.name not in config.packed
        in_all_lanes = "broadcast_pair" if self.unit.dot and self.bytes == 2 and not interleaves else "broadcast"
        pixel, apiece = ("l1", float(apart)) if along_k else (in_all_lanes, 1.0)
        if lane == self.batch:
            adjacent = self.src.get(Var(lane), 1) == 1 or self.joins_groups(config)
            pixel, apiece = (self.group_load, 1.0) if adjacent else ("lane_load", float(self.lanes))
            read = self.group_load if read == "l1" else read
        straight = steps == prod(n for name, n in config.tiles_at("register") if loops.kinds[name] == "k") > 1
        turn = "turn" if is_held else "straight_call" if straight else "call"
        again, windows = 0.0, lane == self.batch and self.st.constant
        if windows:
            if lines := self.evicted_lines(loops, tile, lane):
                first = self.first_of_taps(loops, tile)
                pixel, apiece, again = "l2", lines * first, 1 - first
        shared = first_reads(loops, tile, self.src, lane)
        if not (self.st.constant or self.unit.dot):
            shared *= first_reads_of_pixels(loops, tile, config.tiles_at("k_step"), self.src)
        rows = prod(n for name, n in tile.items() if loops.kinds[name] == "m" and name != lane)
        slowed: list[tuple[str, float]] = []
        if self.dims[lane] == (self.batch, self.n):
            groups = self.filled(lane) // self.sizes[self.n]
            two = groups * self.src.get(Var(self.batch), 0) <= 2 * self.lanes * self.unit.terms
            slowed.append(("gather" if two else "gather_singly", shared))
        if self.bordered(lane):
            slowed.append(("crossing", 1.0))
        order, hidden = config.order, target.registers * self._hidden()
        turns = self.turns_pages(lane) and self.n in order and order.index(self.n) > order.index(lane)
        in_pages = kind == "n" and self.st.constant and self.has_pages_of_channels
        converted = self.converts and kind == "n" and config.realise != "pad_copy"
        widened = bool(self.unit.widens) and target.costs.widen > 0 and not self.unit.copied
        widened = widened and kind == "n" and self.st.a.name not in config.packed
        extended = lane == self.batch and self.st.constant and self.bytes == 1
        latency = not (is_held or straight)  # the next tile begins meanwhile
        terms, merged = self.unit.merged, (1.0, 0.0)
        if windows and terms > 1 and not is_held:
            guarded = {n for n in loops.of("m") if Var(self.dims[n][-1]) in variables_of(self.st.a.mask)}
            merged = merged_taps(loops, tile, self.src, terms, guarded)
        lacking = self.lacking_terms(config) if self.unit.dot and kind == "n" else 0.0
        crossing, lines_wait = crossings(self, loops, config), not near and target.costs.channel_line > 0
        at_first, far_vectors = (0.0, 0.0) if near or self.st.constant else vectors_of_first_passes(self, loops, config)
        for m, v, count, part in parts_inside(self, loops, config) or tiles:
            held = m * v
            loads = [(read, v * each), (pixel, (held if lane == self.batch else m) * shared * apiece)]
            if again:
                loads.append((self.group_load, held * shared * again))
            if along_rows:
                loads = [(read, v * rows * part * shared * each), (pixel, m // (rows * part) * apiece)]
            if config.realise == "indirection" and steps:  # a class of a deconvolution may have no taps
                loads.append(("broadcast", self.pointer * m * self.taps / steps))  # one for each tap of a pixel
            if lacking and config.realise == "peel":
                loads.append(("part_load", m * shared * lacking))
            of_channels = lines_apart(self, loops, config, m)
            if of_channels and self.taps > 1:
                loads.append(("l2", of_channels))
            if crossing:
                loads.append(("crossed_line", v * crossing))
            evicted: Events = ()
            if not (across or windows) and (lines := self.evicted_pixels(loops, tile, m)):
                evicted = (("clash", lines),)
            if not (self.st.constant or near or in_order):
                late = self.arriving_loads(loops, config, m, v * (1 if along_k else self.lanes))
                late *= arriving_steps(self, loops, config)
                loads += [(f"{name}.arriving", n * late) for name, n in loads]
                loads, evicted = [*loads, *evicted], ()  # behind the lines that arrive of both factors
            dots, columns = (1.0, 0.0) if v % terms else merged  # whole registers are interleaved
            products: list[tuple[str, float]] = [(self.product, held * dots)]
            if along_k and apart > 1:
                products.append(("multiply_add", m * shared * (apart - 1)))
            products += [("widen", m)] * widened
            products += [("convert", m)] * converted + [("interleaved", v)] * interleaves
            causes = [("multiply-adds", tuple(products)), ("loads", tuple(loads))]
            if of_channels and self.taps == 1:
                causes.append(("lines of channels", (("l2", of_channels),)))  # they arrive during earlier products
            if extended:
                causes.append(("extensions", (("extend", v * each + held * shared),)))
            if columns:
                causes.append(("columns", (("columns", held * columns),)))
            if latency:
                causes.append(("latency", (("latency", 1),)))
            if evicted:
                causes.append(("evictions", evicted))
            if not along_k and steps and (stores := self.evicted_stores(lane, tile, m, held)):
                causes.append(("evicted stores", (("scatter_clash", stores / steps),)))
            if not near and steps and (late := late_stores(self, loops, config, m, v)):
                causes.append(("late stores", (("late_result", late / steps),)))
            slow, sides = tuple(slowed), (v * self.lanes, m) if across else (m, v * self.lanes)
            arriving, first = arriving_lines(self, loops, config, sides[0]) if self.strided_access else ((), 0.0)
            if across and first == 1 and arriving[0][1] >= 2:
                causes.append(("far memory", arriving))
            elif arriving:  # arithmetic of other tiles, or loads of single elements, keep few lines in flight
                yield Section(count * steps * first, (("far memory", arriving),), slow)
            if at_first:
                channels = m / prod(n for name, n in tile.items() if loops.axes[name])
                waits = ("far memory", (("streamed_line", channels * far_vectors),))
                yield Section(count * steps * at_first, (*causes, waits), slow)
            yield Section(count * steps * (1 - at_first), tuple(causes), slow)
            if m > ADDRESSES and rows_cross_blocks(self, config):
                yield Section(count * steps, (("addresses", (("spilled", m),)),))
            if lines_wait and (lines := lines_of_far_channels(self.st, loops, config, target)):
                yield Section(count * steps, (("far memory", (("channel_line", lines),)),), slow)
            if self.strided_access and (far := waited_lines(self, loops, config, sides)):
                yield Section(count * steps, (("far memory", far),), slow)
        for m, v, count, _ in tiles:
            held = m * v
            finish = [("exposed_sum", held - hidden)] if held > hidden else []
            finish += self.sums(held) if along_k else self.written(lane, tile, m, held)
            if self.operations > 1:
                finish.append(("result_step", held * (self.operations - 1)))
            if turns or (in_pages and self.transposed(lane, tile, m)):
                finish.append(("page_turn", held))
            if lane == self.batch:
                live = live_vectors(loops, tile, v, self.src, is_held, self.bytes == 1, target.sums_in_turn)
                if live > target.registers:
                    unrolled = prod(n for name, n in tile.items() if loops.kinds[name] == "k")
                    finish.append(("spilled", (live - target.registers) * max(self.terms // unrolled, 1)))
                elif not live and (spilled := self.spilled_at_borders(loops, tile, m, v)):
                    finish.append(("spilled", spilled))
            elif along_rows and (spilled := spilled_by_taps(loops, tile, lane, (m, v), target.registers) * self.terms):
                finish.append(("spilled", spilled))
            if finish:
                yield Section(count, (("write-back", tuple(finish)),))
            yield Section(count, (("calls", ((turn, 1),)),))

    def _hidden(self) -> float:
        """Return the fraction of the registers that accumulators may use before write-back shows."""
        return self.target.costs.hidden if self.st.constant else self.target.costs.hidden_far

    def row_read(self, lane: str, passing: int) -> tuple[str, float]:
        """Return the event of loading a vector of pixels of a row, of which ``passing`` bytes are read between two
        tiles, and the number of such events.

        A vector that starts at any tap crosses two cache lines. With a stride, the pixels in between are loaded too,
        unless the source is packed, which takes more vectors if the row is longer than one vector.
        """
        target, pixels = self.target, min(self.sizes[self.dims[lane][-1]], self.lanes)
        vectors = -(-((pixels - 1) * self.row_step(lane) + 1) // self.lanes)
        image = prod(self.st.a.layout.shape[2:]) * self.sizes[self.k] * self.bytes
        is_spread = self.bordered(lane) or not self.reads_once()
        return ("l1" if min(image, passing) <= target.l1.kept else "l2"), (2.0 * vectors if is_spread else 1.0)

    def spilled_at_borders(self, loops: Loops, tile: dict[str, int], m: int, v: int) -> float:
        """Return the vectors that a tile of ``m`` pixels by ``v`` vectors loads again because registers do not hold
        them, in the mean of the tiles of a row: taps that meet a border are straight-line code, which keeps elements
        for the next taps.
        """
        taps, row = self.at_border(loops, tile)
        if not taps:
            return 0.0
        column = loops.of("m")[-1]
        width = tile.get(column, 1)
        tap = next(n for n in loops.of("k") if loops.axes[n] == loops.axes[column])
        live = (m + -(-m // width) * row) * v + 1 - self.target.registers
        across, rows = -(-loops.extents[column] // width), self.terms // loops.extents[tap]
        return max(live, 0) * taps * rows * min(BORDERED, across) / across

    def at_border(self, loops: Loops, tile: dict[str, int]) -> tuple[int, int]:
        """Return the taps of a row that have code of their own in a tile at a border, and the elements that they read.
        """
        key = (*loops.of("m"), *tile.items())
        if key not in self._at_border:
            found, a = (0, 0), self.st.a
            if self.st.constant and not is_true(a.mask):
                found = elements_at_a_border(loops, tile, a.coords, a.layout.shape, DEFAULTS["pieces"])
            self._at_border[key] = found
        return self._at_border[key]

    def evicted_lines(self, loops: Loops, tile: dict[str, int], lane: str) -> float:
        """Return the vectors that the second-level cache delivers for a vector of a window whose pixels evict each
        other from the nearest cache, or 0.

        Each tap then reads them from the second-level cache, in whole lines, of which a run of narrow elements fills a
        part. A contiguous run begins with a line that is not prefetched, which counts as half a line more, or as more
        lines if loops run over the taps, so that fewer loads are in flight. Lines that evict lines of the same tap are
        later.
        """
        if not self.evicts(loops, tile):
            return 0.0
        l1, run, whole = self.target.l1, tile[lane] * self.bytes, self.target.vector_bits // 8
        taps = prod(n for name, n in tile.items() if loops.kinds[name] == "k")
        late = LATE_LINES if taps < self.taps else 0.5
        moved = (max(run, l1.line) + l1.line * late) / whole / (tile[lane] / self.lanes)
        return max(moved, 1.0) * max(1.0, self.ways(loops, tile) / l1.ways)

    def gathers_of_taps(self, loops: Loops, tile: dict[str, int], lane: str) -> float:
        """Return the ratio of gathers to taps, where vectors lie along pixels of a stride.

        Gathers of neighbouring taps in a tile share the vectors that hold the pixels of one. Registers cannot hold
        them for several channels.
        """
        step, axis = self.row_step(lane), loops.axes[lane]
        tap = next((n for n in loops.of("k") if loops.axes[n] == axis and tile.get(n, 1) > 1), "")
        if step == 1 or not tap or tile.get(self.n, 1) > 1:
            return 1.0
        span = (min(self.sizes[self.dims[lane][-1]], self.lanes) - 1) * step + 1
        apart = max(abs(self.src.get(Var(tap), 1)), 1)
        together = 1 + (-(-span // self.lanes) * self.lanes - span) // apart
        return -(-tile[tap] // together) / tile[tap]

    def exposed_lines(self, loops: Loops, config: Config) -> float:
        """Return the cycles that windows wait for lines from beyond the first-level cache."""
        key = (config.lane, config.tiles_at("register"), config.tiles_at("cache"), *self._places(config))
        if key not in self._lines:
            self._lines[key] = cycles((self.lines_of_windows(loops, config),), self.target)
        return self._lines[key]

    def lines_of_windows(self, loops: Loops, config: Config) -> Section:
        """Return the section of waiting for lines from beyond the first-level cache.

        Each element is multiplied by few weights, which hides a part of the time in which lines arrive. Each run of
        neighbours begins with a line that nothing has fetched ahead, and counts more: a run of a block of channels, or
        of a tile where the next one does not read its neighbours. Runs that are a multiple of a way apart evict each
        other and move again; the lines behind the first of such a run are fetched ahead.
        """
        moved = self.traffic.moved(loops, config)
        inner = next((n for n in reversed(config.order) if loops.extents.get(n, 1) > config.size(n)), config.lane)
        jumps = inner != config.lane or not self.st.constant
        blocks = dict(config.tiles_at("cache"))
        run = config.size(config.lane) if jumps else blocks.get(config.lane, loops.extents[config.lane])
        part = self.target.l1.line / (run * self.bytes)  # of a run is its first line
        again = moved.near_in_conflict - moved.near
        events = (
            ("exposed_near_byte", moved.near), ("exposed_near_run", moved.near * part),
            ("exposed_evicted_run", again * part),
        )  # fmt: skip
        far = moved.means[1] if self.footprint() > self.target.l2.bytes else 0.0
        runs = far * part if outpaces_prefetcher(self) else 0.0
        beyond = (("exposed_far_byte", far), ("exposed_far_run", runs)) if far else ()
        late = (*lines_of_memory(self, loops, config), *lines_out_of_order(self, loops, config))
        return Section(1, (("lines", (*events, *beyond, *late)),))

    def sums(self, held: int) -> Events:
        """Return the events of adding up the lanes of the accumulators; a vector of sums costs the same if it is not
        full.
        """
        return (("lane_sum", held / 2 if held <= self.lanes // 2 else -(-held // self.lanes) * self.lanes),)
