"""The cache lines of a source each of whose channels lies apart in memory, where pixels have one tap.

A step of a register tile reads some pixels of one channel, and the next step those of another one, on other lines, so
that no prefetcher fetches them. The first tile of channels reads the lines from wherever the source is; the other tiles
of channels find them in a cache that keeps them.
"""

from __future__ import annotations

from math import prod

from convsmith.ir.index import Var
from convsmith.ir.types import dtype
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.schedule.lower import TILES_AHEAD
from convsmith.tune.costs.far_lines import is_in_memory
from convsmith.tune.costs.features import Events
from convsmith.tune.costs.shared_facts import SharedFacts

__all__ = [
    "arriving_lines", "crossings", "is_from_memory", "late_stores", "lines_apart", "packed_pixels", "prefetched_part",
    "waited_lines",
]  # fmt: skip


def waited_lines(facts: SharedFacts, loops: Loops, config: Config, sides: tuple[int, int]) -> Events:
    """Return the event of the lines of the source or of weights that a step of a tile with ``sides`` of pixels and of
    channels waits for: from beyond the second-level cache or, where pixels are lanes, from it; empty if it waits for
    none.

    Those that `arriving_lines` counts are no part of it.
    """
    l2, line, (pixels, columns) = facts.target.l2, facts.target.l1.line, sides
    if config.staged_at("pack_at"):
        far = prod(facts.st.b.layout.shape) * facts.bytes > l2.bytes
        return (("waited_line", columns * facts.bytes / line),) if far else ()
    far, near = _beyond(facts, loops, config, pixels)
    lines = _lines(facts, loops, config, pixels) + 1
    across = loops.kinds[config.lane] == "m"
    if far:
        return () if across and _arrives(facts, config) else (("waited_line", lines),)
    return (("waited_near_line", lines),) if near and across else ()


