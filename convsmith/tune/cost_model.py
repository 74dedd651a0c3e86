"""The cost of a config: the cycles of a problem on one thread, by cause.

Arithmetic, loads and latency overlap; traffic between memories, packing and copies are added.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import takewhile
from math import gcd, inf, prod

from convsmith.ir.index import Var, is_true
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops, fused_dims
from convsmith.statement.statement import View, view_steps
from convsmith.tune.fragments import Panels, fragment_cycles
from convsmith.tune.shared_facts import SharedFacts
from convsmith.tune.windows import first_reads, live_vectors

OVERLAP = 4
"""Exponent of the norm that adds up cycles of arithmetic, loads and latency; at infinity they hide each other
completely.

It is a property of the model: it smooths the maximum, on any machine that overlaps them.
"""
Terms = defaultdict[str, float]
"""Cycles by their cause."""


class CostModel(SharedFacts):
    """The cycles of each candidate of one problem."""

    def copied(self, config: Config) -> float:
        """Return the cycles to copy the source in each call."""
        if config.realise != "pad_copy":
            return 0.0
        bordered = self.bordered(config.lane)
        if self.converts and not bordered:
            return self.converted(config)
        each = self.lanes if bordered else self.sizes[self.k]
        return prod(self.st.a.layout.shape) / each * self.target.costs.copy

    def converted(self, config: Config) -> float:
        """Return the cycles to copy the source with its elements converted, at each call.

        A single thread copies whole images, which may exceed the caches. Several threads copy the rows that each needs,
        again for each tap and for each block of channels of the result whose loop is outside.
        """
        images = next((d.size for d in self.st.dims if d.sort == "images"), 1)
        elements, cost = prod(self.st.a.layout.shape), self.target.costs
        vector, again = cost.copy, 1
        if config.threads == 1:
            far = elements // images * dtype(self.st.acc).bytes > cost.images_near
            vector += 2 * self.target.load(self.target.l2) * cost.streamed * far
        else:
            row = next((d for d in self.st.of("m") if d.axis), None)
            again = prod(d.size for d in self.st.of("k") if row is not None and d.axis == row.axis)
            own = row.name if row is not None else ""
            outside = takewhile(lambda n: own not in fused_dims(config, n), config.order) if own else ()
            again *= prod(-(-self.sizes[n] // config.size(n)) for n in outside if n == self.n)
        lines = elements // (self.st.a.layout.shape[-1] * self.st.a.layout.shape[1])
        return again * (vector * elements / self.lanes + cost.call * lines)

    def load_stall(self, loops: Loops, config: Config, m: int, columns: int) -> float:
        """Return the slow-down of the loads of a gradient of the weights, in tiles of ``m`` by ``columns``.

        Elements that the first-level cache holds from one tap to the next are only late for the first tap.
        """
        along = {d.name for d in self.st.dims if d.axis}
        taps = [loops.extents[n] for n in takewhile(lambda n: along.issuperset(loops.dims[n]), reversed(config.order))]
        panels = (m + columns) * self.terms * self.bytes
        again = prod(taps) if panels <= self.target.l1.bytes else 1
        return 1 + (self.target.costs.arriving - 1) / again

    def latency_stall(self, loops: Loops, config: Config, pixels: int, columns: int) -> float:
        """Return the cycles that a step waits for lines of the source or of weights from beyond the second-level cache.

        The lines of the next channels are far apart, so no prefetcher fetches them.
        """
        if not self.strided_access:
            return 0.0
        l2, line = self.target.l2, self.target.l1.line
        far = self.target.load(l2) * self.target.costs.beyond
        if config.staged_at("pack_at"):
            return columns * self.bytes / line * far if prod(self.st.b.layout.shape) * self.bytes > l2.bytes else 0.0
        inner = [n for n in config.order if n != self.images and loops.kinds.get(n) == "m"][-1]
        lines = pixels * abs(self.row_step(self.dims[inner][-1])) * self.bytes / line + 1
        channels, apart = self.sizes[self.k], self.src.get(Var(self.k), 0) * self.bytes
        if config.order.index(inner) < config.order.index(config.lane if config.lane != inner else self.n):
            places = l2.way // gcd(apart, l2.way)
            return 0.0 if channels * lines * line <= l2.bytes and channels <= places * l2.ways else lines * far
        images = next((d.size for d in self.st.dims if d.sort == "images"), 1)
        return 0.0 if prod(self.st.a.layout.shape) * self.bytes <= l2.bytes * images else lines * far

    def lines_apart(self, loops: Loops, config: Config, pixels: int) -> float:
        """Return the cache lines of the source, in vectors, that a step of ``pixels`` reads from the second-level
        cache, where each channel lies on lines of its own, more of them than the first-level cache keeps.
        """
        l1, apart = self.target.l1, self.src.get(Var(self.k), 0) * self.bytes
        packed = (
            config.staged_at("pack_at")
            or self.st.a.name in config.staged("pack")
            or config.realise != "peel"
            or self.unit.dot
        )
        if apart < l1.line or packed or not self.st.constant or loops.kinds[config.lane] != "n":
            return 0.0
        inner = [n for n in config.order if n != self.images and loops.kinds.get(n) == "m"][-1]
        lines = pixels * abs(self.row_step(self.dims[inner][-1])) * self.bytes / l1.line + 1
        if self.sizes[self.k] * lines * l1.line <= l1.kept:
            return 0.0
        within = prod(self.sizes.get(n, 1) for n in config.reduce[config.reduce.index(self.k) :]) / self.sizes[self.k]
        return lines * l1.line / (self.lanes * self.bytes) / within

    def cycles(
        self, loops: Loops, config: Config, terms: Terms | None = None, near: bool = False, most: float = inf
    ) -> float:  # fmt: skip
        """Return the cycles of the whole problem on one thread; an empty ``terms`` gets them by cause.

        Where operands are ``near``, no load waits for a line. Nor are the lines counted for which windows wait, if
        there are more than ``most`` cycles without them.
        """
        if near or config.lane != self.batch:
            return self._cycles(loops, config, terms, near)
        cycles = self.cycles_of_windows(loops, config) if terms is None else self._cycles(loops, config, terms, near)
        lines = self.exposed_lines(loops, config) if cycles <= most else 0.0
        if terms is not None:
            terms["lines"] = lines
        return cycles + lines

    @staticmethod
    def _places(config: Config) -> tuple[object, ...]:
        """Return what decides beside tiles what windows read, and where."""
        staged = (config.staged(scope) for scope in ("pack", "resident"))
        return config.fuse, config.order, config.reduce, config.realise, config.staged_at("pack_at"), *staged

    def cycles_of_windows(self, loops: Loops, config: Config) -> float:
        """Return the cycles of windows that wait for no line; blocks of channels and prefetches change none of them."""
        key = (config.lane, config.tiles_at("register"), config.tiles_at("k_step"), *self._places(config))
        if key not in self._windows:
            self._windows[key] = self._cycles(loops, config, None, near=False)
        return self._windows[key]

    def _cycles(self, loops: Loops, config: Config, terms: Terms | None, near: bool) -> float:
        lane, tile, target = config.lane, dict(config.tiles_at("register")), self.target
        along_k = loops.kinds[lane] == "k"
        channels = next((loops.extents[n] for n, _ in config.tiles_at("k_step")), self.sizes[self.k])
        steps = self.terms // channels * (-(-channels // (self.lanes if along_k else self.unit.terms)))
        if config.realise != "pad_copy":  # a copy has the zeros of all classes
            steps = -(-steps // self.of_single_taps())
        lanes = self.filled(lane)
        total = loops.extents[self.n] if along_k else -(-loops.extents[lane] // lanes)
        if along_k:
            columns = _splits(total, tile.get(self.n, 1))
        else:
            runs = (-(-n // lanes) for n in self.columns(loops, lane))
            columns = [x for n in runs for x in _splits(n, max(tile[lane] // lanes, 1))]
        pixels = [(1, 1)]
        rows = loops.of("m")
        if loops.kinds[lane] == "m":
            rows = [self.n, *(n for n in rows if n != lane and n in tile)]
        for name in rows:
            pixels = [(m * a, n * b) for m, n in pixels for a, b in _splits(loops.extents[name], tile.get(name, 1))]
        counted = {lane, *rows} | ({self.n} if along_k else set())
        around = prod(n for name, n in loops.extents.items() if loops.kinds[name] != "k" and name not in counted)
        around *= prod(m for name, m in self.classes.items() if name not in self.st.reduce)
        tiles = [(m, v, m_count * v_count) for m, m_count in pixels for v, v_count in columns]
        if self.unit.rows > 1:
            panels = self.panels(loops, config)
            cycles = fragment_cycles(tiles, steps, self.unit, target.costs, panels, target.l1.bytes, terms)
            scattered = sum(m * v * count * self.written(lane, tile, m) for m, v, count in tiles)
            cycles += scattered
            if terms is not None:
                terms["write-back"] += scattered
        else:
            passing = total if self.pixels_first() else max(v for v, _ in columns)
            cycles = self.vector_cycles(loops, config, tiles, steps, passing, terms, near)
        zeros = 1.0
        if (self.bordered(lane) or self.converts) and config.realise == "pad_copy":
            zeros = self.problem.flops_dense / max(self.problem.flops_real, 1)  # the copy's are multiplied
            cycles *= zeros
        packed = sum(
            self.packing(v, config) for v in self.st.factors if v.name in config.staged("pack") and not v.constant
        )
        if config.staged_at("pack_at"):
            read = prod(d.size for d in self.st.dims if d.kind in ("batch", "m", "k"))
            packed += read * target.costs.copy / (self.lanes if loops.kinds[lane] == "m" else 2)
        copied = self.copied(config)
        configured = target.costs.fragment_configuration if self.unit.rows > 1 else 0.0
        if terms is not None:
            for name in terms:
                terms[name] *= zeros * around
            terms |= {"padded copy": copied, "packing": packed}
            terms["calls"] += configured
        return cycles * around + copied + packed + configured

    def written(self, lane: str, tile: dict[str, int], most: int) -> float:
        """Return the cycles to write a vector of results whose lanes are not adjacent, of ``most`` in a tile."""
        if neighbours := self.transposed(lane, tile, most):
            return self.lanes * self.lanes * self.target.costs.pack / neighbours
        if (apart := self.stride_of(lane)) != 1:
            return self.lanes * self.scattering(apart * self.bytes, tile.get(lane, 1))
        return self.lanes * self.target.costs.scatter if lane in self.classes and lane != self.n else 0.0

    def panels(self, loops: Loops, config: Config) -> Panels:
        """Return the bytes that tiles of fragments read; taps along a row share pixels."""
        again, terms = self.taps_of_a_row(config), self.terms * self.bytes
        pixels = prod(d.size for d in self.st.of("m") if d.sort != "images")
        columns = -(-self.sizes[self.n] // self.lanes)
        column = terms * self.lanes
        stays = loops.kinds[config.order[-1]] == "m" and columns * self.lanes > config.size(config.lane)
        copied = config.realise == "window_copy"
        return Panels(
            terms / again, column, pixels * terms / again, columns * column, stays, shared=again > 1, copied=copied
        )

    def packing(self, view: View, config: Config) -> float:
        """Return the cycles to pack an operand in each call.

        Fragments have elements of their own for each tap.
        """
        costs = self.target.costs
        if self.unit.rows > 1 and not self.st.constant:
            indexes = {v.name for x in view.coords for v in variables_of(x)}
            elements = prod(n for name, n in self.sizes.items() if name in indexes)
            return costs.pack_call + elements * self.packing_of_fragments(view, config.tiles_at("k_step")[0][0])
        elements = prod(view.layout.shape)
        near = elements * self.bytes <= self.target.l2.bytes
        return costs.pack_call + elements * (costs.pack if near else costs.pack_far)

    def packing_of_fragments(self, view: View, terms: str) -> float:
        """Return the cycles to pack an element of fragments whose terms are iterations of the loop ``terms``.

        Vectors of adjacent terms are copied, vectors of adjacent channels are transposed.
        """
        costs, steps = self.target.costs, view_steps(view)
        channels = (d.name for d in self.st.dims if d.kind in ("m", "n") and d.size >= self.unit.rows)
        is_vector = steps.get(Var(self.dims[terms][-1])) == 1 or any(steps.get(Var(n)) == 1 for n in channels)
        return costs.pack if is_vector else costs.pack_far

    def vector_cycles(
        self, loops: Loops, config: Config, tiles: list[tuple[int, int, int]], steps: int, passing: int,
        terms: Terms | None = None, near: bool = False,
    ) -> float:  # fmt: skip
        """Return the cycles of register tiles, each given as (pixels, vectors of channels, number of such tiles).

        ``steps`` is the number of steps of a sum; the weights of ``passing`` vectors are read between two tiles of the
        same pixels.
        """
        lane, tile, target = config.lane, dict(config.tiles_at("register")), self.target
        along_k = loops.kinds[lane] == "k"
        cost, load, far = target.costs, target.load(target.l1), target.load(target.l2)
        weights = (
            (max(v for _, v, _ in tiles) if config.staged_at("pack_at") else passing) * self.lanes * steps * self.bytes
        )
        read = load if weights <= target.l1.kept else far
        along_rows = loops.kinds[lane] == "m" and self.along_rows(lane)
        if along_rows:
            read = self.row_read(lane, weights) * self.gathers_of_taps(loops, tile, lane)
        apart = self.src.get(Var(self.k), 1) if along_k else 1
        pixel = load * apart if along_k else cost.broadcast
        if lane == self.batch:
            pixel = load if self.src.get(Var(lane), 1) == 1 else self.lanes * cost.lane_load
        if config.staged("resident"):
            read = 0.0
        straight = steps == prod(n for name, n in config.tiles_at("register") if loops.kinds[name] == "k") > 1
        turn = cost.turn if config.staged("resident") else cost.straight_call if straight else cost.call
        several = prod(tile.get(n, 1) for n in loops.of("m")) >= target.l1.ways
        clash = loops.kinds[lane] != "m" and several and self.ways(loops, tile) >= target.l1.ways
        if lane == self.batch and self.st.constant:
            clash = False
            pixel = self.evicted_read(loops, tile, lane) or pixel
        shared = first_reads(loops, tile, self.src, lane)
        rows = prod(n for name, n in tile.items() if loops.kinds[name] == "m" and name != lane)
        groups = self.filled(lane) // self.sizes[self.n]
        two = groups * self.src.get(Var(self.batch), 0) <= 2 * self.lanes * self.unit.terms
        gather = 1 + ((cost.gather if two else cost.gather_singly) - 1) * shared
        order = config.order
        turns = self.turns_pages(lane) and self.n in order and order.index(self.n) > order.index(lane)
        cycles = 0.0
        for m, v, count in tiles:
            held = m * v
            loads = v * read + (held if lane == self.batch else m) * shared * pixel
            if along_rows:
                loads = v * rows * shared * read + m // rows * pixel
            loads += self.lines_apart(loops, config, m) * far
            if not self.st.constant and not near:
                loads *= self.load_stall(loops, config, m, v * (1 if along_k else self.lanes))
            latency = 0.0 if config.staged("resident") or straight else cost.latency  # the next tile begins meanwhile
            each = self.converts and loops.kinds[lane] == "n" and config.realise != "pad_copy"
            converted = cost.convert * m if each else 0.0
            shuffled = m * shared * (apart - 1) * cost.multiply_add
            bounds = held * self.product + converted + shuffled, latency, loads
            step = overlapped(*bounds)
            across = loops.kinds[lane] == "m"
            step += self.latency_stall(loops, config, v * self.lanes if across else m, m if across else v * self.lanes)
            step *= gather if self.dims[lane] == (self.batch, self.n) else 1.0
            step *= cost.crossing if self.bordered(lane) else 1.0
            step *= cost.clash if clash and m >= target.l1.ways else 1.0
            hidden = cost.hidden if self.st.constant else cost.hidden_far
            finish = cost.exposed * cost.multiply_add * max(0.0, held - hidden * target.registers)
            finish += self.sums(held) if along_k else held * self.written(lane, tile, m)
            finish += held * cost.page_turn * turns
            if lane == self.batch:
                live = live_vectors(loops, tile, v, self.src, bool(config.staged("resident")))
                finish += cost.spill * cost.multiply_add * max(0, live - target.registers)
            cycles += count * (steps * step + finish + turn)
            if terms is not None:
                share = count * steps * step / sum(c**OVERLAP for c in bounds)
                for name, c in zip(("multiply-adds", "latency", "loads"), bounds):
                    terms[name] += share * c**OVERLAP
                terms["write-back"] += count * finish
                terms["calls"] += count * turn
        return cycles

    def scattering(self, apart: int, lanes: int) -> float:
        """Return the cycles to store one of ``lanes`` that are ``apart`` bytes from each other in the result."""
        l1, cost = self.target.l1, self.target.costs
        if apart < l1.line:
            return cost.scatter
        places = l1.way // gcd(apart, l1.way)  # sets that the lanes fall into
        return max(cost.scatter_far, cost.scatter_clash) if lanes > places * l1.ways else cost.scatter_far

    def row_read(self, lane: str, passing: int) -> float:
        """Return the cycles to load a vector of pixels of a row, of which ``passing`` bytes are read between two tiles.

        A vector that starts at any tap crosses two cache lines. With a stride, the pixels in between are loaded too,
        unless the source is packed, which takes more vectors if the row is longer than one vector.
        """
        target, pixels = self.target, min(self.sizes[self.dims[lane][-1]], self.lanes)
        vectors = -(-((pixels - 1) * self.row_step(lane) + 1) // self.lanes)
        image = prod(self.st.a.layout.shape[2:]) * self.sizes[self.k] * self.bytes
        load = target.load(target.l1 if min(image, passing) <= target.l1.kept else target.l2)
        return load * (2 * vectors if self.bordered(lane) or not self.reads_once() else 1)

    def evicted_read(self, loops: Loops, tile: dict[str, int], lane: str) -> float:
        """Return the cycles to load a vector of a window whose pixels evict each other from the nearest cache, or 0.

        Each tap then reads them from the second-level cache, in whole lines. A contiguous run begins with a line that
        is not prefetched, which counts as half a line more. Lines that evict lines of the same tap are later.
        """
        if not self.evicts(loops, tile):
            return 0.0
        l1, run = self.target.l1, tile[lane] * self.bytes
        lines = (max(run, l1.line) + l1.line / 2) / run
        return self.target.load(self.target.l2) * lines * max(1.0, self.ways(loops, tile) / l1.ways)

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
        """Return the cycles that windows wait for lines from beyond the first-level cache.

        Each element is multiplied by few weights, which hides a part of the time in which lines arrive. Each run of
        neighbours begins with a line that nothing has fetched ahead, and counts one line more: those of a block of
        channels, or of a tile where the next one does not read its neighbours.
        """
        key = (config.lane, config.tiles_at("register"), config.tiles_at("cache"), *self._places(config))
        if key in self._lines:
            return self._lines[key]
        moved, cost = self.traffic.moved(loops, config), self.target.costs
        jumps = bool(config.staged("resident")) or not self.st.constant
        blocks = dict(config.tiles_at("cache"))
        run = config.size(config.lane) if jumps else blocks.get(config.lane, loops.extents[config.lane])
        near = moved.means[0] * (1 + cost.run * self.target.l1.line / (run * self.bytes))
        far = moved.means[1] if self.footprint() > self.target.l2.bytes else 0.0
        self._lines[key] = (near * cost.exposed_near + far * cost.exposed_far) / self.target.l2.rate
        return self._lines[key]

    def emitted(self, loops: Loops, config: Config) -> int:
        """Return the number of multiply-adds of all register tiles, remainders included, and of stores of scattered
        vectors.

        If taps are part of a tile, the first and the last tile along their axis have different code.
        """
        pieces, taps = [1], {loops.axes[n] for n, _ in config.tiles_at("register") if loops.kinds[n] == "k"} - {""}
        bordered = [n for n in loops.of("m") if loops.axes[n] in taps and not is_true(self.st.a.mask)]
        for name, size in config.tiles_at("register"):
            width = self.filled(name) if name == config.lane else 1
            rests = [-(-n // width) for n, _ in _splits(loops.extents[name], size)]
            rests += rests[:1] * 2 * (name in bordered and size > 1)
            pieces = [p * n for p in pieces for n in rests]
        scattered = loops.kinds[config.lane] != "k" and self.stride_of(config.lane) > 1
        is_transposed = self.transposed(config.lane, dict(config.tiles_at("register")), self.lanes)
        stores = self.lanes.bit_length() - 1 if is_transposed else self.lanes
        copies = prod(self.classes.values()) * prod(len(p.runs) for p in self.phases)
        return sum(pieces) * (stores if scattered else 1) * copies // self.reduction_classes()

    def sums(self, held: int) -> float:
        """Return the cycles to add up the lanes of the accumulators; a vector of sums costs the same if it is not full.
        """
        cycles = self.target.costs.lane_sum
        if held <= self.lanes // 2:
            return held * cycles / 2
        return -(-held // self.lanes) * self.lanes * cycles


def overlapped(*cycles: float) -> float:
    """Return the cycles of work done at once: the longest of ``cycles``, a little more where another is nearly as long.
    """
    return float(sum(c**OVERLAP for c in cycles) ** (1 / OVERLAP))


def _splits(total: int, size: int) -> list[tuple[int, int]]:
    """Return (size, count) of the full tiles and of the remainder."""
    full, rest = divmod(total, size)
    return [x for x in ((size, full), (rest, 1)) if x[0] and x[1]]
