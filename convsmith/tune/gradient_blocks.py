"""Gradients of the weights on vectors that pack the factor of their vectors in blocks of pixels.

The channels of a vector are far apart in channels first. Packing all of them before the products writes them to memory
and reads them again; a block of pixels is packed into memory that stays in the second-level cache until all tiles of
the result have read it. The other factor is read in place, where the pixels of a row follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convsmith.ir.index import is_true
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.schedule.packed_operands import is_filled
from convsmith.tune.blocks import MAX_IMBALANCE
from convsmith.tune.costs.model import Model


def of_vectors(model: Model, loops: Loops, config: Config) -> Iterator[Config]:
    """Yield the config of a gradient of the weights that packs the factor of its vectors in blocks of pixels, in place
    of all pixels before the products. There is none if the second-level cache keeps two such blocks.

    Several threads share the vectors, so that each packs its own; there is none if their shares differ much.
    """
    st, kind = model.st, loops.kinds[config.lane]
    plain = not (st.sizes or st.residues or model.unit.dot or model.target.vectors.scalable)
    if not plain or kind not in ("m", "n") or config.realise != "peel":
        return
    width, extent = config.size(config.lane), -(-loops.extents[config.lane] // model.lanes) * model.lanes
    share = -(-extent // (config.threads * width)) * width
    if config.threads > 1 and share * config.threads > MAX_IMBALANCE * extent:
        return
    vectors, size = st.a if kind == "m" else st.b, sum(view.bytes for view in st.factors)
    apart = vectors.name in config.staged("pack") and vectors.dtype == st.acc and vectors.layout.is_plain
    if not apart or size <= 2 * model.target.costs.blocks_kept:
        return
    blocks = _blocks(model, loops, config, model.target.costs.blocks_kept / size)
    if blocks and (is_true(vectors.mask) or is_filled(st, vectors.name, config)):
        pack = tuple(n for n in config.staged("pack") if n != vectors.name)
        own = ((config.lane, share),) if config.threads > 1 else ()
        yield config.changed(cache=(*own, *blocks), pack=pack, pack_at=((vectors.name, blocks[-1][0]),))


def _blocks(model: Model, loops: Loops, config: Config, part: float) -> tuple[tuple[str, int], ...]:
    """Return equal tiles of the outer loops over pixels, in whose order a block is contiguous, with at most this
    ``part`` of all pixels; empty if a block has too few to amortise loading the sums again.
    """
    names = [n for n in config.reduce or loops.of("k") if loops.extents[n] > 1]
    inner = prod(loops.extents[n] for n in names)
    most = int(part * inner)
    tiles: list[tuple[str, int]] = []
    for name in names:
        count = loops.extents[name]
        inner //= count
        if size := most // inner:
            size = -(-count // -(-count // size))
            return (*tiles, (name, size)) if size * inner >= model.target.costs.reload else ()
        tiles.append((name, 1))
    return ()
