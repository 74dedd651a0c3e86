"""The default config of a kernel whose sizes are known only at the call.

The model of kernels with fixed sizes rates lanes, register tiles and orders of loops on a few representative calls. In
each of them an image is one row of pixels, because a call runs the rows of an image as one where it can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf, prod

from convsmith.diag.errors import UnsupportedError
from convsmith.ir.index import Var
from convsmith.machine.base import Machine
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import stages_of
from convsmith.problem.matmul import Matmul
from convsmith.problem.problem import Problem
from convsmith.schedule.call_variants import MAX_POINTERS, has_few_channels
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import (
    at_sizes,
    has_lanes_along_rows,
    is_pointwise,
    symbolic_dims,
    through_table,
)
from convsmith.schedule.loops import Loops, loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.registers import filled_lanes, registers
from convsmith.statement.offsets import flips, summed
from convsmith.statement.statement import Statement, view_steps
from convsmith.statement.views import reads_windows, statement
from convsmith.tune.candidates import HOPELESS_RATIO
from convsmith.tune.costs.code_size import operations
from convsmith.tune.costs.features import cycles
from convsmith.tune.costs.fetches import may_fetch_pixels, prefetches_weights, weights_stream
from convsmith.tune.costs.model import Model
from convsmith.tune.in_place import image, in_place_configs, in_place_cycles, may_read_in_place
from convsmith.tune.nests import Nests
from convsmith.tune.variants import nearby

CALLS = 196, 49, 6272
"""Pixels of the representative calls: of common small images, whose last register tiles are a part of the work, and of
one that the caches do not hold. The sum of the ratios to the fastest config of each call decides; configs that are much
slower at the first one are left out.
"""
APART = 784, 3136, 4096
"""Pixels of further calls that compare kernels which read pixels where they are in images whose channels lie apart: of
common images, where the distance of channels matters more than the last register tile, and so many that lines of all
channels have one place in a cache.
"""
IMAGES = 49, 196, 784, 1024, 2304, 3136, 4096, 12544
"""Pixels of the calls that compare kernels which read windows through a table where they are, and from a copy of those
of a tile: of common images. Where the side of an image is a multiple of 16, as in half of them, lines of many channels
have few places in a cache.
"""
IMAGE = 400
"""Pixels of a further call, the first one, that compares kernels which read windows in place: 20 rows of 20 pixels, so
that a tile that fits one common extent exactly is not preferred.
"""

PICTURES = 2116, 12100
"""Pixels of the calls that compare kernels which read windows of few channels, as networks do in their first layers.
Few tiles fit their rows, of 46 and 110 pixels, exactly.
"""


def dynamic_config(p: Problem, target: Machine, threads: int = 1, alone: bool = True) -> Config:
    """Return the config that the model expects to be fastest at representative calls, with vectors of channels, of
    groups of one channel, or of pixels.

    Pixels are read through a table of pointers, unless a pixel of the result reads one pixel in its own place, and the
    convolution is ``alone``; gradients by weights have no table and test each term. Stages of a chain run one after the
    other.
    """
    if (stages := stages_of(p)) is not None:
        chained: Config | None = None
        for stage in reversed(stages.problems):
            chained = dynamic_config(stage, target, threads, alone=False).changed(consumer=chained)
        assert chained is not None
        return chained
    realise = "indirection" if through_table(p) else "mask" if isinstance(p, Conv) else "peel"
    if alone and isinstance(p, Conv) and is_pointwise(p):
        realise = "peel"
    each = statement(p, target, symbolic=True, padded=realise != "peel")
    ways: list[tuple[tuple[str, ...], str, Statement]] = [((), "each", each)]
    for flip in flips(p, each) if realise != "mask" else ():
        found = summed(p, each, flip, filled=realise == "indirection")
        if found is not None and all(view.adds != found.a.name for view in found.sums):
            ways.append((flip, "sums", found))
    flip, offsets, st = max(ways, key=lambda way: _terms(way[2], target))
    unit = _unit(st, target)
    same = Config(
        target.name, st.n, reduce=st.reduce, realise=realise, pack=("wei",) if st.constant else (), offsets=offsets,
        flip=flip, spill_sums=operations(p, st) > target.costs.long_epilogue, threads=threads,
    )  # fmt: skip
    is_plain = alone and realise == "indirection" and (offsets, flip) == ("each", ())
    in_place = is_plain and may_read_in_place(p, st, target)
    calls = PICTURES if in_place and has_few_channels(p, st) else (IMAGE, *CALLS) if in_place else CALLS
    rows = [_CallModel(call, statement(call, target), target, unit) for call in (_call(p, n) for n in calls)]
    configs = [*_configs(rows, st, unit, same)]
    if realise == "peel" and isinstance(p, Conv) and rows[-1].strided_access:
        rows += (_CallModel(call, statement(call, target), target, unit) for call in (_call(p, n) for n in APART))
        configs = [*configs, *_near(rows[-1], configs)]
    if in_place:
        assert isinstance(p, Conv)
        images = (_unpadded(p, image(p.rank, n)) for n in calls)
        rows = [_CallModel(call, statement(call, target), target, unit) for call in images]
        configs += _configs(rows, st, unit, same.changed(realise="mask"))
    configs = [c for c in configs if _fits(st, c, target)]
    if not configs:
        raise UnsupportedError(f"dynamic sizes: no config of {p} fits the registers of {target.name}", code="dynamic")
    row = st.of("m")[-1].name
    ratios = _ratios(rows[0], configs, row)
    near = {prefetching(st, _ordered(rows, c), target): ratio for c, ratio in ratios.items() if ratio <= HOPELESS_RATIO}
    others = [_ratios(model, list(near), row) for model in rows[1:]]
    best = min(near, key=lambda c: near[c] + sum(each[c] for each in others))
    if not (is_plain and best.realise == "indirection" and _has_channels_apart(p, st)):
        return best
    assert isinstance(p, Conv)
    padded = [_padded(p, image(p.rank, n)) for n in IMAGES]
    models = [_ImageModel(call, statement(call, target), target, unit) for call in padded]
    compared = [best, *(_copying(st, c) for c in near if c.lane == st.n)]
    by_image = [_ratios(model, compared, row) for model in models]
    return min(compared, key=lambda c: sum(each[c] for each in by_image))


def _has_channels_apart(p: Problem, st: Statement) -> bool:
    """Return whether windows read the channels of a pixel far apart, as in channels first, and several taps of each."""
    steps, row = view_steps(st.a), Var(st.of("m")[-1].name)
    is_apart = steps.get(Var(st.reduce[-1]), 1) > 1 and 0 < steps.get(row, 0) < steps.get(Var(st.reduce[-1]), 1)
    return isinstance(p, Conv) and reads_windows(p) and prod(p.k) > 1 and is_apart


def _copying(st: Statement, config: Config) -> Config:
    """Return ``config`` with a copy of the terms of the pixels of a register tile, which the tiles of all channels of
    the result share: channels that lie apart in memory are read once, and then next to each other.
    """
    row = st.of("m")[-1].name
    inner = [n for n in (row, st.n) if n in config.order]
    outer = [n for n in config.order if n not in inner]
    return config.changed(order=(*outer, *inner), pack_at=((st.a.name, row),), fetch=())


def _near(model: _CallModel, configs: Sequence[Config]) -> Iterator[Config]:
    """Yield those of ``configs`` whose vectors lie along pixels that a kernel reads where they are, with a copy of the
    pixels of a tile, which its channels share: the distance of the channels in memory is known only at the call, so
    that any number of their lines may have one place in a cache.
    """
    for config in configs:
        along = config.lane == model.st.of("m")[-1].name
        if along and (found := nearby(model, loops_after_fusing(model.st, config), config)) is not None:
            yield found


def prefetching(st: Statement, config: Config, target: Machine) -> Config:
    """Return ``config`` with prefetches of large weights, and with those of the source that pay for one that the caches
    do not hold: any call may read more than that, and prefetches are nearly free in those that do not.
    """
    if prefetches_weights(st, config, target):
        config = config.changed(stream=(st.b.name,))
    if config.staged_at("pack_at"):
        return config
    along = st.constant and config.lane == st.of("m")[-1].name and config.realise == "peel"
    if along and target.costs.prefetched_pixels and not weights_stream(st, config, target):
        return config.changed(stream=(st.a.name,))
    if target.costs.fetched_pixels and may_fetch_pixels(st, config, target):
        return config.changed(fetch=(st.a.name,))
    return config


def _ratios(model: _CallModel, configs: Sequence[Config], row: str) -> dict[Config, float]:
    """Return the cycles of a call under each of ``configs``, relative to the fewest."""
    found = {c: _cycles(model, c, row) for c in configs}
    least = min(found.values())
    return {c: cycles / least for c, cycles in found.items()}


def _call(p: Problem, pixels: int) -> Problem:
    """Return the problem of a call of the kernel of ``p`` with one row of ``pixels``."""
    if isinstance(p, Matmul):
        return replace(p, src=(*p.src[:-2], pixels, p.src[-1]), name=None)
    assert isinstance(p, Conv)
    return _unpadded(p, (*(1,) * (p.rank - 1), pixels))


def _padded(p: Conv, coarse: tuple[int, ...]) -> Conv:
    """Return the problem of a call whose coarse side has these extents, with about equal pads at both ends of a window.
    """
    found = _unpadded(p, coarse)
    pads = tuple((keff - 1) // 2 for keff in p.keff)
    return at_sizes(p, 1, tuple(max(i - 2 * pad, 1) for i, pad in zip(found.i, pads)), found.o, pads)


def _unpadded(p: Conv, coarse: tuple[int, ...]) -> Conv:
    """Return the problem of a call without pads, whose coarse side has these extents."""
    fine = tuple((size - 1) * s + keff for size, s, keff in zip(coarse, p.s, p.keff))
    i, o = (coarse, fine) if p.deconv else (fine, coarse)
    return at_sizes(p, 1, i, o, (0,) * p.rank)


def _cycles(model: _CallModel, config: Config, row: str) -> float:
    """Return the cycles of a call under ``config``: of its whole register tiles along ``row``, and of the powers of two
    in which a kernel computes the rest, the last of which is a whole vector.
    """
    if config.realise == "mask" and through_table(model.problem):
        return in_place_cycles(model, config)
    loops = _joined(model.st, loops_after_fusing(model.st, config))
    if loops.kinds[row] == "k" or row not in symbolic_dims(model.problem):
        return model.cycles(loops, config)
    sizes = dict(config.tiles_at("register"))
    least = model.filled(row) if row == config.lane else 1
    size, whole = sizes.get(row, least), loops.extents[row]
    full = whole - whole % size
    total = model.cycles(_with_row(loops, row, full), config) if full else 0.0
    vectors, short = divmod(whole - full, least)
    pieces = [least << bit for bit in range(vectors.bit_length()) if vectors >> bit & 1] + [least] * bool(short)
    for n in pieces:
        part, extents = config.changed(register=tuple({**sizes, row: n}.items())), _with_row(loops, row, n)
        sections = model.nests(extents, part) if total else model.kernel(extents, part)
        if total and config.staged_at("pack_at"):  # the first part has the weights and the copies of all parts
            sections = tuple(x for x in sections if x.causes[0][0] != "packing")
        total += cycles(sections, model.target)
    return total


def _joined(st: Statement, loops: Loops) -> Loops:
    """Return ``loops`` with the rows of an image as one row."""
    *outer, row = [d.name for d in st.of("m") if d.axis] or [st.of("m")[-1].name]
    if any(n not in loops.extents for n in (*outer, row)):
        return loops
    pixels = prod(loops.extents[n] for n in (*outer, row))
    return replace(loops, extents={**loops.extents, **dict.fromkeys(outer, 1), row: pixels})


def _with_row(loops: Loops, row: str, pixels: int) -> Loops:
    """Return ``loops`` with ``pixels`` in a row."""
    return replace(loops, extents={**loops.extents, row: pixels})


class _CallModel(Model):
    """The model of a call, for orders of loops that kernels with fixed sizes do not have."""

    group_load = "broadcast"  # vectors of groups are aligned
    pointer = 2.0  # three instructions move the pointer of a pixel that is there to another row

    def passes_channels(self, config: Config) -> bool:
        places = [config.order.index(n) for n in (self.st.of("m")[-1].name, self.n) if n in config.order]
        return places == sorted(places) if self.strided_access else self.pixels_first()

    def groups_are_apart(self) -> bool:
        """Return whether groups of one channel lie apart in memory, so that vectors of them would be gathered."""
        channels = self.sizes[self.n] * self.sizes[self.k]
        return bool(self.batch) and channels == 1 and self.src.get(Var(self.batch)) != 1 and not self.classes


class _ImageModel(_CallModel):
    """The model of a call with an image of several rows, whose channels lie apart in memory."""

    in_place = ("peel", "indirection")


class _Unfused(Nests):
    """Nests whose loops over pixels stay apart: their extents are known only at the call."""

    def fusions(self) -> tuple[tuple[str, str], ...]:
        return ()


def _configs(models: Sequence[_CallModel], st: Statement, unit: ProductShape, same: Config) -> Iterator[Config]:
    """Yield the configs of the lanes and register tiles that a kernel for any sizes may have. A tile has channels and
    pixels of one row, or of several rows if windows are read in place (``--realise=mask``).

    Vectors along pixels read these where they are, which is faster than a table where channels would be gathered.
    Groups of few channels share vectors.
    """
    largest, *others = models[::-1]
    nests, row = _Unfused(largest), st.of("m")[-1].name
    table, symbolic = same.realise == "indirection", symbolic_dims(largest.problem)
    in_place = same.realise == "mask" and through_table(largest.problem)
    along_rows = has_lanes_along_rows(largest.problem, same.threads) and not table
    for lane, needed in nests.lane_loops():
        if lane in symbolic and not (lane == row and along_rows):
            continue
        for each in others:
            for pair in needed:
                each.fuse(*pair)
        loops = loops_after_fusing(largest.st, same.changed(lane=lane, fuse=needed))
        dot = unit.dot and (lane == st.n or bool(needed))
        config = same.changed(
            lane=lane, fuse=needed, instruction=unit.name if dot or not unit.dot else "",
            k_step=((st.reduce[-1], unit.terms),) if dot else nests.shared_terms(lane) if needed else (),
            spill_sums=same.spill_sums and loops.kinds[lane] != "k",
        )  # fmt: skip
        channels = lane if loops.kinds[lane] in ("batch", "n") else st.n
        outer = [n for n in loops.extents if loops.kinds[n] != "k" and n not in (row, channels)]
        inner = [channels, row]  # threads share the loops outside of a row's tiles
        if same.threads == 1:
            inner.sort(key=nests.order(loops, lane).index)
        config = config.changed(order=(*outer, *inner))
        most = MAX_POINTERS if table else inf
        for tile in nests.tiles(loops, lane):
            if in_place:
                yield from in_place_configs(nests, loops, config, tile)
            elif tile.keys() <= {lane, row, st.n} and tile.get(row, 1) <= most:
                yield config.changed(register=tuple(tile.items()))


def _ordered(models: Sequence[Model], config: Config) -> Config:
    """Return ``config`` with the tiles of a row and of its channels in the order in which the ``models`` of calls
    expect less time, if these compare them, because each channel has cache lines of its own.
    """
    if config.threads > 1 or not models[0].strided_access or config.staged_at("pack_at"):
        return config
    *outer, a, b = config.order

    def delivered(c: Config) -> float:
        each = ((model, loops_after_fusing(model.st, c), pixels) for model, pixels in zip(models, CALLS))
        return sum(model.delivered(loops, c, model.cycles(loops, c)) / pixels for model, loops, pixels in each)

    return min(config, config.changed(order=(*outer, b, a)), key=delivered)


def _fits(st: Statement, config: Config, target: Machine) -> bool:
    """Return whether registers hold the register tile of ``config``."""
    loops, unit = loops_after_fusing(st, config), ProductShape.of(st, target, config)
    return registers(loops, config, target, unit, filled_lanes(st, loops.dims[config.lane], unit)).fit


def _unit(st: Statement, target: Machine) -> ProductShape:
    """Return the unit on vectors that multiplies factors of any magnitude, whose products no other one adds up."""
    return [x for x in ProductShape.choices(st, target, limited=False) if x.merged == 1][-1]


def _terms(st: Statement, target: Machine) -> int:
    """Return the number of products that an instruction on vectors adds up; 0 if it is no dot product."""
    unit = _unit(st, target)
    return unit.terms if unit.dot else 0
