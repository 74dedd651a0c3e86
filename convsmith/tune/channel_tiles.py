"""Configs of two fused stages with tiles of channels around tiles of rows, like TVM's ``k_split``."""

from __future__ import annotations

from collections.abc import Iterator

from convsmith.problem.conv import Conv
from convsmith.schedule.config import Config
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement

__all__ = ["in_channel_tiles"]

PARTS = (2, 4, 8)
"""Numbers of tiles into which the channels of a result are cut."""


def in_channel_tiles(
    first: Config, second: Config, one: Conv, two: Conv, rows: int
) -> Iterator[tuple[Config, Config]]:  # fmt: skip
    """Yield configs of the stages ``one`` and ``two`` with tiles of channels, with ``rows`` rows of the second computed
    at once; the configs ``first`` and ``second`` have no tiles of channels.

    Operands are packed as in these configs; or each tile packs the weights that it reads; or also rows of the source.
    """
    statements = [statement(problem) for problem in (one, two)]
    for parts in PARTS:
        tiles = [_tile(own, st, parts) for own, st in zip((first, second), statements)]
        if not all(tiles):
            continue
        plain, last = (_in_tiles(*x) for x in zip((first, second), statements, tiles))
        yield plain, last
        packed, near = (_near(*x) for x in zip((plain, last), statements, tiles))
        yield packed, near
        own = packed.size("oh")
        tile = -(-rows // own) * own
        around = (("oh", tile), *packed.tiles_at("cache"))
        source = (statements[0].a.name, f"oh:{tile}")
        yield packed.changed(cache=around, near=(source, *packed.staged_at("near"))), near


def _tile(config: Config, st: Statement, parts: int) -> int:
    """Return the channels of each of ``parts`` tiles of whole register tiles; 0 if all channels are one tile, or no
    loop of the config runs over them.
    """
    unit, channels = config.size(st.n), next(d.size for d in st.dims if d.name == st.n)
    tile = -(-channels // (parts * unit)) * unit
    return tile if tile < channels and not any(st.n in pair for pair in config.fuse) else 0


def _in_tiles(config: Config, st: Statement, tile: int) -> Config:
    """Return ``config`` with tiles of channels around all other loops."""
    others = (pair for pair in config.tiles_at("cache") if pair[0] != st.n)
    return config.changed(cache=((st.n, tile), *others))


def _near(config: Config, st: Statement, tile: int) -> Config:
    """Return ``config`` with weights packed by each tile of channels instead of by a kernel before."""
    pack = tuple(n for n in config.staged("pack") if n != st.b.name)
    return config.changed(pack=pack, near=((st.b.name, f"{st.n}:{tile}"),))
