"""The default config: candidates that the target's registers allow, ranked by a model of their cost.

The structural choice comes first: which loop lies along the vector lanes.  Output channels are best where there are
enough of them; else input channels (partial sums, added up at the end), groups, or groups and their channels fused.
Then the register tile: vectors times pixels, as many as the registers hold, such that rests are short and the
pixels do not fall into one set of the first-level cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from convsmith.build.loops import Loops, loops_after_fusing, registers_needed
from convsmith.build.statement import forward
from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, is_true
from convsmith.ir.intern import interning
from convsmith.ir.types import dtype
from convsmith.layout.view import View
from convsmith.passes.flatten import offset
from convsmith.problem.conv import Conv
from convsmith.schedule.config import Config
from convsmith.target.base import Target

CALL = 25
"""Cycles to call a register tile and to set up its loops."""
HIDDEN = 0.66
"""Part of the registers for whose accumulators initialisation and write-back hide behind the neighbouring tiles."""
EXPOSED = 10
"""Multiply-adds that each further accumulator costs a tile."""
LANE_SUM = 4
"""Cycles to add up the lanes of one accumulator among others; half as many where half a vector holds the sums."""
SCATTER = 30
"""Cycles to write the lanes of one vector to places that are no neighbours."""
GATHER = 1.3
"""How much longer a step takes whose source lanes are gathered."""
CLASH = 3.0
"""How much longer a step takes whose pixels evict each other."""
OVERLAP = 4
"""How well arithmetic, loads and latency hide each other; at infinity, wholly."""
PAGE, LINE = 4096, 64
L2_BITS = 256
"""Bits a cycle from the second-level cache."""
L2_SHARE = 1 << 18
"""Bytes of packed weights that stay in the second-level cache while pixels pass."""


@dataclass(frozen=True)
class Choice:
    """A config with the cycles that the model expects, and the multiply-adds that are emitted."""

    cycles: float
    emitted: int
    config: Config


def _steps(view: View, name: str) -> dict[Index, int]:
    """Elements that each variable moves a view by."""
    buffer = Buffer(view.name, dtype(name), view.layout.shape, view.layout.blocks)
    return dict(offset(buffer, view.coords).terms)


class Model:
    """What the candidates of one problem share."""

    def __init__(self, p: Conv, target: Target) -> None:
        self.p, self.target = p, target
        self.st = forward(p)
        self.bytes = dtype(p.dt[0]).bytes
        self.lanes = target.instructions[0].lanes
        self.src, self.dst = _steps(self.st.a, p.dt[0]), _steps(self.st.c, p.dt[2])
        self.taps = prod(p.k)
        self.icg, self.ocg = p.ic // p.g, p.oc // p.g

    def fusions(self) -> tuple[tuple[str, str], ...]:
        """Pixel loops that step through source and destination as one, innermost first."""
        sizes = {d.name: d.size for d in self.st.dims}
        names = [d.name for d in self.st.dims if d.kind == "m"]
        out: list[tuple[str, str]] = []
        inner = names[-1]
        for a, b in zip(reversed(names[:-1]), reversed(names[1:])):
            even = all(s.get(Var(a), 0) == sizes[b] * s.get(Var(b), 0) for s in (self.src, self.dst))
            if not even or not is_true(self.st.a.mask):
                break
            out.append((a, inner))
            inner = f"{a}_{inner}"
        return tuple(out)

    def pixels(self) -> list[str]:
        """Pixel loops once they are fused, outermost first."""
        names = [d.name for d in self.st.dims if d.kind == "m"]
        for a, b in self.fusions():
            names = [*names[:-2], f"{a}_{b}"]
        return names

    def lane_loops(self) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
        """Loops worth lying along the lanes, with what must be fused for it."""
        p = self.p
        depthwise = p.g > 1 and self.icg == self.ocg == 1
        yield ("g" if depthwise else "oc"), ()
        if p.g > 1 and not depthwise and self.ocg < self.lanes:
            yield "g_oc", (("g", "oc"),)
        inner = Var("o" + p.axes[-1])
        if is_true(self.st.a.mask) and self.src.get(inner) == self.dst.get(inner) == 1:
            yield self.pixels()[-1], ()
        if self.icg >= self.lanes // 2 and self.ocg % self.lanes and self.ocg < 4 * self.lanes:
            yield "ic", ()

    def ways(self, loops: Loops, tile: dict[str, int]) -> int:
        """Most pixels of a register tile that fall into one set of the first-level cache."""
        places = [0]
        for name in loops.of("m"):
            stride = self.src.get(Var(name.rsplit("_", 1)[-1]), 0) * self.bytes
            places = [x + i * stride for x in places for i in range(tile.get(name, 1))]
        return max(Counter(x % PAGE // LINE for x in {x // LINE * LINE for x in places}).values())

    def tiles(self, loops: Loops, lane: str) -> Iterator[dict[str, int]]:
        """Register tiles that fit."""
        pixels = loops.of("m")
        inner = pixels[-1]
        size = loops.extents[inner]
        columns = loops.extents["oc"] if lane == "ic" else -(-loops.extents[lane] // self.lanes)
        for v in range(1, min(columns, 7) + 1):
            widest = (self.target.registers - 1 - v) // v
            if widest < 1:
                break
            wide = min(widest, loops.extents["oc"] if lane == inner else size)
            widths = {wide, wide - 1, *(m for m in (4, 5, 6, 7, 8, 12, 14, 16, 28) if m < wide)}
            for m in sorted(w for w in widths if w > 0):
                if lane == inner:
                    tile = {"oc": min(m, loops.extents["oc"]), lane: v * self.lanes}
                else:
                    tile = {inner: m, **({"oc": v} if lane == "ic" else {lane: v * self.lanes})}
                yield tile
                if lane == "ic" and 1 < self.p.k[-1] <= 3 and m * v + m + v < self.target.registers - 1:
                    yield {**tile, "kw": self.p.k[-1]}
                if m == size <= 5 and len(pixels) > 1 and m * 2 <= widest:
                    rows = loops.extents[pixels[-2]]
                    for r in {min(rows, widest // m), 2}:
                        if 1 < r <= rows:
                            yield {pixels[-2]: r, **tile}

    def cycles(self, loops: Loops, config: Config) -> float:
        """Cycles of the whole convolution on one thread."""
        lane, tile, target = config.lane, dict(config.tile), self.target
        along_k = loops.kinds[lane] == "k"
        steps = self.taps * (-(-self.icg // self.lanes) if along_k else self.icg)
        total = loops.extents["oc"] if along_k else -(-loops.extents[lane] // self.lanes)
        columns = _splits(total, tile.get("oc", 1) if along_k else tile[lane] // self.lanes)
        pixels = [(1, 1)]
        rows = ["oc"] if loops.kinds[lane] == "m" else loops.of("m")
        for name in rows:
            pixels = [(m * a, n * b) for m, n in pixels for a, b in _splits(loops.extents[name], tile.get(name, 1))]
        counted = {lane, *rows} | ({"oc"} if along_k else set())
        around = prod(n for name, n in loops.extents.items() if loops.kinds[name] != "k" and name not in counted)
        vector = self.dst.get(Var("g" if lane == "g" else "oc"), 0)
        contiguous = along_k or vector == 1 or lane not in ("g", "oc")
        passing = total if self.pixels_first() else max(v for v, _ in columns)
        weights = passing * self.lanes * steps * self.bytes
        near = weights <= target.l1_bytes // 2
        cost = target.costs
        read = cost.load if near else max(cost.load, target.vector_bits / L2_BITS)
        pixel = cost.load if along_k or lane == "g" else cost.broadcast
        clash = loops.kinds[lane] != "m" and self.ways(loops, tile) >= target.l1_ways
        taps = tile.get("kw", 1)
        cycles = 0.0
        for m, m_count in pixels:
            for v, v_count in columns:
                held = m * v
                loads = v * read + (m + taps - 1) / taps * pixel
                step = _together(held * cost.multiply_add, cost.latency, loads)
                step *= GATHER if lane == "g_oc" else 1.0
                step *= CLASH if clash and m >= target.l1_ways else 1.0
                finish = EXPOSED * cost.multiply_add * max(0.0, held - HIDDEN * target.registers)
                finish += self.sums(held) if along_k else 0.0 if contiguous else held * SCATTER
                cycles += m_count * v_count * (steps * step + finish + CALL)
        return cycles * around

    def sums(self, held: int) -> float:
        """Cycles to add up the lanes of the accumulators; a vector of sums costs the same when it is not full."""
        if held <= self.lanes // 2:
            return held * LANE_SUM / 2
        return -(-held // self.lanes) * self.lanes * LANE_SUM

    def pixels_first(self) -> bool:
        """Whether all weights stay near enough to be read again for each tile of pixels."""
        return self.p.oc * self.icg * self.taps * self.bytes <= L2_SHARE

    def order(self, loops: Loops) -> tuple[str, ...]:
        """Images outermost; then channels, whose weights stay while pixels pass, or pixels where all weights stay."""
        names = [n for n in loops.extents if loops.kinds[n] != "k"]
        pixels = [n for n in names if loops.kinds[n] == "m" and n != "mb"]
        channels = [n for n in names if n not in pixels and n != "mb"]
        inner = [*pixels, *channels] if self.pixels_first() else [*channels, *pixels]
        return (*(n for n in names if n == "mb"), *inner)


def _together(*cycles: float) -> float:
    """Cycles of things done at once: the longest, and a little more where another is nearly as long."""
    return float(sum(c**OVERLAP for c in cycles) ** (1 / OVERLAP))


def _splits(total: int, size: int) -> list[tuple[int, int]]:
    """(size, count) of full tiles and of the rest."""
    full, rest = divmod(total, size)
    return [x for x in ((size, full), (rest, 1)) if x[0] and x[1]]


def candidates(p: Conv, target: Target, threads: int) -> list[Choice]:
    """Configs that make a kernel, best expected first."""
    found = []
    with interning():
        model = Model(p, target)
        pixels = model.fusions()
        taps = ["k" + a for a in p.axes]
        for lane, needed in model.lane_loops():
            fuse = (*needed, *pixels)
            loops = loops_after_fusing(model.st.dims, Config(target.isa, lane, fuse))
            order = model.order(loops)
            for tile in model.tiles(loops, lane):
                reduce = (*taps[:-1], "ic", taps[-1]) if "kw" in tile else (*taps, "ic")
                config = Config(target.isa, lane, fuse, tuple(tile.items()), order, reduce, threads=threads)
                if registers_needed(loops, config, target, model.lanes)[0] <= target.registers:
                    found.append(Choice(model.cycles(loops, config), prod(tile.values()), config))
    if not found:
        raise ConfigError("no-config", f"no config makes a kernel of {p} for {target.isa}")
    found.sort(key=lambda c: (c.cycles, c.emitted))
    return found


def default_config(problem: Conv, target: Target, threads: int = 1) -> Config:
    """The config that the model expects to be fastest."""
    return candidates(problem, target, threads)[0].config
