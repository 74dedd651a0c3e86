"""Candidate configs of Winograd programs, with their expected cycles.

A config gives the tile of pixels, the block of tiles, and the schedule of a block's product, whose register tile the
model of products ranks. Transforms are straight-line code on vectors. Weights that exceed the second-level cache are
read from beyond it for each block.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from convsmith.arith.linear_map import linear_code
from convsmith.diag.errors import ConfigError
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import fused_name, loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.registers import registers
from convsmith.schedule.winograd import product_config, transposition, winograd_of
from convsmith.statement.channel_copies import ChannelCopy
from convsmith.statement.phases import phases
from convsmith.statement.statement import Dim, Statement
from convsmith.statement.winograd import FREQUENCY, WEIGHTS, Winograd
from convsmith.tune.model import Model

PIXELS = (4, 2)
"""Pixels of a tile along an axis."""
OF_CLASS = (2,)
"""Pixels of a tile in one residue class, along an axis with a stride in backward by data. With 4, a tile of two axes
has 81 frequencies or more, whose weights come from beyond the second-level cache: slower on 9 of 11 layers.
"""
BLOCKS = (14, 28, 56, 112)
"""Approximate numbers of tiles of a block: whole rows of tiles, or parts of one row."""
WORTH = 1.08
"""Minimum ratio of the direct kernel's cycles to a transform's cycles at which a transform with a larger error is
chosen.
"""
WIDE = 4
"""Maximum number of vectors of channels of a register tile."""


def winograd_configs(
    problem: Problem, st: Statement, target: Machine, threads: int
) -> Iterator[tuple[float, int, Config]]:
    """Yield the Winograd configs of ``problem``, with cycles on one thread and emitted multiply-adds.

    ``st`` is the direct statement of ``problem``.
    """
    if not isinstance(problem, Conv) or not problem.has_transforms or problem.accuracy == "strict":
        return
    if problem.depthwise is not None or st.sums or st.shifted or not st.constant:
        return
    taps = {d.axis: d.size for d in st.of("k") if d.axis}
    pixels = [d for d in st.of("m") if d.axis and taps.get(d.axis, 1) > 1]
    if not pixels:
        return
    images = next(d for d in st.of("m") if d.sort == "images")
    strides = {name: phase.stride for name, phase in phases(st).items()}
    for m in OF_CLASS if strides else PIXELS:
        sizes = tuple((d.name, m * strides.get(d.name, 1)) for d in pixels)
        found: list[tuple[float, float, int, Config]] = []
        for block in _blocks(images, {d.name: -(-d.size // dict(sizes)[d.name]) for d in pixels}):
            base = Config(target.name, st.n, pack=(WEIGHTS,), winograd=sizes, block=block, threads=threads)
            try:
                made = winograd_of(problem, base, target, dynamic=False)
            except ConfigError:
                continue
            if target.costs.prefetches_transform(_bytes_of_weights(made)):
                base = base.changed(stream=(WEIGHTS,))
            if not all(_is_transposed(copy, made, target) for copy in made.copies):
                continue
            idle = -(-made.tasks // threads) * threads / made.tasks
            found += ((cycles * idle, cycles, n, c) for cycles, n, c in _schedules(problem, made, base, target))
        if threads == 1:
            yield from ((cycles, emitted, config) for _, cycles, emitted, config in found)
        elif found:
            # Threads determine only the blocks, because the numerical result must not depend on them.
            _, _, emitted, config = min(found, key=lambda choice: choice[0])
            yield min(cycles for _, cycles, _, _ in found), emitted, config


def _blocks(images: Dim, tiles: dict[str, int]) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield blocks of about each number of tiles in `BLOCKS`, and the block of all ``tiles`` of an image.

    Outer axes are divided first; blocks that hold a whole image hold several if there are more ``images``.
    """
    found: dict[tuple[tuple[str, int], ...], None] = {(): None}
    every = {images.name: images.size, **tiles}
    names = list(every)
    for most in BLOCKS:
        block: list[tuple[str, int]] = []
        for n, name in enumerate(names):
            inner = prod(every[x] for x in names[n + 1 :])
            part = min(every[name], -(-most // inner))
            part = -(-every[name] // -(-every[name] // part))
            if part != (1 if name == images.name else every[name]):
                block.append((name, part))
            if part > 1:
                break
        found[tuple(block)] = None
    yield from found


def winograd_cycles(problem: Problem, config: Config, target: Machine) -> float:
    """Return the cycles of a legal Winograd ``config`` on one thread, with a factor for an error beyond the direct one.
    """
    made = winograd_of(problem, config, target, dynamic=False)
    return _Products(problem, made, target, config.fuse).cycles(product_config(config))


def winograd_terms(problem: Problem, config: Config, target: Machine) -> dict[str, float]:
    """Return the cycles of `winograd_cycles` by cause: products, transforms, copies, and loads from far memory."""
    made = winograd_of(problem, config, target, dynamic=False)
    return _Products(problem, made, target, config.fuse).terms(product_config(config))


def _schedules(
    problem: Problem, made: Winograd, base: Config, target: Machine
) -> Iterator[tuple[float, int, Config]]:
    """Yield the configs of ``made`` with each register tile of its product."""
    fuse, outer = _fused_tiles(made)
    products = _Products(problem, made, target, fuse)
    order = (FREQUENCY, *(d.name for d in made.direct.of("batch")), base.lane, outer)
    base = base.changed(fuse=fuse, order=order, reduce=made.product.reduce, outline=False)
    own, loops, unit = product_config(base), products.loops, products.model.unit
    vectors = -(-loops.extents[base.lane] // unit.lanes)
    for tile in _tiles(loops.extents[outer], outer, vectors, base.lane, unit, target):
        config = own.changed(register=tile)
        if registers(loops, config, target, unit, unit.lanes).fit:
            emitted = products.model.emitted(loops, config)
            yield products.cycles(config), emitted, base.changed(register=config.tiles_at("register"))


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
    images = next(d for d in made.direct.of("m") if d.sort == "images")
    strides = {name: phase.stride for name, phase in phases(made.direct).items()}
    for m in PIXELS:
        sizes = tuple((d.name, m * strides.get(d.name, 1)) for d in pixels)
        for block in _blocks(images, {d.name: -(-d.size // dict(sizes)[d.name]) for d in pixels}):
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

    def __init__(self, problem: Problem, made: Winograd, target: Machine, fuse: tuple[tuple[str, str], ...]) -> None:
        self.made = made
        self.model = Model(problem, made.product, target, ProductShape.plain(made.product, target))
        for a, b in fuse:
            self.model.fuse(a, b)
        self.loops = loops_after_fusing(made.product, Config(target.name, made.product.n, fuse=fuse))
        absent = problem.flops_dense / max(problem.flops_real, 1)  # grows with the number of tiles at borders
        self.causes = {
            "transforms": _transforms(made, target) * absent, "copies of channels": _copies(made, target),
            "far memory": _far(made, target),
        }  # fmt: skip
        self.around = sum(self.causes.values())

    def cycles(self, config: Config) -> float:
        """Return the cycles of the program if ``config`` is the schedule of its products."""
        return self.error_factor * (self.model.cycles(self.loops, config) * self.made.tasks + self.around)

    def terms(self, config: Config) -> dict[str, float]:
        """Return the cycles by cause."""
        terms = self.model.cycles_by_cause(self.loops, config)
        products = {name: cycles * self.made.tasks for name, cycles in terms.items()}
        return {name: self.error_factor * cycles for name, cycles in {**products, **self.causes}.items()}

    @property
    def error_factor(self) -> float:
        """The factor that penalises cycles if the error exceeds the direct sum's."""
        return WORTH if self.made.error > 1 else 1.0


def _tiles(
    tiles: int, loop: str, vectors: int, lane: str, unit: ProductShape, target: Machine
) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield register tiles of as many tiles of pixels as registers hold, in equal parts, for each number of vectors."""
    for v in range(1, min(vectors, WIDE) + 1):
        most = (target.registers - 1 - target.costs.temporaries - v) // v
        if most > 0:
            yield ((loop, -(-tiles // -(-tiles // most))), (lane, v * unit.lanes))


def _transforms(made: Winograd, target: Machine) -> float:
    """Return the cycles of the transforms of source and result."""
    tiles = made.tasks * prod(x.block for x in made.axes)
    cycles = 0.0
    for matrix, view in (("input", made.product.a), ("output", made.product.c)):
        codes = [linear_code(getattr(x.matrices, matrix)) for x in made.axes]
        shape = [code.inputs for code in codes]
        one = 0.0
        for n, code in enumerate(codes):
            lines = prod(shape) // shape[n]
            shape[n] = len(code.results)
            moved = code.inputs * target.load(target.l1) + len(code.results) * 2 * target.load(target.l1)
            one += lines * (moved + code.operations * target.costs.multiply_add)
        cycles += one * -(-view.layout.shape[-1] // made.width)
    return cycles * tiles * target.costs.transform


def _is_transposed(copy: ChannelCopy, made: Winograd, target: Machine) -> bool:
    """Return whether vectors of pixels and of channels are transposed in registers, and no block ends within a row."""
    row = made.axes[-1]
    return transposition(copy, target) is not None and (row.blocks == 1 or row.outputs % (row.m * row.block) == 0)


def _copies(made: Winograd, target: Machine) -> float:
    """Return the cycles of the copies of groups of channels."""
    ends = {"s": made.direct.a, "d": made.direct.c}
    cycles = 0.0
    for copy in made.copies:
        elements = prod(copy.buffer.shape) * -(-ends[copy.name].layout.shape[1] // copy.width)
        cycles += elements * target.costs.pack * (target.costs.arriving if copy.reads else 1)
    return cycles * made.tasks


def _bytes_of_weights(made: Winograd) -> int:
    return made.product.b.layout.size * dtype(made.product.b.dtype).bytes


def _far(made: Winograd, target: Machine) -> float:
    """Return the cycles to move weights and arrays of a block from and to beyond the second-level cache.

    A transform moves a vector of each frequency, and each frequency is on its own pages: more pages than the
    first-level TLB has entries, or pages of arrays that exceed all TLBs.
    """
    costs, weights = target.costs, _bytes_of_weights(made)
    arrays = sum(prod(v.layout.shape) for v in (made.product.a, made.product.c)) * 4
    rates = costs.transform_prefetched if costs.prefetches_transform(weights) else costs.transform_far
    first = weights * (weights + arrays > target.l2.bytes)
    passes = 1 / rates.first + (made.tasks - 1) / rates.again
    through = 2 * arrays * (arrays > target.l2.bytes) * made.tasks / rates.arrays
    frequencies = prod(x.frequencies for x in made.axes)
    first_misses = frequencies > costs.pages and arrays > frequencies * costs.page
    turns = 1.0 if arrays > costs.pages_near else costs.page_near * first_misses
    lines = (first * passes + through) / (target.l2.rate / costs.beyond)
    vectors = made.tasks * arrays / (4 * made.width)
    return costs.multiply_add * lines + turns * vectors * costs.page_turn
