"""Candidate configs of Winograd programs, with their expected cycles.

A config gives the tile of pixels, the block of tiles, and the schedule of a block's product, whose register tile the
model of products ranks. Transforms are straight-line code on vectors. Weights that exceed the second-level cache are
read from beyond it for each block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf, prod
from typing import Any, NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.types import dtype
from convsmith.layout.layout import Layout
from convsmith.machine.base import Machine
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import Sizes
from convsmith.schedule.loops import fused_name, loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.registers import registers
from convsmith.schedule.winograd import product_config, transposition, winograd_of
from convsmith.statement.channel_copies import ChannelCopy
from convsmith.statement.filtered_axis import dilations, tiles_of
from convsmith.statement.phases import phases
from convsmith.statement.statement import Dim, Statement
from convsmith.statement.winograd import FREQUENCY, WEIGHTS, Winograd
from convsmith.tune.costs.code_size import emitted
from convsmith.tune.costs.cold_weights import weights_read
from convsmith.tune.costs.far_lines import is_in_memory
from convsmith.tune.costs.features import Features, Section, cycles, times
from convsmith.tune.costs.model import Model

PIXELS = (4, 2)
"""Pixels of a tile along an axis."""
OF_CLASS = (2,)
"""Pixels of a tile in one residue class, along an axis with a stride in backward by data. With 4, a tile of two axes
has 81 frequencies or more, whose weights come from beyond the second-level cache: slower on 9 of 11 layers.
"""
BLOCKS = (14, 28, 56, 112)
"""Approximate numbers of tiles of a block: whole rows of tiles, or parts of one row."""
BLOCK_TIE_RATIO = 1.05
"""Ratio of expected cycles within which the block with the smallest arrays is chosen, if the arrays of the fastest one
exceed the tensors. The model is no more exact: twelve transforms on a Xeon take 0.95 of the time with such blocks in
the mean, none more than 1.02. Where the arrays are smaller, smaller blocks made two of eight slower, by 1.1 and 1.2.
"""
MIN_GAIN = 1.08
"""Minimum ratio of the direct kernel's cycles to a transform's cycles at which a transform with a larger error is
chosen.
"""
MIN_SAVED = 1.5
"""Minimum number of products of bytes, padding included, for each product of words in a transform. With fewer, as with
a stride of 2 at 3 taps or two taps of one axis, four of five transforms took 1.17 to 1.31 of the time of direct kernels
on a Zen 3, and 16 of 17 others 0.72 to 0.94.
"""
MIN_PRESENT = 1.45
"""Minimum number of them whose taps are present, since direct kernels skip the others. Padded images of 7x7 pixels have
1.41, and transforms took 0.94 to 1.08 of the time there.
"""
MAX_VECTORS = 4
"""Maximum number of vectors of channels of a register tile."""


def winograd_configs(
    problem: Problem, st: Statement, target: Machine, threads: int
) -> Iterator[tuple[float, int, Config]]:
    """Yield the Winograd configs of ``problem``, with cycles on one thread and emitted multiply-adds.

    ``st`` is the direct statement of ``problem``.
    """
    if not isinstance(problem, Conv) or not problem.has_transforms or problem.accuracy == "strict":
        return
    if problem.depthwise is not None or not st.constant:
        return
    taps = {d.axis: d.size for d in st.of("k") if d.axis}
    pixels = [d for d in st.of("m") if d.axis and taps.get(d.axis, 1) > 1]
    if not pixels:
        return
    for sizes, blocks in _tilings(st, pixels, OF_CLASS if phases(st) else PIXELS, threads):
        found: list[_BlockChoice] = []
        least = inf
        for block, of_threads in blocks:
            base = Config(target.name, st.n, pack=(WEIGHTS,), winograd=sizes, block=block, threads=threads)
            try:
                made = winograd_of(problem, base, target, dynamic=False)
            except ConfigError:
                continue
            if (unit := _unit(made, target)) is None:
                continue  # products of words take several instructions
            base = base.changed(instruction=unit.name, k_step=((made.product.reduce[-1], unit.terms),) * unit.dot)
            products = made.tasks * prod(made.product.extents.values())
            if products >= problem.flops_real:
                continue  # twice the products of a direct kernel, which skips the taps in the padding of small images
            most = min(problem.flops_dense / MIN_SAVED, problem.flops_real / MIN_PRESENT)
            if made.is_integer and 2 * products > most:
                continue
            if target.costs.prefetches_transform(_bytes_of_weights(made)):
                base = base.changed(stream=(WEIGHTS,))
            if not all(_is_transposed(copy, made, target) for copy in made.copies):
                continue
            idle = -(-made.tasks // threads) * threads / made.tasks
            arrays = made.array_bytes * threads
            schedules = [*_schedules(problem, made, base, unit, target)]
            found += (_BlockChoice(x[0] * idle, arrays, *x) for x in schedules)
            # Threads determine only the blocks, because the numerical result must not depend on them.
            least = least if of_threads else min([least, *(x[0] for x in schedules)])
        if least == inf:
            continue
        chosen, others = _with_small_blocks(found, sum(t.nbytes for t in problem.tensors))
        yield least, chosen.emitted, chosen.config
        if threads == 1:
            yield from ((x.cycles, x.emitted, x.config) for x in others)


def _unit(made: Winograd, target: Machine) -> ProductShape | None:
    """Return the unit of the products of a transform; None if the machine has no dot product of its words, or one of
    more bytes that is exact for all of them, which takes about as long as a transform.
    """
    plain = ProductShape.plain(made.product, target)
    if not made.is_integer:
        return plain
    unit, direct = ProductShape.choices(made.product, target)[0], made.direct
    of_bytes = target.nearest(direct.a.dtype, direct.b.dtype, direct.acc)
    is_slower = of_bytes is None or of_bytes.limit > 0 or of_bytes.terms <= unit.terms
    return unit if unit.dot and is_slower else None


class _BlockChoice(NamedTuple):
    """A config with the cycles until the last thread ends, the bytes of the arrays of a block of each thread, the
    cycles on one thread and the number of emitted multiply-adds.
    """

    end: float
    arrays: int
    cycles: float
    emitted: int
    config: Config


def _with_small_blocks(found: list[_BlockChoice], tensors: int) -> tuple[_BlockChoice, list[_BlockChoice]]:
    """Return the choice that ends first, and all others. If its arrays exceed the bytes of the ``tensors``, it is the
    choice of the smallest arrays among those that end at nearly the same time, and those with larger arrays are left
    out.
    """
    chosen = min(found, key=lambda x: x.end)
    if chosen.arrays > tensors:
        last = chosen.end * BLOCK_TIE_RATIO
        chosen = min((x for x in found if x.end <= last), key=lambda x: (x.arrays, x.end))
        found = [x for x in found if x.end > last or x.arrays <= chosen.arrays]
    return chosen, [x for x in found if x is not chosen]


def _tilings(
    st: Statement, pixels: list[Dim], counts: Iterable[int], threads: int
) -> Iterator[tuple[Sizes, Iterator[tuple[Sizes, bool]]]]:  # fmt: skip
    """Yield tiles of ``counts`` of ``pixels`` along each axis, or of a residue class of it, with blocks of them, and
    whether each block is for several threads alone.

    A tile has one pixel, or one of each class, along the other axes, and a block may end within them too.
    """
    images = next(d for d in st.of("m") if d.sort == "images")
    strides = {name: phase.stride for name, phase in phases(st).items()}
    whole = {d.name: strides.get(d.name, 1) for d in st.of("m") if d.axis}
    apart = {d.name: distance for d in pixels if (distance := dilations(st).get(d.name)) and d.name not in strides}
    for m in counts:
        sizes = {d.name: m * whole[d.name] for d in pixels}
        tiles = {
            d.name: tiles_of(d.size, sizes.get(d.name, whole[d.name]), apart.get(d.name, 1))
            for d in st.of("m") if d.axis
        }  # fmt: skip
        yield tuple(sizes.items()), _blocks(images, tiles, prod(apart.values()), threads)


def _blocks(images: Dim, tiles: dict[str, int], phases: int, threads: int) -> Iterator[tuple[Sizes, bool]]:
    """Yield blocks of about each number of tiles in `BLOCKS`, the block of all ``tiles`` of an image, and its part for
    each of several ``threads``, with whether it is only for these. Tiles of all ``phases`` of dilated taps are in a
    block.

    Outer axes are divided first; blocks that hold a whole image hold several if there are more ``images``.
    """
    found: dict[Sizes, bool] = {(): False}
    every = {images.name: images.size, **tiles}
    names = list(every)
    shares = (-(-prod(tiles.values()) * phases // threads),) if images.size % threads else ()
    for most in (*BLOCKS, *shares):
        block: list[tuple[str, int]] = []
        for n, name in enumerate(names):
            inner = prod(every[x] for x in names[n + 1 :]) * phases
            part = min(every[name], -(-most // inner))
            part = -(-every[name] // -(-every[name] // part))
            if part != (1 if name == images.name else every[name]):
                block.append((name, part))
            if part > 1:
                break
        found.setdefault(tuple(block), most not in BLOCKS)
    yield from found.items()


def winograd_features(problem: Problem, config: Config, target: Machine) -> Features:
    """Return the features of a legal Winograd ``config`` on one thread, `MIN_GAIN` times as many if its numerical error
    exceeds that of the direct kernel.
    """
    made = winograd_of(problem, config, target, dynamic=False)
    own = product_config(config)
    return _Products(problem, made, target, ProductShape.of(made.product, target, own), config.fuse).features(own)


def _schedules(
    problem: Problem, made: Winograd, base: Config, unit: ProductShape, target: Machine
) -> Iterator[tuple[float, int, Config]]:
    """Yield the configs of ``made`` with each register tile of its product, which ``unit`` computes."""
    fuse, outer = _fused_tiles(made)
    products = _Products(problem, made, target, unit, fuse)
    around = (FREQUENCY, *(d.name for d in made.direct.of("batch")))
    base = base.changed(fuse=fuse, reduce=made.product.reduce, outline=False)
    loops = products.loops
    vectors = -(-loops.extents[base.lane] // unit.lanes)
    for tile in _tiles(loops.extents[outer], outer, vectors, base.lane, unit, target):
        for inner in ((base.lane, outer), (outer, base.lane))[: 2 if target.costs.interrupted else 1]:
            made_config = base.changed(order=(*around, *inner), register=tile)
            config = product_config(made_config)
            if registers(loops, config, target, unit, unit.lanes).fit:
                code = emitted(products.model, loops, config)
                yield cycles(products.features(config), target), code, made_config


def _fused_tiles(made: Winograd) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return the pairs of loops over tiles of a block that are fused, and the name of the fused loop."""
    fuse: list[tuple[str, str]] = []
    outer, *inner = (f"t{x.letter}" for x in made.tiled if x is not made.images or x.block > 1)
    for name in inner:
        fuse.append((outer, name))
        outer = fused_name(outer, name)
    return tuple(fuse), outer