def arriving_lines(facts: SharedFacts, loops: Loops, config: Config, pixels: int) -> tuple[Events, float]:
    """Return the events of the lines of a source beyond the second-level cache that a step reads, and the fraction of
    the steps that read them from there: those of the first tile of channels, or of each one if no cache keeps them
    between two.

    Nothing has fetched the first line of a run of pixels ahead, so that it counts twice. Prefetchers follow a single
    tile of channels, but lose the lines from memory that the steps of several tiles read again.
    """
    if not _arrives(facts, config):
        return (), 0.0
    far, _ = _beyond(facts, loops, config, pixels)
    tiles = -(-loops.extents[facts.n] // config.size(facts.n)) if facts.n in loops.extents else 1
    lines, is_late = _lines(facts, loops, config, pixels), tiles > 1 and is_from_memory(facts)
    late = lines * (1 - prefetched_part(facts, loops, config)) if is_late else 0.0
    return (("arriving_line", lines + 1), ("late_line", late)), 1.0 if far else 1 / tiles


def prefetched_part(facts: SharedFacts, loops: Loops, config: Config) -> float:
    """Return the fraction of the lines of a source that loads of the tiles of the same channel prefetch: those of the
    first tiles of each channel are what the last tiles of the channel before prefetch, too late.
    """
    if facts.st.a.name not in config.staged("stream"):
        return 0.0
    return max(1 - TILES_AHEAD * config.size(config.lane) / loops.extents[config.lane], 0.0)


def is_from_memory(facts: SharedFacts) -> bool:
    """Return whether the lines of the source come from memory in each call, beside those of the result."""
    return is_in_memory(facts.target, facts.st.a.bytes + facts.st.c.bytes)


def packed_pixels(facts: SharedFacts, loops: Loops, config: Config) -> Events:
    """Return the events of packing the pixels that tiles read, as vectors of a row or one by one; for fragments, tiles
    of pixels and channels are transposed. Each channel lies elsewhere, and the run of its pixels begins with a line
    that nothing has fetched ahead, which is late from memory.
    """
    st, target = facts.st, facts.target
    read = prod(d.size for d in st.dims if d.kind in ("batch", "m", "k"))
    if facts.unit.rows > 1:
        return (("pack_near", read),)
    lines = read * facts.bytes / target.l1.line
    sizes = {**dict(config.tiles_at("register")), **dict(config.tiles_at("cache"))}
    run = facts.bytes * prod(size for n, size in sizes.items() if loops.kinds[n] == "m")
    far, beyond = st.a.bytes > target.l2.bytes, st.a.bytes > target.costs.images_near
    copies = ("copy", read / (facts.lanes if loops.kinds[config.lane] == "m" else 2)), ("copied_line", lines * far)
    late = lines * min(target.l1.line / run, 1.0) if is_from_memory(facts) else 0.0
    arriving = ("arriving_line", lines * (1 + target.l1.line / run)), ("late_line", late)
    return (*copies, *arriving) if beyond else copies


def late_stores(facts: SharedFacts, loops: Loops, config: Config, channels: int, vectors: int) -> float:
    """Return the lines of a result in memory that stores of a tile of vectors of pixels wait for: the first line of the
    run of each channel, which ends with the tile, or with a block of pixels if the innermost loop is one over pixels.
    Memory takes the stores of a tile while the next one multiplies.
    """
    target, lane = facts.target, config.lane
    if not target.costs.late_result or loops.kinds[lane] != "m":
        return 0.0
    along = facts.dst.get(Var(facts.dims[lane][-1])) == 1 and not facts.classes
    if not (along and facts.st.constant and is_from_memory(facts)):
        return 0.0
    inner = next((n for n in reversed(config.order) if loops.extents[n] > config.size(n)), lane)
    run = vectors * facts.lanes if loops.kinds[inner] == "n" else dict(config.tiles_at("cache")).get(lane, 0)
    images = all(loops.extents[n] <= config.size(n) for n in loops.of("m") if n != facts.images)
    if images or not run:  # the next tile continues the run
        return 0.0
    return channels * vectors * facts.lanes / max(run, target.l1.line / dtype(facts.st.c.dtype).bytes)


def crossings(facts: SharedFacts, loops: Loops, config: Config) -> float:
    """Return the fraction of vectors of pixels that lie on two cache lines, because the distance of two channels is no
    multiple of a line.
    """
    line, apart = facts.target.l1.line, facts.src.get(Var(facts.k), 0) * facts.bytes
    in_place = facts.strided_access and not config.staged_at("pack_at") and facts.st.a.name not in config.packed
    if not in_place or loops.kinds[config.lane] != "m" or apart % line == 0:
        return 0.0
    return min(facts.lanes * facts.bytes / line, 1.0)


def lines_apart(facts: SharedFacts, loops: Loops, config: Config, pixels: int) -> float:
    """Return the cache lines of the source, in vectors, that a step of ``pixels`` reads from the second-level cache,
    where each channel lies on lines of its own, more of them than the first-level cache keeps, or than its sets keep of
    the channels that a kernel reads through a table of pointers.
    """
    l1, apart = facts.target.l1, facts.src.get(Var(facts.k), 0) * facts.bytes
    packed = (
        config.staged_at("pack_at")
        or facts.st.a.name in config.staged("pack")
        or config.realise not in facts.in_place
        or facts.unit.dot
    )
    if apart < l1.line or packed or not facts.st.constant or loops.kinds[config.lane] != "n":
        return 0.0
    lines = _lines(facts, loops, config, pixels) + 1
    is_kept = config.realise == "peel" or facts.sizes[facts.k] <= l1.lines_kept(apart, facts.target.costs.added_ways)
    if is_kept and facts.sizes[facts.k] * lines * l1.line <= l1.kept:
        return 0.0
    terms = config.reduce or tuple(loops.of("k"))
    within = prod(facts.sizes.get(n, 1) for n in terms[terms.index(facts.k) :]) / facts.sizes[facts.k]
    return lines * l1.line / (facts.lanes * facts.bytes) / within


def _arrives(facts: SharedFacts, config: Config) -> bool:
    """Return whether tiles read a source in place that is so large that its lines come from L3 or memory."""
    costs = facts.target.costs
    return costs.arriving_line > 0 and not config.staged_at("pack_at") and facts.st.a.bytes > costs.images_near


def _inner_pixels(facts: SharedFacts, loops: Loops, config: Config) -> tuple[tuple[str, ...], str]:
    """Return the order of the loops, the statement's if ``config`` has none, and its innermost loop over pixels."""
    order = config.order or tuple(loops.extents)
    return order, [n for n in order if n != facts.images and loops.kinds.get(n) == "m"][-1]


def _lines(facts: SharedFacts, loops: Loops, config: Config, pixels: int) -> float:
    """Return the lines of one channel that ``pixels`` of a tile fill."""
    _, inner = _inner_pixels(facts, loops, config)
    return pixels * abs(facts.row_step(facts.dims[inner][-1])) * facts.bytes / facts.target.l1.line


def _beyond(facts: SharedFacts, loops: Loops, config: Config, pixels: int) -> tuple[bool, bool]:
    """Return whether the lines of a tile of ``pixels`` are beyond the second-level cache, and beyond the first one,
    when the next tile of channels reads them: caches do not hold as many, or channels share too few of their sets.
    Prefetchers follow lines of the second-level cache whose channels are no further than half a page apart.
    """
    target, line = facts.target, facts.target.l1.line
    (l1, l2), apart = target.memories[:2], facts.src.get(Var(facts.k), 0) * facts.bytes
    order, inner = _inner_pixels(facts, loops, config)
    is_followed = target.costs.arriving_line > 0 and apart <= target.costs.page // 2
    if order.index(inner) >= order.index(config.lane if config.lane != inner else facts.n):
        images = next((d.size for d in facts.st.dims if d.sort == "images"), 1)
        held = prod(facts.st.a.layout.shape) * facts.bytes / images
        return held > l2.bytes, held > l1.bytes and not is_followed
    channels = facts.sizes[facts.k]
    held = channels * (_lines(facts, loops, config, pixels) + 1) * line
    near = held > l1.bytes or channels > l1.lines_kept(apart, 0)
    return held > l2.bytes or channels > l2.lines_kept(apart, 0), near and not is_followed
