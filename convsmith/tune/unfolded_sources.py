"""A variant of a config whose register tiles run on from row to row of pixels, in a copy of the source.

A stride keeps the rows of pixels from being one loop, and the last tile of each row may have so few sums that each
multiply-add waits for the one before. In a copy of the pixels that are read, with a dim for each loop that indexes it,
all pixels of an image are one loop.
"""

from __future__ import annotations

from math import prod

from convsmith.ir.index import Var, is_true
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops, fused_chain
from convsmith.schedule.packed_operands import unfoldable
from convsmith.tune.costs.model import Model

__all__ = ["with_unfolded_source"]


def with_unfolded_source(model: Model, loops: Loops, config: Config) -> Config | None:
    """Return ``config`` with an unfolded source and one loop over the pixels of an image, or None if the sums of the
    last tile of a row are enough to hide the latency of multiply-adds, lanes are no channels of the result, channels of
    the source lie apart, or taps read an element again, of which there would be several copies.
    """
    st, target = model.st, model.target
    if config.fuse or config.realise != "peel" or config.lane != model.n or model.batch:
        return None
    rows = [d.name for d in st.of("m") if d.axis]
    plain = st.constant and not (model.unit.dot or st.residues or st.sizes or target.vectors.scalable)
    plain = plain and len(rows) > 1 and is_true(st.a.mask) and st.a.requantised is None
    plain = plain and model.reads_once() and model.src.get(Var(model.k)) == 1
    if not plain or st.a not in unfoldable(st):
        return None
    last, tile = rows[-1], prod(config.size(n) for n in rows)
    pixels = tile // config.size(last) * (loops.extents[last] % config.size(last))
    sums = pixels * config.size(config.lane) // model.lanes
    if not 0 < sums * target.prices[model.product] < target.costs.latency:
        return None
    whole, pairs = fused_chain(rows)
    for pair in pairs:
        model.fuse(*pair)
    register = ((whole, tile) if n == last else (n, size) for n, size in config.tiles_at("register"))
    return config.changed(
        fuse=tuple(pairs), register=tuple(x for x in register if x[0] not in rows[:-1]),
        order=tuple(whole if n == last else n for n in config.order if n not in rows[:-1]),
        pack=(*config.staged("pack"), st.a.name), unfold=(st.a.name,),
    )  # fmt: skip
