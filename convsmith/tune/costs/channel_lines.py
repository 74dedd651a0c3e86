"""The cache lines of a large source whose channels lie far apart, where tiles sum several taps of each channel.

A tile reads a short run of pixels of each channel, from whose lines prefetchers do not foresee those of the next
channel. The tiles beside it and below it, and those of other channels of the result, read the same lines again. Where
the first-level cache loses them in between, each step waits for lines, as long as the source lies beyond the near part
of the last cache. Blocks of channels prevent that: the cache then keeps a run of each channel of a block, and its
weights, from one tile to the next.
"""

from __future__ import annotations

from math import prod

from convsmith.ir.index import Var
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.statement.statement import Statement, view_steps
from convsmith.tune.costs.traffic import TouchedArray

__all__ = ["in_blocks_of_near_channels", "lines_of_far_channels"]


def in_blocks_of_near_channels(st: Statement, loops: Loops, config: Config, target: Machine) -> Config:
    """Return ``config`` with blocks of as many channels as the first-level cache keeps, if it keeps fewer than all."""
    lines, kept = _lines_and_channels(st, loops, config, target)
    if not lines:
        return config
    channel = st.reduce[-1]
    whole, taps = loops.extents.get(channel, 1), prod(d.size for d in st.of("k") if d.sort == "taps")
    parts = -(-whole // max(kept, -(-target.costs.reload // taps), 1))
    if parts < 2:
        return config
    tiles = [(n, size) for n, size in config.tiles_at("cache") if loops.kinds[n] == "k" and n != channel]
    return config.changed(cache=(*tiles, (channel, -(-whole // parts))))


def lines_of_far_channels(st: Statement, loops: Loops, config: Config, target: Machine) -> float:
    """Return the lines of the source that a step of a tile waits for, in the mean of the taps of a row; 0 if the
    first-level cache keeps those of all channels of a block, or if prefetchers or near caches provide them.
    """
    lines, kept = _lines_and_channels(st, loops, config, target)
    if dict(config.tiles_at("cache")).get(st.reduce[-1], loops.extents.get(st.reduce[-1], 1)) <= kept:
        return 0.0
    return lines


def _lines_and_channels(st: Statement, loops: Loops, config: Config, target: Machine) -> tuple[float, int]:
    """Return the lines that a step of a tile reads of one channel, in the mean of the taps of a row, and the number of
    channels of which the first-level cache keeps all lines and weights of a tile; (0, 0) where no step waits for lines.
    """
    channel, costs, l1 = st.reduce[-1], target.costs, target.l1
    in_place = config.realise == "peel" and loops.kinds[config.lane] == "n" and st.a.name not in config.packed
    if not costs.channel_line or not in_place or not st.constant or st.sizes or loops.residues or config.phases:
        return 0.0, 0
    taps, size = [d for d in st.of("k") if d.sort == "taps"], dtype(st.a.dtype).bytes
    apart = view_steps(st.a).get(Var(channel), 0) * size
    if prod(d.size for d in taps) == 1 or channel not in loops.extents:
        return 0.0, 0
    if apart <= costs.page // 2 or apart * st.extents[channel] <= costs.images_near:
        return 0.0, 0
    source = TouchedArray(st.a, False, target)
    row, *others = source.axes
    tile = {d.name: d.size if d in taps else config.size(d.name) for d in (*st.of("m"), *taps)}
    run = row.touched(tile) * size / l1.line + 1
    lines = run * prod(axis.touched(tile) for axis in others)
    weights = prod(d.size for d in taps) * config.size(config.lane) * dtype(st.b.dtype).bytes
    kept = min(int(l1.bytes / (lines * l1.line + weights)), l1.lines_kept(apart, 0))
    along = prod(tile[n] for n, _ in row.steps if n in {d.name for d in taps})
    return run / along, kept
