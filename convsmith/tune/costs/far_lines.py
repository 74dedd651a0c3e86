"""The lines of images beyond caches for which tiles wait because prefetchers do not fetch them in time."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from convsmith.ir.index import Var
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.schedule.config import Config
from convsmith.schedule.copies import has_rows_of_channels
from convsmith.schedule.fetched_rows import rows_below
from convsmith.schedule.loops import Loops
from convsmith.statement.statement import Statement
from convsmith.tune.costs.copies import transposes_channels, window_rows
from convsmith.tune.costs.features import Events
from convsmith.tune.costs.shared_facts import SharedFacts
from convsmith.tune.costs.tile_counts import TileCount
from convsmith.tune.costs.windows import first_reads

__all__ = [
    "copied_lines_of_memory", "is_in_memory", "keeps_rows_of_channels", "lines_of_memory",
    "lines_of_pixels_of_a_page", "lines_of_rows_of_fragments", "lines_of_short_rows", "lines_of_short_runs",
    "lines_out_of_order", "may_fetch_rows", "outpaces_prefetcher", "rows_of_few_channels", "tiles_of_the_same_pixels",
]  # fmt: skip

FAR_IMAGES = 4
"""Second-level caches that images must exceed for lines to come from so far that jumps between them count."""
FAR_ROWS = 2
"""Ratio of images and results whose rows tiles wait for to those whose loads arithmetic hides."""
SHORT_RUN = 2
"""Maximum number of cache lines of a run that ends before a prefetcher of the next lines is ahead of it."""
KEPT_ROWS = 3
"""Ratio of the second-level cache to the rows of a tile's pixels that it keeps until the tiles below read them, beside
results and pixels above.
"""
FIRST_LINES = 8
"""Lines of a stream after which its prefetches are ahead."""
PART_OF_PAGE = 8
"""Ratio of a page to the distance of two streams in it from which prefetchers follow only one of them."""
SHARERS = 2
"""Ratio of the last cache to the part of it that keeps arrays from one call to the next beside other work."""


def is_in_memory(target: Machine, size: float) -> bool:
    """Return whether arrays of ``size`` bytes are read from memory in each call, because no cache keeps all of them."""
    return SHARERS * size > target.costs.images_far


def may_fetch_rows(st: Statement, config: Config, target: Machine) -> bool:
    """Return whether fetching the pixels of the tile below pays: images and results are read from memory, and the
    second-level cache keeps what is fetched until the tiles of a row are computed.
    """
    below = rows_below(st, config, target) if target.costs.fetched_pixels else None
    if below is None or not is_in_memory(target, st.a.bytes + st.c.bytes):
        return False
    names = [d.name for d in st.of("m") if d.axis]
    in_rows = [n for n in config.order if n in names] == names
    return in_rows and KEPT_ROWS * below[0] * dtype(st.a.dtype).bytes <= target.l2.bytes


def lines_of_short_runs(facts: SharedFacts, loops: Loops, config: Config, tiles: Sequence[TileCount]) -> Events:
    """Return the events of waiting for lines of images in memory where each tile of ``tiles`` reads a short run of
    channels of each pixel: those of one group, of whose neighbours it reads none. The pixels of a tile arrive together,
    so that tiles of more pixels wait less often.
    """
    st, line = facts.st, facts.target.l1.line
    plain = st.constant and config.realise == "peel" and facts.batch and config.lane != facts.batch
    if not plain or loops.kinds[config.lane] == "m" or st.a.name in config.packed or facts.src.get(Var(facts.k)) != 1:
        return ()
    dims, channels = facts.dims[config.lane], facts.sizes[facts.k]
    if facts.batch in dims:
        channels *= max(config.size(config.lane) // facts.sizes[facts.n], 1)
    run, pixel = channels * facts.bytes, abs(facts.row_step(st.of("m")[-1].name)) * facts.bytes
    weights = st.b.layout.size * facts.weight_bytes
    if run > SHORT_RUN * line or pixel <= run or not is_in_memory(facts.target, facts.footprint() + weights):
        return ()
    lines = facts.traffic.of(config)[0].touched(facts.sizes)[0][0] / line
    count, pixels = sum(t.number for t in tiles), sum(t.number * t.pixels for t in tiles)
    return (("memory_wait", lines * count / pixels),)


def lines_of_short_rows(facts: SharedFacts, loops: Loops, config: Config, tiles: Sequence[TileCount]) -> Events:
    """Return the events of waiting for lines of images in place that hold few channels, from beyond the second-level
    cache: a tile reads few lines of each row, so that few of them arrive together, and prefetchers do not follow
    several rows of a page at once. Each tile waits once for each row that the tiles above it have not read.
    """
    st, rows = facts.st, rows_of_few_channels(facts)
    if not rows or config.realise != "peel" or loops.kinds[config.lane] != "n" or st.a.name in config.packed:
        return ()
    return (("row_wait", sum(t.number for t in tiles) * window_rows(facts, rows)[0]),)


def lines_of_pixels_of_a_page(
    facts: SharedFacts, loops: Loops, config: Config, tiles: Sequence[TileCount]
) -> Events:  # fmt: skip
    """Return the events of waiting for the lines of images in memory whose channels are lanes: each tile of several
    pixels reads as many streams of a page, of which prefetchers follow one, beside what lies close to it.
    """
    st, page = facts.st, facts.target.costs.page
    plain = st.constant and config.realise == "peel" and facts.taps == 1 and st.a.name not in config.packed
    if not plain or loops.kinds[config.lane] != "k" or facts.src.get(Var(facts.k)) != 1:
        return ()
    pixel = abs(facts.row_step(st.of("m")[-1].name)) * facts.bytes
    if 2 * pixel >= page or not is_in_memory(facts.target, facts.footprint()):
        return ()
    apart = (PART_OF_PAGE * pixel / page) ** 2
    late = sum(t.number * t.pixels * min((t.pixels - 1) * apart, 1.0) for t in tiles)
    lines = st.a.bytes / facts.target.l1.line
    return (("memory_line", lines * late / sum(t.number * t.pixels for t in tiles)),)


def lines_of_rows_of_fragments(
    facts: SharedFacts, loops: Loops, config: Config, tiles: Sequence[TileCount]
) -> Events:  # fmt: skip
    """Return the events of waiting for the lines of images beyond near caches whose pixels are rows of fragments: each
    row is a stream, of whose first lines prefetchers bring those of about as many streams as one fragment has rows.
    """
    st, costs = facts.st, facts.target.costs
    plain = st.constant and config.realise == "peel" and loops.kinds[config.lane] == "n"
    if not plain or st.a.name in config.packed or facts.src.get(Var(facts.k)) != 1 or st.a.bytes <= costs.images_near:
        return ()
    late = sum(t.number * max(t.pixels - facts.unit.rows, 0) for t in tiles)
    lines = facts.traffic.of(config)[0].touched(facts.sizes)[0][0] / facts.target.l1.line
    row = facts.sizes[facts.k] * facts.bytes / facts.target.l1.line
    lines *= min(1.0, FIRST_LINES / row)
    return (("fragment_line", lines * late / sum(t.number * t.pixels for t in tiles)),)


def rows_of_few_channels(facts: SharedFacts) -> str:
    """Return the loop over rows of pixels with several taps and few channels, of which a page holds several, in images
    and results beyond the second-level cache; empty for other sources.
    """
    st, target = facts.st, facts.target
    rows = [d.name for d in st.of("m") if d.axis][-2:-1]
    few = st.constant and facts.taps > 1 and not facts.classes and has_rows_of_channels(st.a.layout)
    short = few and st.a.layout.shape[-1] * facts.sizes[facts.k] * facts.bytes <= target.costs.page
    return rows[0] if short and rows and facts.footprint() > FAR_ROWS * target.costs.images_near else ""


def copied_lines_of_memory(facts: SharedFacts, config: Config) -> Events:
    """Return the events of waiting for the lines of images in memory that a padded copy reads in rows, each channel of
    which lies elsewhere.
    """
    if not transposes_channels(facts, config) or not is_in_memory(facts.target, facts.footprint()):
        return ()
    return (("memory_line", facts.st.a.bytes / facts.target.l1.line),)


def lines_of_memory(facts: SharedFacts, loops: Loops, config: Config) -> Events:
    """Return the events of waiting for the lines of images in memory; empty where caches hold the images.

    In blocks of channels, the run of each pixel ends before a prefetcher is ahead of it. Straight-line code for all
    taps of a window reads as many streams as there are pixels under it. Where they are more than prefetchers follow,
    lines are late, most of all if a tile reads a small part of each, unless tiles fetch the pixels of those below. A
    loop over taps reads pixels at one distance, which a prefetcher follows to those of the next tile.
    """
    costs = facts.target.costs
    if not facts.st.constant or facts.taps == 1 or facts.footprint() <= costs.images_far:
        return ()
    lane, tile, line = config.lane, dict(config.tiles_at("register")), facts.target.l1.line
    lines = facts.traffic.of(config)[0].touched(facts.sizes)[0][0] / line
    block = dict(config.tiles_at("cache")).get(lane, 0) * facts.bytes
    runs = (("memory_run", lines * min(line / block, 1.0)),) if block else ()
    pixels = prod(n for name, n in tile.items() if name != lane) * first_reads(loops, tile, facts.src, lane)
    if all(loops.kinds[n] != "k" for n in tile) or pixels <= costs.streams:
        return runs
    if may_fetch_rows(facts.st, config, facts.target):
        return runs
    parts = max(1 - config.size(lane) * facts.bytes / line, 0.0)
    return *runs, ("memory_line", lines), ("memory_part", lines * parts)


def lines_out_of_order(facts: SharedFacts, loops: Loops, config: Config) -> Events:
    """Return the events of waiting for the lines of arrays in memory, each of which serves one term of a group.

    Nothing hides the time in which such lines arrive. They arrive in time where a nest moves through memory in the
    order of addresses: tiles of one pixel, whose channels are all computed before the next pixel. Tiles of several
    pixels jump back and forth, and blocks of channels outside the pixels read a run of each. A gradient jumps where
    blocks of rows are outside the images.
    """
    st, lane, line = facts.st, config.lane, facts.target.l1.line
    if facts.taps > 1 or facts.src.get(Var(lane)) != 1 or not is_in_memory(facts.target, facts.footprint()):
        return ()
    arrays = (st.a, st.c) if st.constant else st.factors
    lines = sum(x.bytes for x in arrays) / line
    if not st.constant:
        pixels = [n for n in config.reduce if loops.extents[n] > 1]
        return (("memory_line", lines),) if {n for n, _ in config.tiles_at("cache")} & {*pixels[1:]} else ()
    tile, run = dict(config.tiles_at("register")), config.size(lane) * facts.bytes
    outside = lane in config.order and any(
        loops.kinds[n] == "m" and loops.extents[n] > config.size(n) for n in config.order[config.order.index(lane) :]
    )
    if outside and loops.extents[lane] > config.size(lane):
        return ("memory_line", lines), ("memory_run", lines * min(line / run, 1.0))
    return (("memory_line", lines),) if prod(n for name, n in tile.items() if name != lane) > 1 else ()


def outpaces_prefetcher(facts: SharedFacts) -> bool:
    """Return whether each run of neighbouring pixels arrives late: where runs are further apart than prefetchers of
    strides follow, half a page, in images that the second-level cache does not hold, and several of them do not hold
    together.
    """
    images = facts.sizes[facts.images] if facts.images else 1
    pixel, size = facts.st.of("m")[-1].name, dtype(facts.st.c.dtype).bytes
    far = facts.footprint() > max(images, FAR_IMAGES) * facts.target.l2.bytes
    return far and facts.stride_of(pixel) * size > facts.target.costs.page // 2


def tiles_of_the_same_pixels(facts: SharedFacts, loops: Loops, config: Config) -> int:
    """Return the number of tiles of channels that read the pixels of a tile before the next pixels are read."""
    order, n = config.order, facts.n
    if n not in order or config.lane not in order or order.index(n) < order.index(config.lane):
        return 1
    return -(-loops.extents[n] // config.size(n))


def keeps_rows_of_channels(facts: SharedFacts, config: Config) -> bool:
    """Return whether a cache keeps one line of each channel that a tile sums: channels that are a multiple of a way
    apart share few sets. Lines that are prefetched for later tiles are otherwise evicted before these read them. A
    block of channels is in the second-level cache, so that its lines are prefetched to the first one.
    """
    target, blocks = facts.target, dict(config.tiles_at("cache"))
    cache, apart = target.l1 if facts.k in blocks else target.l2, facts.src.get(Var(facts.k), 0) * facts.bytes
    return blocks.get(facts.k, facts.sizes[facts.k]) <= cache.lines_kept(apart, 0)
