"""Gradients of the weights whose dot products read one factor where it lies, in place of packing it: they interleave
the terms of vectors as they load them, or load adjacent terms that all lanes share.

Where terms of vectors are interleaved, the other factor, whose elements are in all lanes, is packed. A tile that
multiplies a vector by many of its elements interleaves as many vectors as it would load packed ones, and each element
is read from memory once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from convsmith.ir.index import Var
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.schedule.lower import fetched_factors
from convsmith.schedule.product_shape import interleavable, paired
from convsmith.statement.statement import View, view_steps
from convsmith.tune.costs.far_lines import is_in_memory
from convsmith.tune.costs.model import Model
from convsmith.tune.variants import has_taps

MOST_BEYOND = 1 / 16
"""Maximum part of the channels that the last tile may have beyond them where blocks pack them: they are filled singly.
"""
INTERLEAVING = 2
"""Vectors of a tile that interleaves rows, beside its sums and factors: the second row, and the order of elements."""


def interleaved(model: Model, loops: Loops, config: Config, blocks: Sequence[Config]) -> Iterator[Config]:
    """Yield the config of a gradient of the weights, or its ``blocks`` if there are any, that packs the factor of the
    elements in all lanes alone. Without blocks, the second-level cache holds both factors. A factor in memory is packed
    where tiles cannot fetch its next block: loads that pack it prefetch lines.
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
        views = interleavable(model.st, each, model.unit.terms)
        read = {view.name for view in views if not _is_late(model, view, each)}
        pack = tuple(n for n in each.staged("pack") if n not in read)
        pack_at = tuple(x for x in each.staged_at("pack_at") if x[0] not in read)
        if read & each.packed and not (pack_at and beyond > MOST_BEYOND):
            yield each.changed(pack=pack, pack_at=pack_at)


def _is_late(model: Model, view: View, config: Config) -> bool:
    """Return whether tiles that read a factor where it lies would wait for its lines from memory."""
    st, target = model.st, model.target
    if not target.costs.prefetched_copies or not is_in_memory(target, sum(x.bytes for x in st.factors)):
        return False
    return view.name not in fetched_factors(st, config.changed(pack=(), pack_at=()), target)


def in_pairs(model: Model, loops: Loops, config: Config, blocks: Sequence[Config]) -> Iterator[Config]:
    """Yield the config of a gradient of the weights of one tap, and its ``blocks``, with the factor of vectors packed
    alone: the terms that all lanes share are adjacent in memory, and the first-level cache keeps the lines of a tile's
    rows. Several taps read these rows in another order each, which is no faster than packed ones.
    """
    if not (model.unit.dot and model.unit.rows == 1 and config.threads == 1) or has_taps(model):
        return
    l1, rows = model.target.l1, [(n, size) for n, size in config.tiles_at("register") if n != config.lane and size > 1]
    for each in (config, *blocks):
        read = paired(model.st, each, model.unit.terms)
        if len(rows) != 1 or not {view.name for view in read} & each.packed:
            continue
        ((row, size),), (view,) = rows, read
        apart = view_steps(view).get(Var(loops.dims[row][-1]), 0) * model.bytes
        if l1.line <= apart and size <= l1.lines_kept(apart, model.target.costs.added_ways):
            yield each.changed(
                pack=tuple(n for n in each.staged("pack") if n != view.name),
                pack_at=tuple(x for x in each.staged_at("pack_at") if x[0] != view.name),
            )
