"""Blocks for the caches, derived from the target's: where the packed operand of one register tile outgrows them.

While pixels pass, the weights of a tile of channels stay in the second-level cache. Where their sums are so long that
they do not, a part of each sum is taken at a time, for so many channels that the sums in between stay there too.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from convsmith.build.loops import Loops
from convsmith.ir.types import dtype
from convsmith.layout.view import Statement
from convsmith.schedule.config import Config
from convsmith.target.base import Target

SHARE = 4
"""The part of the second-level cache that weights of a block fill: the source and the sums pass through it as well."""
BLOCKS_A_THREAD = 3
"""Blocks of channels that make threads end at about the same time."""


def blocked(st: Statement, loops: Loops, config: Config, target: Target) -> Config:
    """The config with blocks of channels and of the longest reduction loop, where that pays."""
    inner = max(loops.of("k"), key=lambda n: loops.extents[n])
    if loops.kinds[config.lane] != "n" or config.hold or loops.residues or config.realise != "peel":
        return config
    terms = prod(loops.extents[n] for n in loops.of("k"))
    wide = config.size(config.lane)
    panel = terms * wide * dtype(st.b.dtype).bytes
    again = prod(-(-loops.extents[n] // config.size(n)) for n in loops.of("m"))
    if panel <= target.l2_bytes or again < 2:
        return config
    unit = max(config.size(inner), dict(config.terms).get(inner, 1))
    parts = -(-panel * SHARE // target.l2_bytes)
    depth = -(-loops.extents[inner] // (parts * unit)) * unit
    pixels = prod(loops.extents[n] for n in loops.of("m"))
    tiles = -(-loops.extents[config.lane] // wide)
    held = max(1, target.l2_bytes // (pixels * wide * dtype(st.acc).bytes))
    if config.threads > 1:
        held = min(held, max(1, tiles // (BLOCKS_A_THREAD * config.threads)))
    channels = ((config.lane, held * wide),) if held < tiles else ()
    return replace(config, block=(*channels, (inner, depth)))