def transform_steps(problem: Problem, config: Config, target: Machine) -> Iterator[dict[str, Any]]:
    """Yield the changes of a Winograd ``config`` to other tiles of pixels, and to other blocks of tiles."""
    made = winograd_of(problem, config, target, dynamic=False)
    before = _fused_tiles(made)
    pixels = [d for d in made.direct.of("m") if d.name in dict(config.tiles_at("winograd"))]
    for sizes, blocks in _tilings(made.direct, pixels, PIXELS, config.threads):
        for block, _ in blocks:
            try:
                after = winograd_of(problem, config.changed(winograd=sizes, block=block), target, dynamic=False)
            except ConfigError:
                continue
            if config.fuse == before[0]:
                (fuse, name), old = _fused_tiles(after), before[1]
                register = tuple((name if n == old else n, size) for n, size in config.tiles_at("register"))
                order = tuple(name if n == old else n for n in config.order)
                yield dict(winograd=sizes, block=block, fuse=fuse, register=register, order=order)


class _Products:
    """Facts that all schedules of the products of one program share."""

    def __init__(
        self, problem: Problem, made: Winograd, target: Machine, unit: ProductShape, fuse: tuple[tuple[str, str], ...]
    ) -> None:  # fmt: skip
        self.made, self.target = made, target
        self.model = Model(problem, made.product, target, unit)
        for a, b in fuse:
            self.model.fuse(a, b)
        self.loops = loops_after_fusing(made.product, Config(target.name, made.product.n, fuse=fuse))
        read = weights_read(made.product, target, made.tasks)
        self.around = _transforms(made), _copies(made, target), _far(made, target), read

    def features(self, config: Config) -> Features:
        """Return the features of the program if ``config`` is the schedule of its products."""
        products = times(self.model.nests(self.loops, config), self.made.tasks)
        waits = (self._waits(config),) if self.target.costs.interrupted else ()
        return times((*products, *self.around, *waits), MIN_GAIN if self.made.error > 1 else 1.0)

    def _waits(self, config: Config) -> Section:
        """Return the section of waiting for weights beyond the second-level cache that several register tiles of pixels
        use. Their stream is interrupted where all tiles use the weights of a vector before the next ones are loaded;
        otherwise each tile loads the weights of a frequency again, if that cache does not hold them.
        """
        weights, l2, (*_, outer, inner) = _bytes_of_weights(self.made), self.target.l2, config.order
        pixels = inner if inner != config.lane else outer
        tiles = -(-self.loops.extents[pixels] // config.size(pixels))
        if pixels == inner:
            lines = (tiles > 1 and weights + self.made.array_bytes > l2.bytes) * weights / l2.line
            return Section(self.made.tasks, (("interrupted weights", (("interrupted", lines),)),))
        far = weights > l2.bytes * prod(x.frequencies for x in self.made.axes)
        return Section(self.made.tasks, (("weights again", (("transform_far.first", far * (tiles - 1) * weights),)),))


def _tiles(
    tiles: int, loop: str, vectors: int, lane: str, unit: ProductShape, target: Machine
) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield register tiles of as many tiles of pixels as registers hold, in equal parts, for each number of vectors."""
    for v in range(1, min(vectors, MAX_VECTORS) + 1):
        if v > 1 and target.vectors.scalable and (vectors % v or vectors < v * target.costs.scalable_units):
            continue
        most = (target.registers - 1 - target.costs.temporaries - unit.temporaries - v) // v
        if most > 0:
            yield ((loop, -(-tiles // -(-tiles // most))), (lane, v * unit.lanes))


def _transforms(made: Winograd) -> Section:
    """Return the section of the transforms of source and result."""
    loads, products = 0.0, 0.0
    for matrix, view in (("input", made.product.a), ("output", made.product.c)):
        codes = [getattr(x.codes, matrix) for x in made.axes]
        shape = [code.inputs for code in codes]
        vectors: float = -(-view.layout.shape[-1] // made.width("s" if matrix == "input" else "d"))
        if matrix == "input":
            vectors *= prod(x.sources / x.block for x in made.axes)
        for n, code in enumerate(codes):
            lines = prod(shape) // shape[n] * vectors
            shape[n] = len(code.results)
            loads += lines * (code.inputs + 2 * len(code.results))
            products += lines * code.operations
    tiles, events = made.tasks * prod(x.block for x in made.tiled), (("l1", loads), ("multiply_add", products))
    return Section(tiles, (("transforms", events),), (("transform", 1.0),))


def _is_transposed(copy: ChannelCopy, made: Winograd, target: Machine) -> bool:
    """Return whether vectors of pixels and of channels are transposed in registers, and no block ends within a row."""
    row = made.axes[-1]
    return transposition(copy, target) is not None and (row.blocks == 1 or row.outputs % (row.m * row.block) == 0)


def _copies(made: Winograd, target: Machine) -> Section:
    """Return the section of the copies of groups of channels. Vectors of pixels evict each other from the first-level
    cache if the channels of a group share few of its sets.
    """
    ends = {"s": made.direct.a, "d": made.direct.c}
    events: list[tuple[str, float]] = []
    for copy in made.copies:
        elements = prod(copy.buffer.shape) * -(-ends[copy.name].layout.shape[1] // copy.width)
        events += [("pack_channels", elements), ("pack_channels.arriving", elements * copy.reads)]
        events += [("clash", elements / copy.width * _are_evicted(copy, ends[copy.name].layout, target))]
    return Section(made.tasks, (("copies of channels", tuple(events)),))


def _are_evicted(copy: ChannelCopy, layout: Layout, target: Machine) -> bool:
    """Return whether the first-level cache does not keep a line of each channel of a group of ``copy``."""
    if not layout.is_plain:
        return False  # channels of a block are adjacent
    apart = layout.strides[1] * copy.buffer.dtype.bytes
    return copy.width > target.l1.lines_kept(apart, target.costs.added_ways)


def _bytes_of_weights(made: Winograd) -> int:
    return made.product.b.layout.size * dtype(made.product.b.dtype).bytes


def _far(made: Winograd, target: Machine) -> Section:
    """Return the section of moving weights and arrays of a block from and to beyond the second-level cache.

    Where no cache keeps the arrays, their lines come from memory. A transform moves a vector of each frequency, and
    each frequency is on its own pages: more pages than the first-level TLB has entries, or pages of arrays that exceed
    all TLBs.
    """
    costs, weights = target.costs, _bytes_of_weights(made)
    arrays = made.array_bytes
    line = "transform_prefetched" if costs.prefetches_transform(weights) else "transform_far"
    first = weights * (weights + arrays > target.l2.bytes)
    through = 2 * arrays * (arrays > target.l2.bytes) * made.tasks
    events: list[tuple[str, float]] = [
        (f"{line}.first", first), (f"{line}.again", first * (made.tasks - 1)), (f"{line}.arrays", through),
    ]  # fmt: skip
    if is_in_memory(target, arrays):
        events.append(("memory_line", through / target.l2.line))
    frequencies = prod(x.frequencies for x in made.axes)
    vectors = made.tasks * arrays / (dtype(made.product.c.dtype).bytes * made.width("d"))
    if arrays > costs.pages_near:
        events.append(("page_turn", vectors))
    elif frequencies > costs.pages and arrays > frequencies * costs.page:
        events.append(("page_turn_near", vectors))
    return Section(1, (("far memory", tuple(events)),))
