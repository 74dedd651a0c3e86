"""Register tiles of windows that fetch the pixels of the tile below them."""

from __future__ import annotations

from convsmith.ir.index import Var
from convsmith.machine.base import Machine
from convsmith.schedule.config import Config
from convsmith.statement.statement import Statement, view_steps


def rows_below(st: Statement, config: Config, target: Machine) -> tuple[int, int] | None:
    """Return the elements of the source from those that a register tile reads to those that the tile below it reads,
    and to those of the next tile of the same row; None unless tiles can fetch the pixels of the tile below: straight
    code for the windows of rows and columns, whose vectors are adjacent groups of one channel, read from the caller's
    source where it is. Prefetches of pixels may leave the array.
    """
    pixels = [d for d in st.of("m") if d.axis][-2:]
    if len(pixels) < 2 or len(st.factors) < 2 or not st.constant or st.residues or st.sizes:
        return None
    if target.prefetches_by_loads or target.device is not None or config.phases or config.has_transform or config.fuse:
        return None
    a, steps, tile = st.a, view_steps(st.a), dict(config.tiles_at("register"))
    groups = [d.name for d in st.of("batch")] == [config.lane] and steps.get(Var(config.lane)) == 1
    alone = all(d.size == 1 for d in st.of("k") if not d.axis)
    is_straight = all(tile.get(d.name, 1) >= d.size for d in st.of("k") if d.axis in {p.axis for p in pixels})
    plain = config.realise == "peel" and a.name not in (*config.staged("pack"), *dict(config.staged_at("pack_at")))
    if not (groups and alone and is_straight and plain):
        return None
    below, beside = (tile.get(d.name, 1) * steps.get(Var(d.name), 0) for d in pixels)
    return (below, beside) if 0 < beside <= below else None
