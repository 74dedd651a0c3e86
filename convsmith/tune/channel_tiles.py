"""Configs of two fused stages with tiles of channels around tiles of rows, like TVM's ``k_split``."""

from __future__ import annotations

from collections.abc import Iterator

from convsmith.problem.conv import Conv
from convsmith.schedule.config import Config
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement
from convsmith.tune.search.config_space import Changes

__all__ = ["in_channel_tiles"]

PARTS = (2, 4, 8)
"""Numbers of tiles into which the channels of a result are cut."""


def in_channel_tiles(
    first: Config, second: Config, one: Conv, two: Conv, rows: int
) -> Iterator[tuple[Changes, Changes]]:  # fmt: skip
    """Yield changes of the configs ``first`` and ``second`` of the stages ``one`` and ``two``: tiles of channels around
    the ``rows`` of the second that are computed at once.

    Operands are packed as the configs say; or each tile packs the weights that it reads; or rows of the source too.
    """
    configs, statements = (first, second), [statement(problem) for problem in (one, two)]
    for parts in PARTS:
        tiles = [_tile(own, st, parts) for own, st in zip(configs, statements)]
        if not all(tiles):
            continue
        plain, last = (_in_tiles(*x) for x in zip(configs, statements, tiles))
        yield plain, last
        packed, near = (
            changes | _near(own, st, tile)
            for changes, own, st, tile in zip((plain, last), configs, statements, tiles)
        )
        yield packed, near
        unit = first.size("oh")
        size = -(-rows // unit) * unit
        around = (("oh", size), *packed["cache"])
        source = (statements[0].a.name, f"oh:{size}")
        yield packed | dict(cache=around, pack_at=(source, *packed["pack_at"])), near


def _tile(config: Config, st: Statement, parts: int) -> int:
    """Return the channels of each of ``parts`` tiles of whole register tiles; 0 where all channels are one tile, or are
    no loop of the config.
    """
    unit, channels = config.size(st.n), st.extents[st.n]
    tile = -(-channels // (parts * unit)) * unit
    return tile if tile < channels and not any(st.n in pair for pair in config.fuse) else 0


def _in_tiles(config: Config, st: Statement, tile: int) -> Changes:
    """Return the change of ``config`` to tiles of channels around all others."""
    return dict(cache=((st.n, tile), *(own for own in config.tiles_at("cache") if own[0] != st.n)))


def _near(config: Config, st: Statement, tile: int) -> Changes:
    """Return the change of ``config`` to weights that a tile of channels packs, and not a kernel before."""
    pack = tuple(n for n in config.staged("pack") if n != st.b.name)
    return dict(pack=pack, pack_at=((st.b.name, f"{st.n}:{tile}"),))
