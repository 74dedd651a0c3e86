"""Cache tiles derived from the target's caches, for packed operands of a register tile that exceed them.

While pixels stream, the weights of a tile of output channels stay in the second-level cache. If the reduction is too
long for that, a part of each sum is computed at a time, for as many channels as keep the partial sums in that cache
too.

A gradient of the weights reduces over pixels, and each register tile reads some channels of all images. If the images
exceed the cache, all tiles read one block of pixels before the next block.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.plan.config import Config
from convsmith.plan.loops import Loops
from convsmith.statement.statement import Statement

BLOCKS_A_THREAD = 3
"""Minimum number of channel blocks per thread, for balanced threads."""


def blocked(st: Statement, loops: Loops, config: Config, target: Machine) -> Config:
    """Return the config with blocks of channels and of the longest reduction loop, where that pays."""
    if not st.constant and config.realise == "peel" and (block := _pixels(st, loops, config, target)):
        return replace(config, cache=block)
    inner = max(loops.of("k"), key=lambda n: loops.extents[n])
    if loops.kinds[config.lane] != "n" or config.hold or loops.residues or config.realise != "peel":
        return config
    terms = prod(loops.extents[n] for n in loops.of("k"))
    wide = config.size(config.lane)
    panel = terms * wide * dtype(st.b.dtype).bytes
    again = prod(-(-loops.extents[n] // config.size(n)) for n in loops.of("m"))
    if panel <= target.l2.bytes or again < 2:
        return config
    unit = max(config.size(inner), dict(config.terms).get(inner, 1))
    parts = -(-panel // target.l2.kept)
    depth = -(-loops.extents[inner] // (parts * unit)) * unit
    pixels = prod(loops.extents[n] for n in loops.of("m"))
    tiles = -(-loops.extents[config.lane] // wide)
    held = max(1, target.l2.bytes // (pixels * wide * dtype(st.acc).bytes))
    if config.threads > 1:
        held = min(held, max(1, tiles // (BLOCKS_A_THREAD * config.threads)))
    channels = ((config.lane, held * wide),) if held < tiles else ()
    return replace(config, cache=(*channels, (inner, depth)))


def _pixels(st: Statement, loops: Loops, config: Config, target: Machine) -> tuple[tuple[str, int], ...]:
    """Return the config with a cache tile of the pixels over which a gradient of the weights reduces, if it pays.

    It does not pay if several taps read the same elements one after the other and the cache keeps these.
    """
    width = dtype(st.b.dtype).bytes
    terms = prod(loops.extents[n] for n in loops.of("k"))
    groups = prod(loops.extents[n] for n in loops.of("batch"))
    images = sum(prod(v.layout.shape) for v in (st.a, st.b)) * width // groups
    tiles = {n: -(-loops.extents[n] // config.size(n)) for n in loops.of("n", "m")}
    windows = {d.name for d in st.of("m") if d.axis and d.size > 1}
    taps = prod(tiles[n] for n in loops.of("m") if windows & set(loops.dims[n]))
    channels = sum(config.size(n) for n in tiles if not windows & set(loops.dims[n]))
    if images <= target.l2.bytes or prod(tiles.values()) < 2:
        return ()
    if taps > 1 and channels * terms * width <= target.l2.bytes:
        return ()
    lanes = target.lanes(dtype(st.acc).bits) if loops.kinds[config.lane] == "k" else 1
    parts = -(-images * 2 // target.l2.bytes)
    rows = [n for n in st.reduce if n in loops.extents and n != config.lane]
    loop = next((n for n in rows if loops.extents[n] >= parts), max(rows, key=lambda n: loops.extents[n], default=""))
    if not loop or images > loops.extents[loop] * target.l2.bytes:
        return ()
    depth = max(1, loops.extents[loop] // parts)
    sums = prod(loops.extents[n] for n in tiles) * lanes * dtype(st.acc).bytes
    long = terms * depth // loops.extents[loop] // lanes >= target.costs.reload
    return ((loop, depth),) if long and sums <= target.l2.bytes else ()
