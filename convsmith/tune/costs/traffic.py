"""Bytes that a nest moves between memories, from the distances at which its loops read the same elements again.

A loop that does not index an operand reads the same elements in each iteration. They are still in a memory that holds
all elements that one iteration reads and writes; otherwise each iteration moves them again.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from convsmith.ir.index import FloorDiv, Index, Var
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.statement.statement import Statement, View, view_steps
from convsmith.tune.costs.features import Section, cycles


class _Axis(NamedTuple):
    """A dim of an array, or a block of one: its size and stride in elements, the elements of the dim ``within`` a
    position of a block, and the distances by which each dim of the nest moves along the dim.
    """

    size: int
    stride: int
    steps: tuple[tuple[str, float], ...]
    within: int = 1

    def touched(self, extents: dict[str, int]) -> float:
        """Return the positions that a part of the nest reads, in which each dim has these ``extents``.

        Contiguous elements come in whole cache lines.
        """
        span, count = 1.0, 1
        for n, step in self.steps:
            extent = extents.get(n, 1)
            span += step * (extent - 1)
            count *= extent
        span = min(max(span / self.within, 1.0), self.size)
        return span if self.stride == 1 else min(span, count)


class TouchedArray:
    """An array as a nest reads it. A packed array is in reading order."""

    def __init__(self, view: View, packed: bool, target: Machine, times: int = 1) -> None:
        memories, self.page = target.memories[:2], target.costs.page
        self.bytes, self.times, self.written = dtype(view.dtype).bytes, times, times > 1
        self.line, self.ways = memories[0].line, [memory.way for memory in memories]
        self.axes = sorted(_axes(view, packed), key=lambda axis: axis.stride)
        self.dims = tuple(dict.fromkeys(n for axis in self.axes for n, _ in axis.steps))
        self._parts: dict[tuple[int, ...], tuple[list[float], list[float], float]] = {}

    def part(self, extents: dict[str, int]) -> tuple[list[float], list[float], float]:
        """Return the bytes that a part of the nest touches, their room, and the pages: each is worked out once."""
        key = tuple([extents.get(n, 1) for n in self.dims])
        if key not in self._parts:
            self._parts[key] = (*self.touched(extents), self.pages(extents))
        return self._parts[key]

    def pages(self, extents: dict[str, int]) -> float:
        """Return the pages that a part of the nest touches, given the ``extents`` of its dims."""
        span, apart = float(self.bytes), 1.0
        for axis in self.axes:
            count, step = axis.touched(extents), axis.stride * self.bytes
            if step < self.page or step <= span:
                span += (count - 1) * (step or span)
            else:
                apart *= count
        return apart * max(1.0, span / self.page)

    def touched(self, extents: dict[str, int]) -> tuple[list[float], list[float]]:
        """Return the bytes that a part of the nest touches, in which each dim has these ``extents``, and their room.

        Both have a value for each memory. Beyond the second-level cache, each run of neighbours begins with a line that
        nothing has fetched ahead, and counts one line more.

        The room is that of the bytes in each memory: first where they spread over all of its sets, then where runs that
        are a multiple of a way apart share few of them. That is no loss for a result, which nothing reads again.
        """
        run, total, apart = float(self.bytes), 1.0, 0
        for axis in self.axes:
            count = axis.touched(extents)
            total *= count
            if apart or count == 1:
                continue
            if axis.stride and axis.stride * self.bytes > run:
                apart = axis.stride * self.bytes
            else:
                run *= count
        filled = max(run, self.line) if apart else run
        moved = total * self.bytes * self.times * filled / run
        shared = [1.0 if self.written or not apart else max(1.0, gcd(apart, way) / filled) for way in self.ways]
        far = moved * (1 + self.line / filled) if apart and not self.written else moved
        return [moved, far], [moved] * len(self.ways) + [moved * x for x in shared]


def _axes(view: View, packed: bool) -> list[_Axis]:
    """Return the dims of an array that a nest moves along, or their blocks in memory; a ``packed`` array has none of
    the strides of a layout.
    """
    found = []
    for dim, (size, coord) in enumerate(zip(view.layout.shape, view.coords)):
        steps, within = _steps(coord), 1
        if not steps:
            continue
        if packed:
            found.append(_Axis(size, 0, steps))
            continue
        for block in reversed(view.layout.blocks):
            if block.dim == dim:
                found.append(_Axis(block.size, block.stride, steps, within))
                within *= block.size
    return found


def _steps(coord: Index) -> tuple[tuple[str, float], ...]:
    """Return the elements by which each variable moves a coordinate."""
    steps: list[tuple[str, float]] = []
    for atom, c in coord.terms:
        if isinstance(atom, Var):
            steps.append((atom.name, abs(c)))
        elif isinstance(atom, FloorDiv):
            steps += [(v.name, abs(c * n) / atom.den) for v, n in atom.num.terms if isinstance(v, Var)]
    return tuple(steps)


class MovedBytes(NamedTuple):
    """Bytes that a nest moves to the first-level cache, ``near``, and to the second-level cache, ``far``; and both if
    runs that are a multiple of a way apart evict each other (``in_conflict``). Addresses of ``pages`` are looked up.
    """

    near: float
    far: float
    near_in_conflict: float
    far_in_conflict: float
    pages: float

    @property
    def means(self) -> tuple[float, float]:
        """Near and far bytes, means of those with and without conflicts, which depend on more than strides."""
        return (self.near + self.near_in_conflict) / 2, (self.far + self.far_in_conflict) / 2


class Traffic:
    """The operands of a statement, and the bytes that its nests move."""

    def __init__(self, st: Statement, target: Machine) -> None:
        self.st, self.target = st, target
        self.sizes = st.extents
        self.operands: dict[tuple[tuple[str, ...], int], list[TouchedArray]] = {}
        self._once: dict[tuple[str, ...], float] = {}
        self._tiles: dict[tuple[object, ...], _NestPart] = {}
        """The bytes that a config's register tile moves, its sums included, in any order of the loops around it."""
        self._moved: dict[tuple[object, ...], MovedBytes] = {}
        """The bytes that a nest moves, by the order of the loops around its register tile that run more than once."""

    def of(self, config: Config, kept: int = 1) -> list[TouchedArray]:
        """Return the operands under ``config``, which packs some of them; memory keeps ``kept`` partial sums for each
        sum.
        """
        if (config.staged("pack"), kept) not in self.operands:
            moves = self.target.costs.result_moves * kept
            read = [TouchedArray(view, view.name in config.staged("pack"), self.target) for view in self.st.factors]
            self.operands[config.staged("pack"), kept] = [*read, TouchedArray(self.st.c, False, self.target, moves)]
        return self.operands[config.staged("pack"), kept]

    def is_far(self, config: Config) -> bool:
        """Return whether the second-level cache is too small for all that the nest reads and writes."""
        return self.once(config) > self.target.l2.bytes

    def once(self, config: Config) -> float:
        """Return the bytes that move to the first-level cache if it holds each element from its first use on."""
        key = config.staged("pack")
        if key not in self._once:
            self._once[key] = sum(x.touched(self.sizes)[0][0] for x in self.of(config))
        return self._once[key]

    def cycles(self, loops: Loops, config: Config, order: tuple[str, ...] | None = None) -> float:
        """Return the cycles in which the caches deliver all lines that the nest, whose loops may be in another
        ``order``, loads into the first-level cache.
        """
        return self._delivered(self.moved(loops, config, order), config)

    def least(self, config: Config) -> float:
        """Return a lower bound of `cycles` for any order and any cache tiles: each element moves once."""
        once = _NestPart.once(self.sizes, self.of(config))
        return self._delivered(MovedBytes(*(sum(x) for x in once.moved)), config)

    def streams_lines(self, config: Config) -> bool:
        """Return whether a gradient of 1x1 weights reads factors in streams: the cache lines of a block of channels
        follow each other from pixel to pixel, and the last cache delivers them faster than lines one by one.
        """
        costs, line = self.target.costs, self.target.l1.line
        is_slow = self.st.constant or config.staged("pack") or costs.streamed_pixels >= costs.beyond
        if is_slow or any(d.axis and d.size > 1 for d in self.st.of("m")):
            return False
        pixel = Var(self.st.reduce[-1])
        return all(view_steps(x).get(pixel, 0) * dtype(x.dtype).bytes == line for x in self.st.factors)

    def _delivered(self, moved: MovedBytes, config: Config) -> float:
        """Return the cycles in which memories deliver what is ``moved``."""
        near, far = moved.means
        streamed = "streamed_pixels_byte" if self.st.constant or self.streams_lines(config) else "streamed_byte"
        events = ("l2_byte", near), (streamed, far), ("page_walk", moved.pages)
        return cycles((Section(1, (("traffic", events),)),), self.target)

    def moved(self, loops: Loops, config: Config, order: tuple[str, ...] | None = None) -> MovedBytes:
        """Return the bytes that move between memories, if the loops around the register tile are in ``order``, by
        default in that of ``config``.
        """
        lanes = self.target.width(dtype(self.st.acc))
        parts = any(loops.kinds.get(n) == "k" for n, _ in config.tiles_at("cache")) and loops.kinds[config.lane] == "k"
        operands = self.of(config, lanes if parts else 1)
        costs = self.target.costs
        held = (*(self.target.l1.bytes, self.target.l2.bytes) * 2, costs.pages_near // costs.page)
        sizes = _tile(loops, config, lanes)
        loops_around, tile_loops = _levels(loops, config, sizes, config.order if order is None else order)
        tiles = (config.tiles_at(level) for level in ("register", "k_step", "cache"))
        key = (config.lane, config.fuse, config.reduce, config.staged("pack"), *tiles)
        if key not in self._tiles:
            extents: dict[str, int] = {}
            for n in loops.extents:
                extents |= self.spread(loops, n, min(sizes[n], loops.extents[n]))
            inner = _NestPart.once(extents, operands)
            self._tiles[key] = self.around(loops, tile_loops, inner, operands, held)
        running = (*key, *(loop for loop in loops_around if loop.trips > 1))
        if running not in self._moved:
            whole = self.around(loops, loops_around, self._tiles[key], operands, held)
            self._moved[running] = MovedBytes(*(sum(x) for x in whole.moved))
        return self._moved[running]

    def around(
        self, loops: Loops, levels: list[_Level], inner: _NestPart, operands: list[TouchedArray], held: tuple[int, ...]
    ) -> _NestPart:
        """Return the part of a nest that has the loops ``levels`` around an ``inner`` part; memories hold ``held``
        bytes.
        """
        nest = inner
        for loop in reversed(levels):
            if loop.trips < 2:
                continue
            covered = self.spread(loops, loop.name, min(loop.covered, loops.extents[loop.name]))
            once = _NestPart.once(nest.extents | covered, operands)
            moved = []
            for most, rooms, new, old in zip(held, nest.rooms, once.moved, nest.moved):
                room = sum(rooms[:-1] if loop.in_registers else rooms)
                again = new if room <= most else [x * loop.trips for x in old]
                moved.append([*again[:-1], old[-1]] if loop.in_registers else again)
            nest = _NestPart(once.extents, once.rooms, moved)
        return nest

    def spread(self, loops: Loops, loop: str, extent: int) -> dict[str, int]:
        """Return the extents of the dims of a loop, which may be fused, that ``extent`` of its iterations cover."""
        covered = {}
        for n in reversed(loops.dims[loop]):
            covered[n] = min(extent, self.sizes[n])
            extent = -(-extent // self.sizes[n])
        return covered


class _NestPart(NamedTuple):
    """A part of a nest: the extents of its dims and, for each memory, the room that each operand takes and the bytes
    that it moves.

    The last memory is the TLB, which holds pages. The last operand is the result.
    """

    extents: dict[str, int]
    rooms: list[list[float]]
    moved: list[list[float]]

    @staticmethod
    def once(extents: dict[str, int], operands: list[TouchedArray]) -> _NestPart:
        """Return the part with these ``extents`` where each element moves once."""
        parts = [x.part(extents) for x in operands]
        rooms = [list(each) for each in zip(*(rooms for _, rooms, _ in parts))]
        moved = [list(each) for each in zip(*(moved for moved, _, _ in parts))]
        pages = [pages for _, _, pages in parts]
        return _NestPart(extents, [*rooms, pages], [*moved * 2, pages])


class _Level(NamedTuple):
    """A loop around a register tile; its iterations cover ``extent`` part by part.

    The sums are ``in_registers`` while it runs.
    """

    name: str
    trips: int
    covered: int
    in_registers: bool


def _tile(loops: Loops, config: Config, lanes: int) -> dict[str, int]:
    """Return the iterations of each loop within a register tile, whose vectors have ``lanes``."""
    sizes = dict.fromkeys(loops.extents, 1)
    for name, size in (*config.tiles_at("register"), *config.tiles_at("k_step"), (config.lane, lanes)):
        sizes[name] = max(sizes[name], size)
    return sizes


def _levels(
    loops: Loops, config: Config, sizes: dict[str, int], order: tuple[str, ...]
) -> tuple[list[_Level], list[_Level]]:  # fmt: skip
    """Return the loops around a register tile of these ``sizes``, which are in ``order``, and around its sums,
    outermost first.
    """
    left = dict(loops.extents)
    around = []
    for n, size in config.tiles_at("cache"):
        if size < left.get(n, 1):
            around.append(_Level(n, -(-left[n] // size), left[n], False))
            left[n] = size
    names = [n for n in dict.fromkeys((*order, *left)) if n in left and loops.kinds[n] != "k"]
    around += [_Level(n, -(-left[n] // sizes[n]), left[n], False) for n in names]
    reduce = dict.fromkeys((*config.reduce, *loops.of("k")))
    return around, [_Level(n, -(-left[n] // sizes[n]), left[n], True) for n in reduce]
