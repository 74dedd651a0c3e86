"""Products whose rows stay while their packed weights stream.

A register tile reads a few rows at once, each a stream of its own that begins anew for every tile. Packed weights are
one stream, in the order of reading. If the tiles of columns are outermost, each of them reads all rows again. With the
rows outermost, the first-level cache keeps those of a tile for all columns, and prefetchers follow the weights, which
the last cache keeps from one tile of rows to the next.
"""

from __future__ import annotations

from convsmith.machine.base import Machine
from convsmith.schedule.config import Config
from convsmith.statement.statement import Statement
from convsmith.tune.copied_blocks import columns_around_rows

__all__ = ["with_rows_first"]


def with_rows_first(st: Statement, config: Config, target: Machine) -> Config:
    """Return the config of a product whose direct statement is ``st`` with rows around columns, where the last cache
    keeps all weights while they stream; ``config`` if they are larger, or if it has cache tiles other than the rows of
    a thread.

    Neither does it change where the second-level cache keeps all rows, so that weights, which a network reads from
    memory, pass once, nor where the rows come from memory, which tiles fetch ahead.
    """
    most = target.costs.streamed_weights
    is_near = st.b.bytes <= most and target.l2.bytes < st.a.bytes <= target.costs.images_far
    found = columns_around_rows(st, config, target) if is_near else None
    if found is None:
        return config
    (loops, row, _), lane = found, config.lane
    several = all(loops.extents[n] > config.size(n) for n in (row, lane))
    if not several or any(n != row for n, _ in config.tiles_at("cache")):
        return config
    order = (*(n for n in config.order if n not in (row, lane)), row, lane)
    return config.changed(order=order, fetch=tuple(n for n in config.staged("fetch") if n != st.a.name))

