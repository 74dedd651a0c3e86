"""Which operands a kernel fetches ahead of their use: weights, the pixels of the next tile, and blocks of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.schedule.config import Config
from convsmith.schedule.loops import fused_dims
from convsmith.schedule.lower import fetched_factors, fetches_pixels
from convsmith.statement.statement import Statement
from convsmith.tune.costs.far_lines import may_fetch_rows

__all__ = ["fetching", "may_fetch_pixels", "prefetches_weights", "weights_stream"]

FETCHED_BLOCK = 4
"""The part of the second-level cache that a block of pixels fills, if tiles fetch the next one, is one by this number.
"""
FETCHED_TERMS, FEWEST_TERMS = 64, 16
"""Minimum numbers of pixels of such a block, after which memory keeps the sums, and of one that has fewer because the
second-level cache would not hold two larger ones.
"""

FEW_PASSES = 8
"""Maximum number of passes of tiles of channels over pixels of which the first one, which reads them from beyond the
near caches, takes so large a part of the time that it pays to fetch pixels in all of them.
"""


def fetching(st: Statement, config: Config, target: Machine) -> Config:
    """Return the config of the problem whose direct statement is ``st``, which fetches the next part of packed weights
    that are read as vectors, if all weights come from main memory, or if they are large; and the pixels of the next
    tile of a large source that is not near yet, or those of the tile below in images from memory.

    A gradient of the weights in blocks of pixels fetches the next block of factors that are as large as such a source.
    """
    if not st.constant:
        return _fetching_blocks(st, config, target)
    if may_fetch_rows(st, config, target):
        return config.changed(fetch=(*config.staged("fetch"), st.a.name))
    row = target.rows.get(config.instruction)
    is_vectors = config.lane in [d.name for d in st.of("n")] and (row is None or row.rows == 1)
    if not is_vectors:
        return config
    pixels = 0 < target.costs.fetched_pixels <= st.a.bytes and may_fetch_pixels(st, config, target)
    pixels = pixels and not _passes_near_pixels(st, config, target)
    weights = (target.costs.weights_byte or 0 < target.costs.fetched_weights <= st.b.bytes) and not config.flip
    fetched = tuple(n for n in config.staged("pack") if n != st.a.name) if weights else config.staged("fetch")
    return config.changed(fetch=(*((st.a.name,) if pixels else ()), *fetched)) if pixels or weights else config


def _fetching_blocks(st: Statement, config: Config, target: Machine) -> Config:
    """Return the config of a gradient of the weights in blocks of pixels, which fetches the next block of large
    factors; unchanged if it has no blocks, or no such factors.

    The blocks become contiguous in memory, and so small that the second-level cache holds two, if they are not.
    """
    least, sums = target.costs.fetched_blocks, [n for n in config.reduce if st.extents.get(n, 1) > 1]
    legal = fetched_factors(st, config, target) if least else ()
    fetched = tuple(view.name for view in st.factors if view.name in legal and view.bytes >= least)
    if fetched and config.tiles_at("k_step"):  # copies of the packed ones prefetch lines
        is_blocked = any({*fused_dims(config, n)} <= {*st.reduce} for n, _ in config.tiles_at("cache"))
        return config.changed(fetch=tuple(n for n in fetched if is_blocked and n not in config.packed))
    blocks = tuple(tile for tile in config.tiles_at("cache") if tile[0] in sums)
    if not fetched or not blocks:
        return config
    nbytes = sum(view.bytes for view in st.factors)
    part = prod(size / st.extents[n] for n, size in blocks)
    within = len(blocks) - 1
    is_contiguous = blocks[:-1] == tuple((n, 1) for n in sums[:within]) and blocks[-1][0] == sums[within]
    if not is_contiguous or 2 * nbytes * part > target.l2.bytes:
        blocks, part = _contiguous_blocks(st, sums, target.l2.bytes / nbytes)
    if 2 * nbytes * part > target.l2.bytes:
        return config
    others = tuple(tile for tile in config.tiles_at("cache") if tile[0] not in sums)
    return config.changed(cache=(*others, *blocks), fetch=fetched)


def _contiguous_blocks(st: Statement, sums: Sequence[str], held: float) -> tuple[tuple[tuple[str, int], ...], float]:
    """Return blocks of one or two of the outermost loops ``sums``, and the part of all pixels that they are, of which
    the second-level cache holds the part ``held``.
    """
    blocks, left, terms = list[tuple[str, int]](), 1.0, prod(st.extents[n] for n in sums)
    for n in sums[:2]:
        size = count = st.extents[n]
        while size > 1:
            part, half = left * size / count, -(-size // 2)
            least = FEWEST_TERMS if 2 * part > held else FETCHED_TERMS
            if part <= held / FETCHED_BLOCK or left * half / count * terms < least:
                break
            size = half
        blocks, left = [*blocks, (n, size)], left * size / count
        if size > 1:
            break
    return tuple(blocks), left


def may_fetch_pixels(st: Statement, config: Config, target: Machine) -> bool:
    """Return whether fetching the pixels of a later tile may pay: each pixel has a cache line at least, so that the
    steps of a tile are not many more than its lines. It does not pay where tiles pass through the groups of a pixel,
    whose lines follow each other in memory.
    """
    enough = prod(d.size for d in st.of("k")) * dtype(st.a.dtype).bytes >= target.l1.line
    return enough and fetches_pixels(st, config, target) and not _passes_groups(st, config)


def prefetches_weights(st: Statement, config: Config, target: Machine) -> bool:
    """Return whether loads of vectors of packed weights prefetch lines: of weights beyond the second-level cache."""
    is_packed = st.constant and st.b.name in config.staged("pack")
    return is_packed and any(d.name == config.lane for d in st.of("n")) and target.costs.prefetches(st.b.bytes)


def weights_stream(st: Statement, config: Config, target: Machine) -> bool:
    """Return whether each tile of pixels, along which vectors lie, loads weights that fill the second-level cache:
    tiles of channels are within those of pixels. Prefetches of pixels delay the lines of such weights.
    """
    (channels,), order = st.of("n"), config.order
    if channels.name not in order or config.lane not in order:
        return False
    size = channels.size * prod(d.size for d in st.of("k")) * dtype(st.b.dtype).bytes
    return order.index(channels.name) > order.index(config.lane) and size >= target.l2.bytes


def _passes_groups(st: Statement, config: Config) -> bool:
    """Return whether tiles pass through the groups of some pixels before they read the next ones."""
    pixel, groups = st.of("m")[-1].name, {d.name for d in st.of("batch") if d.size > 1}
    row = next((n for n, loop in enumerate(config.order) if pixel in fused_dims(config, loop)), len(config.order))
    return not groups.isdisjoint(config.order[row + 1 :])


def _passes_near_pixels(st: Statement, config: Config, target: Machine) -> bool:
    """Return whether many tiles of channels pass one after the other over the same pixels, which the second-level cache
    holds from the first pass to the last.
    """
    (channels,), order = st.of("n"), config.order
    if channels.name not in order or channels.size <= FEW_PASSES * config.size(channels.name):
        return False
    within = {x for n in order[order.index(channels.name) :] for x in fused_dims(config, n)}
    pixels = prod(d.size for d in st.of("m") if d.name in within)
    return pixels > 1 and pixels * prod(d.size for d in st.of("k")) * dtype(st.a.dtype).bytes <= target.l2.bytes
