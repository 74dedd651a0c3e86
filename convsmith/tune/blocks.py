"""Cache tiles derived from the target's caches, for packed operands of a register tile that exceed them.

While pixels stream, the weights of a tile of output channels stay in the second-level cache. If the reduction is too
long for that, a part of each sum is computed at a time, for as many channels as keep the partial sums in that cache
too. A source that no cache holds is read whole instead, because blocks of its channels are short runs of memory that no
prefetcher follows: four layers of batches take 0.36 to 0.71 of the time without blocks on Zen 3.

A gradient of the weights reduces over pixels, and each register tile reads some channels of all images. All tiles read
one block of pixels before the next block if that moves less data between memories. Threads then share blocks of the
result, each of which passes over all blocks of pixels. A block may contain rows of one image. Factors are packed in
each call if loading the channels of a tile, which are not adjacent to the channels of the next pixel, would be much
slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from math import inf, prod
from typing import TypeVar

from convsmith.ir.index import Var
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.statement.statement import Statement, view_steps
from convsmith.tune.costs.channel_lines import in_blocks_of_near_channels
from convsmith.tune.costs.far_lines import is_in_memory
from convsmith.tune.costs.traffic import TouchedArray, Traffic
from convsmith.tune.orders import MIN_TRAFFIC_GAIN, orders

T = TypeVar("T")

OUT_OF_ORDER = 1.5
"""Maximum ratio of memory cycles at which a gradient of the weights is written in the order of memory."""
MIN_PACKING_GAIN = 1.5
"""Minimum ratio of cycles from which a factor of a gradient of the weights is packed."""
CONTIGUOUS_RATIO = 1.1
"""Maximum ratio of memory cycles at which blocks of an outer loop, which are longer runs of memory, replace those of an
inner one: five gradients take 0.79 to 0.96 of the time on Zen 3 with blocks of images, planes or rows instead.
"""
MAX_SUMS_RATIO = 8
"""Maximum size of the sums that memory keeps between blocks of pixels, relative to the second-level cache."""
MAX_IMBALANCE = 1.2
"""Maximum work of the busiest thread, relative to the best division of the result into blocks."""
BLOCKS_A_THREAD = 3
"""Minimum number of channel blocks per thread, for balanced threads."""


def blocked(st: Statement, loops: Loops, config: Config, target: Machine) -> Config:
    """Return the config with blocks of channels and of the longest reduction loop, if that is faster."""
    is_plain = not (config.staged("resident") or config.phases or loops.residues)
    if is_plain and loops.kinds[config.lane] == "m":
        return _in_blocks_of_near_rows(st, loops, config, target)
    if loops.kinds[config.lane] != "n" or not is_plain or config.realise != "peel":
        return config
    near = in_blocks_of_near_channels(st, loops, config, target)
    if near != config:
        return near
    sums = loops.of("k")
    inner, terms = max(sums, key=lambda n: loops.extents[n]), prod([loops.extents[n] for n in sums])
    wide = config.size(config.lane)
    panel = terms * wide * dtype(st.b.dtype).bytes
    if panel <= target.l2.bytes or prod(-(-loops.extents[n] // config.size(n)) for n in loops.of("m")) < 2:
        return config
    depth = _depth(loops, config, inner, -(-panel // target.l2.kept))
    if _is_read_whole(st, inner, depth, target):
        return config
    pixels = prod(loops.extents[n] for n in loops.of("m"))
    tiles = -(-loops.extents[config.lane] // wide)
    held = max(1, target.l2.bytes // (pixels * wide * dtype(st.acc).bytes))
    if config.threads > 1:
        held = min(held, max(1, tiles // (BLOCKS_A_THREAD * config.threads)))
    channels = ((config.lane, held * wide),) if held < tiles else ()
    return config.changed(cache=(*channels, (inner, depth)))


def _is_read_whole(st: Statement, channels: str, depth: int, target: Machine) -> bool:
    """Return whether memory holds the source, a cache holds the weights, and ``depth`` of the source's ``channels`` are
    a run of less than a page.
    """
    is_run = view_steps(st.a).get(Var(channels)) == 1 and depth * dtype(st.a.dtype).bytes < target.costs.page
    return is_run and is_in_memory(target, st.a.bytes) and not is_in_memory(target, st.b.bytes)


def _in_blocks_of_near_rows(st: Statement, loops: Loops, config: Config, target: Machine) -> Config:
    """Return ``config``, whose lanes are pixels of a row, with blocks of the channels whose rows the second-level cache
    keeps for the tiles along these rows. Each channel lies elsewhere, so no prefetcher fetches the rows again; where
    channels are a multiple of a way apart, their rows share few sets of the cache.
    """
    taps = [d.name for d in st.of("k") if d.axis and d.size > 1]
    channels = [d.name for d in st.of("k") if not d.axis and loops.extents.get(d.name, 1) > 1]
    plain = not st.sizes and config.realise in ("peel", "pad_copy") and st.a.name not in config.staged("pack")
    if not (plain and taps and len(channels) == 1 and loops.dims[config.lane] == (config.lane,)):
        return config
    (channel,) = channels
    rows = {d.name: d.size if d.kind == "k" or d.name == config.lane else config.size(d.name) for d in st.dims}
    (held, _), rooms = TouchedArray(st.a, False, target).touched(rows)
    room = rooms[-1] if config.realise == "peel" else held  # a copy with borders has other distances
    if room <= target.l2.bytes:
        return config
    least = -(-target.costs.reload // prod(loops.extents[n] for n in taps))
    depth = max(_depth(loops, config, channel, -(-int(room) // target.l2.kept)), least)
    if depth >= loops.extents[channel]:
        return config
    return config.changed(cache=(*config.tiles_at("cache"), (channel, depth)))


def _depth(loops: Loops, config: Config, name: str, parts: int) -> int:
    """Return the iterations of the reduction loop ``name`` in each of ``parts`` blocks, in whole steps."""
    unit = max(config.size(name), dict(config.tiles_at("k_step")).get(name, 1))
    return -(-loops.extents[name] // (parts * unit)) * unit  # rounded up, as one more part would cost more


def with_blocks_of_pixels(
    traffic: Traffic, loops: Loops, config: Config, delivered: Callable[[Config], float]
) -> Config:
    """Return the config of a gradient of the weights with a cache tile of its pixels, and with another order of loops,
    if loads are then clearly faster; `delivered` returns a config's cycles on one thread.

    Between cache tiles, memory keeps the sums of all register tiles, and each register tile starts again. No cache
    tiles are used if the second-level cache holds all operands.
    """
    tiles = prod(-(-n // config.size(name)) for name, n in loops.extents.items() if loops.kinds[name] != "k")
    turns = tiles * traffic.target.costs.call

    known: dict[tuple[Config, tuple[str, ...]], float] = {}

    def cycles(of: tuple[Config, tuple[str, ...]]) -> float:
        if of not in known:
            each, order = of
            parts = prod(-(-loops.extents[n] // size) for n, size in each.tiles_at("cache"))
            known[of] = traffic.cycles(loops, each, order) + turns * parts
        return known[of]

    blocks = _blocks_of_pixels(traffic, loops, config) if traffic.is_far(config) else ()
    tiled = [config.changed(cache=(block,)) for block in blocks]
    inside = _outermost([(c, config.order) for c in tiled], cycles)
    best = _less((config, config.order), inside, cycles, MIN_TRAFFIC_GAIN)
    if (traffic.least(config) + turns) * OUT_OF_ORDER < cycles(best):
        others = dict.fromkeys(order for order in orders(loops, config, "") if order != config.order)
        reordered = [(c, order) for c in (config, *tiled) for order in others]
        best = _less(best, _outermost(reordered, cycles), cycles, OUT_OF_ORDER)
    rows = _blocks_of_rows(traffic, loops, config) if traffic.is_far(config) else ()
    rowwise = [(config.changed(cache=tiles), config.order) for tiles in rows]
    block, order = _less(best, rowwise, cycles, MIN_TRAFFIC_GAIN)
    chosen = block if order == block.order else block.changed(order=order)
    return chosen if config.threads == 1 or not chosen.tiles_at("cache") else _for_threads(loops, chosen, delivered)


def with_near_pixels(
    traffic: Traffic, loops: Loops, config: Config, factors: Sequence[str],
    near: Callable[[Loops, Config], float], delivered: Callable[[Loops, Config, float], float],
) -> Config:  # fmt: skip
    """Return the config of a gradient of the weights with blocks of pixels, and with some of `factors` packed in each
    call, if loads are then much faster.

    `near` returns the cycles of a config on one thread with operands in near caches, packing included; `delivered` adds
    the cycles in which memories deliver the operands.
    """

    def arranged(config: Config) -> tuple[float, Config]:
        cycles = near(loops, config)
        chosen = with_blocks_of_pixels(traffic, loops, config, lambda c: delivered(loops, c, cycles))
        return delivered(loops, chosen, cycles), chosen

    expected, chosen = arranged(config)
    if expected <= near(loops, config) * MIN_PACKING_GAIN:
        return chosen
    most = expected / MIN_PACKING_GAIN  # beyond it, near operands alone exclude a config, however memories deliver them
    apart = [name for name in factors if name not in config.staged("pack")]
    packs = [
        (*config.staged("pack"), *names) for count in range(1, len(apart) + 1) for names in combinations(apart, count)
    ]
    worth = [arranged(each) for each in (config.changed(pack=pack) for pack in packs) if near(loops, each) < most]
    least, other = min(worth, key=lambda each: each[0], default=(inf, chosen))
    return other if least < most else chosen


def _for_threads(loops: Loops, config: Config, delivered: Callable[[Config], float]) -> Config:
    """Return the config with blocks of the result around its blocks of pixels, for threads to share, or without any
    blocks, whichever takes the slowest thread less time.
    """
    tiles = {n: -(-loops.extents[n] // config.size(n)) for n in loops.extents if loops.kinds[n] != "k"}
    sizes: list[list[tuple[str, int]]] = []
    for n, count in tiles.items():
        held = sorted({-(-count // config.threads), -(-count // 2), 1} - {count})
        sizes.append([(n, each * config.size(n)) for each in held])
    blocks: list[tuple[tuple[str, int], ...]] = [(x,) for of in sizes for x in of]
    blocks += [pair for one, other in combinations(sizes, 2) for pair in product(one, other)]
    whole = config.changed(cache=())
    shares = {
        c: _largest_share(loops, c) for c in (config.changed(cache=(*x, *config.tiles_at("cache"))) for x in blocks)
    }
    least = min(shares.values(), default=1.0)
    even = [whole, *(c for c, share in shares.items() if share <= least * MAX_IMBALANCE)]
    return min(even, key=lambda c: delivered(c) * _largest_share(loops, c))


def _largest_share(loops: Loops, config: Config) -> float:
    """Return the load of the busiest thread, as a fraction of all work."""
    sizes = dict(config.tiles_at("cache")) or {n: config.size(n) for n in loops.extents}
    shared = {n: size for n, size in sizes.items() if loops.kinds[n] != "k"}
    tasks = prod(-(-loops.extents[n] // size) for n, size in shared.items())
    return -(-tasks // config.threads) * prod(min(1.0, size / loops.extents[n]) for n, size in shared.items())


def _less(first: T, others: list[T], cycles: Callable[[T], float], by: float) -> T:
    """Return the one of ``others`` with the fewest cycles, or ``first`` unless it needs ``by`` times as many."""
    expected = [cycles(c) for c in others]
    least = min(expected, default=inf)
    return others[expected.index(least)] if least * by < cycles(first) else first


def _outermost(
    tiled: list[tuple[Config, tuple[str, ...]]], cycles: Callable[[tuple[Config, tuple[str, ...]]], float]
) -> list[tuple[Config, tuple[str, ...]]]:  # fmt: skip
    """Return those of ``tiled`` whose blocks are of the outermost loop that is nearly as good as any other. A block of
    images is contiguous in memory, a block of rows of all images is not, and prefetchers fetch less of it ahead.
    """
    least: dict[str, float] = {}
    for each in tiled:
        loop = _blocked_loop(each[0])
        least[loop] = min(least.get(loop, inf), cycles(each))
    most = min(least.values(), default=inf) * CONTIGUOUS_RATIO
    outer = next((loop for loop, n in least.items() if n <= most), "")
    return [each for each in tiled if _blocked_loop(each[0]) == outer]


def _blocked_loop(config: Config) -> str:
    """Return the loop of which ``config`` has blocks; empty if it has none."""
    return next((loop for loop, _ in config.tiles_at("cache")), "")


def _blocks_of_pixels(traffic: Traffic, loops: Loops, config: Config) -> Iterator[tuple[str, int]]:
    """Yield loops over pixels with block sizes, by repeated halving, that amortise loading the sums again.

    Where tiles of groups share no element, a block in memory is of images: rows of all images would be read out of
    order. So is a block whose pixels follow each other: fewer pixels would end the streams of lines sooner.
    """
    terms, units = _terms_of_sums(traffic, loops, config)
    others = (n for name, n in loops.extents.items() if loops.kinds[name] != "k" and name != config.lane)
    is_far = is_in_memory(traffic.target, sum(view.bytes for view in traffic.st.factors))
    is_apart = is_far and loops.kinds[config.lane] == "batch" and prod(others) == 1
    if is_apart or traffic.streams_lines(config):
        units = dict([*units.items()][:1])
    for n, unit in units.items():
        yield from ((n, size) for size in _halves(loops.extents[n], unit, terms, traffic.target.costs.reload))


def _terms_of_sums(traffic: Traffic, loops: Loops, config: Config) -> tuple[int, dict[str, int]]:
    """Return the terms of a sum, 0 if the sums of all register tiles exceed what memory may keep between blocks, and
    the loops over pixels with the iterations of a step.
    """
    target, acc = traffic.target, dtype(traffic.st.acc)
    lanes = target.width(acc) if loops.kinds[config.lane] == "k" else 1
    sums = prod(n for name, n in loops.extents.items() if loops.kinds[name] != "k") * lanes * acc.bytes
    if sums > target.l2.bytes * MAX_SUMS_RATIO:
        return 0, {}
    pixels = [n for n in config.reduce if n in loops.extents and n != config.lane]
    units = {n: max(config.size(n), dict(config.tiles_at("k_step")).get(n, 1)) for n in pixels}
    return prod(loops.extents[n] for n in loops.of("k")) // lanes, units


def _blocks_of_rows(traffic: Traffic, loops: Loops, config: Config) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield blocks of some rows of one image if the second-level cache does not hold an image: of the next to outermost
    loop over pixels within a step of the outermost one. The rows are at least a page of each factor as it lies in
    memory.
    """
    target, (terms, units) = traffic.target, _terms_of_sums(traffic, loops, config)
    running = [n for n, unit in units.items() if loops.extents[n] > unit]
    if len(running) > 2 and not traffic.streams_lines(config):
        outer, inner, *_ = running
        part = units[outer] / loops.extents[outer]
        if traffic.once(config) * part <= target.l2.bytes:
            return
        left, row = int(terms * part), Var(loops.dims[inner][-1])
        plain = [view for view in traffic.st.factors if view.name not in config.staged("pack")]
        pitch = min((abs(view_steps(view).get(row, 0)) * dtype(view.dtype).bytes for view in plain), default=0)
        for size in _halves(loops.extents[inner], units[inner], left, target.costs.reload):
            if size * pitch >= target.costs.page:
                yield (outer, units[outer]), (inner, size)


def _halves(whole: int, unit: int, terms: int, least: int) -> Iterator[int]:
    """Yield the sizes of blocks of a loop with ``whole`` iterations, multiples of ``unit`` by repeated halving, that
    have at least ``least`` of the ``terms`` of all iterations.
    """
    size = whole
    while (size := -(-size // (2 * unit)) * unit) < whole and terms * size // whole >= least:
        yield size
        if size == unit:
            return
