"""Gradients of the weights whose dot products interleave the terms of a factor as they load it, in place of packing it.

The other factor, whose elements are in all lanes, is packed. A tile that multiplies a vector by many of its elements
interleaves as many vectors as it would load packed ones, and each element is read from memory once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.schedule.product_shape import interleavable
from convsmith.tune.model import Model

MOST_BEYOND = 1 / 16
"""Maximum part of the channels that the last tile may have beyond them where blocks pack them: they are filled singly.
"""
INTERLEAVING = 2
"""Vectors of a tile that interleaves rows, beside its sums and factors: the second row, and the order of elements."""


def interleaved(model: Model, loops: Loops, config: Config, blocks: Sequence[Config]) -> Iterator[Config]:
    """Yield the config of a gradient of the weights, or its ``blocks`` if there are any, that packs the factor of the
    elements in all lanes alone. Without blocks, the second-level cache holds both factors.
    """
    if not (model.target.costs.interleaved and model.unit.dot and model.unit.rows == 1):
        return
    if not blocks and sum(view.bytes for view in model.st.factors) > model.target.l2.bytes:
        return
    vectors = -(-config.size(config.lane) // model.lanes)
    rows = {n: size for n, size in config.tiles_at("register") if n != config.lane}
    if (prod(rows.values()) + 1) * vectors + INTERLEAVING > model.target.registers:
        return
    beyond = max((-loops.extents[n] % size / loops.extents[n] for n, size in rows.items()), default=0.0)
    for each in blocks or (config,):
        read = {view.name for view in interleavable(model.st, each, model.unit.terms)}
        pack = tuple(n for n in each.staged("pack") if n not in read)
        pack_at = tuple(x for x in each.staged_at("pack_at") if x[0] not in read)
        if read & each.packed and not (pack_at and beyond > MOST_BEYOND):
            yield each.changed(pack=pack, pack_at=pack_at)
