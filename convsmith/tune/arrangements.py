"""Arrangements of the loops of a config, among which the one that moves least between memories is chosen."""

from __future__ import annotations

from functools import partial
from math import inf, prod

from convsmith.ir.index import Var
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.tune.blocks import with_near_pixels
from convsmith.tune.costs.channel_lines import lines_of_far_channels
from convsmith.tune.costs.features import Section, cycles
from convsmith.tune.costs.model import Model
from convsmith.tune.costs.traffic import Traffic
from convsmith.tune.orders import MIN_TRAFFIC_GAIN, orders
from convsmith.tune.variants import streamed

MAX_TAPS = 5
"""Maximum number of taps of a row that run within the channels."""
FEW_ROWS = 3
"""Rows of taps for which a loop within the channels is so short that it takes longer than a few lines that clash."""


def arranged(model: Model, loops: Loops, config: Config) -> Config:
    """Return the config in the order of loops, or with the blocks of pixels and the packed factors of a gradient of
    the weights, that move least between memories.

    If threads share the pixels of a gradient of the weights, it has no blocks. Nor has one by dot products: factors
    that are packed before arrive as fast as they are multiplied, and each block loads and stores the sums.
    """
    if config.realise != "peel" or config.staged("resident") or model.classes or model.phases:
        return config
    if not model.st.constant:
        if config.tiles_at("split") or config.staged_at("pack_at") or model.unit.rows > 1 or model.unit.dot:
            return config
        near = partial(model.cycles, near=True)
        factors = _packed_once(model, loops, config)
        return with_near_pixels(model.traffic, loops, config, factors, near, model.delivered)
    config = _with_taps_within_channels(model, loops, _with_inner_taps(model, loops, config))
    if not model.traffic.is_far(config):
        return config
    config = _with_depth_within(model, loops, config)
    in_order = model.turns_pages(config.lane) and not model.bordered(config.lane)
    if config.lane == model.batch or model.stride_of(config.lane) != 1 or in_order:
        return config
    chosen = _ordered(model.traffic, loops, config, model.images)
    if chosen.order == config.order:
        chosen = _with_groups_outside(model, loops, config)
    return chosen.changed(stream=streamed(model, loops, chosen)) if model.unit.rows > 1 else chosen


def _packed_once(model: Model, loops: Loops, config: Config) -> tuple[str, ...]:
    """Return the factors of a gradient of the weights that may be packed: tiles read them again, and packing
    repeats no element.

    Taps of a register tile, or fused with channels, would copy the pixels that they read. Windows along pixels read
    a single channel, for which a copy is as slow as direct loads.
    """
    if config.lane == model.batch:
        return ()
    taps = {d.name for d in model.st.dims if d.axis and d.kind != "k" and d.size > 1}
    within = (n for n in loops.extents if taps.intersection(loops.dims[n]))
    apart = all(len(loops.dims[n]) == 1 and n != config.lane and config.size(n) == 1 for n in within)
    return (model.st.a.name, model.st.b.name) if apart else (model.st.b.name,)


def _with_depth_within(model: Model, loops: Loops, config: Config) -> Config:
    """Return ``config`` with the loop over depths within that over rows, if loading all operands is then clearly
    faster: in dense kernels, arithmetic hides that planes are read again for each depth of a window.
    """
    other = _depth_within(loops, config, model.images)
    if other is None:
        return config
    now, then = (model.delivered(loops, c, model.cycles(loops, c, near=True)) for c in (config, other))
    return other if then * MIN_TRAFFIC_GAIN < now else config


def _with_inner_taps(model: Model, loops: Loops, config: Config) -> Config:
    """Return ``config`` with the taps of a row within the channels, if the second-level cache is the bottleneck and
    then delivers pixels faster.

    Adjacent taps share pixels, which registers must hold besides accumulators and weights.
    """
    *outer, tap, channels = config.reduce if len(config.reduce) > 1 else ("", "")
    tile, along = dict(config.tiles_at("register")), {d.axis for d in model.st.of("m")[-1:]} - {""}
    taps = {d.name for d in model.st.of("k") if d.axis in along and 1 < d.size <= MAX_TAPS and d.name not in tile}
    if model.unit.dot or channels != model.k or tap not in taps or loops.kinds[config.lane] != "n":
        return config
    pixels = prod(n for name, n in tile.items() if name != config.lane)
    vectors = tile[config.lane] // model.filled(config.lane)
    if pixels * vectors + pixels + vectors >= model.target.registers:
        return config
    other = config.changed(reduce=(*outer, channels, tap))
    lanes = model.sizes[model.n] / -(-model.sizes[model.n] // model.filled(config.lane))
    products = model.problem.flops_real / 2 / lanes
    now, then = (
        cycles((_beside_loads(model, products, model.traffic.moved(loops, c).means[0]),), model.target)
        for c in (config, other)
    )
    return other if then * model.target.costs.inner_taps < now else config


def _with_taps_within_channels(model: Model, loops: Loops, config: Config) -> Config:
    """Return ``config`` with all taps within the channels, if the first-level cache has room for the lines of all
    channels that a tile reads, but its sets keep only those of one channel from a tile to the next: where rows are a
    multiple of a large part of a way apart, as in images 1024 pixels wide. The same holds for long columns of taps, one
    in each row, where steps wait for the lines of each channel.
    """
    if loops.kinds[config.lane] != "n" or model.taps == 1 or model.unit.dot or model.st.a.name in config.packed:
        return config
    (l1, along), (*_, pixel) = (model.target.l1, loops.of("m")), model.st.of("m")
    rows = [d for d in model.st.of("k") if d.sort == "taps" and d.size > 1 and d.axis != pixel.axis]
    if not (rows and model.k in config.reduce and all(config.size(n) == 1 for n in loops.of("k"))):
        return config
    taps, channels = prod(d.size for d in rows), model.sizes[model.k]
    apart = abs(model.src.get(Var(rows[-1].name), 0)) * model.bytes
    kept = l1.lines_kept(apart, 0) if apart else taps * channels  # rows in blocks have several distances
    pixels = prod(config.size(n) for n in along if n != pixel.name)
    run = abs(model.row_step(pixel.name)) * config.size(pixel.name) * model.bytes / l1.line + 1
    clashing = taps * channels > kept if taps > FEW_ROWS else taps * channels >= 2 * kept
    clashing = clashing and taps <= kept and taps * channels * run * l1.line <= l1.kept
    if not clashing and FEW_ROWS < taps == model.taps:
        clashing = lines_of_far_channels(model.st, loops, config.changed(cache=()), model.target) > 0
    if pixels > 1 or not clashing:
        return config
    return config.changed(reduce=(model.k, *(n for n in config.reduce if n != model.k)))


def _beside_loads(model: Model, products: float, loaded: float) -> Section:
    """Return the section of ``products`` that hide, or are hidden by, loads of bytes from the second-level cache."""
    causes = ("multiply-adds", ((model.product, products),)), ("loads", (("refill_byte", loaded),))
    return Section(1, causes, overlap=inf)


def _ordered(traffic: Traffic, loops: Loops, config: Config, images: str) -> Config:
    """Return ``config`` with the order of loops that has clearly less traffic than its own, if there is one.

    ``images`` is the loop over images, or empty.
    """
    least, chosen = traffic.cycles(loops, config) / MIN_TRAFFIC_GAIN, config
    for order in dict.fromkeys(orders(loops, config, images)):
        if order == config.order:
            continue
        cycles = traffic.cycles(loops, config, order)
        if cycles < least:
            least, chosen = cycles, config.changed(order=order)
    return chosen


def _with_groups_outside(model: Model, loops: Loops, config: Config) -> Config:
    """Return ``config`` with groups of one channel outside of pixels along the lanes: each reads an image of its own,
    to its end, which is the order of memory.
    """
    along = loops.kinds[config.lane] == "m" and not model.bordered(config.lane)
    if not along or model.sizes[model.n] > 1 or model.batch not in config.order:
        return config
    outer = [n for n in config.order if n == model.images]
    outer += [n for n in config.order if n not in outer and loops.kinds.get(n) != "m"]
    return config.changed(order=(*outer, *(n for n in config.order if n not in outer)))


def _depth_within(loops: Loops, config: Config, images: str) -> Config | None:
    """Return ``config`` with the outermost loop over pixels inside the next one; None unless there are three of them.

    The rows of a register tile then pass through all depths, whose planes share them, before the next rows.
    """
    pixels = [n for n in config.order if loops.kinds.get(n) == "m" and n != images]
    if len(pixels) < 3:
        return None
    depth, rows, _ = pixels
    return config.changed(order=tuple({depth: rows, rows: depth}.get(n, n) for n in config.order))
