"""Steps of a search that fuse two adjacent loops of a config, or split a fused loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import prod

from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import Sizes
from convsmith.schedule.loops import Loops, fused_dims, fused_name
from convsmith.tune.search.config_space import Changes

__all__ = ["fused_loops", "neighbours_of", "split_loops", "with_fused_pair", "with_split_pair"]

def neighbours_of(loops: Loops, lane: str) -> list[tuple[str, str]]:
    """Return the adjacent pairs of loops of one kind, each with several iterations, that may be fused.

    The loop ``lane`` must be the inner loop of its pair, because vectors run along the innermost dim.
    """
    pairs = pairwise(loops.extents)
    several = (pair for pair in pairs if min(loops.extents[n] for n in pair) > 1)
    return [(a, b) for a, b in several if loops.kinds[a] == loops.kinds[b] and a != lane]


def with_fused_pair(config: Config, pair: tuple[str, str], loops: Loops) -> Iterator[Changes]:
    """Yield the changes of ``config`` that fuse a ``pair`` of loops: at the place of either loop in the order.

    The register tile is the tile of the inner loop, times the tile of the outer loop if the former has all iterations
    of the inner loop.
    """
    a, b = pair
    name, tile = fused_name(a, b), dict(config.tiles_at("register"))
    inner = tile.get(b, 1)
    size = inner * tile.get(a, 1) if inner >= loops.extents[b] else inner
    register = tuple((name if n == b else n, size if n == b else s) for n, s in config.tiles_at("register") if n != a)
    shared = dict(
        register=register,
        cache=_without(config.tiles_at("cache"), pair),
        k_step=tuple((name if n == b else n, s) for n, s in config.tiles_at("k_step") if n != a),
    )
    yield from (shared | fused_loops(config, pair, at) for at in (b, a))


def fused_loops(config: Config, pair: tuple[str, str], at: str) -> Changes:
    """Return the changes of ``config``, besides tiles, that fuse a ``pair`` of loops, at the place of loop ``at``."""
    name = fused_name(*pair)
    order, reduce = (
        tuple(name if n == at else n for n in names if n == at or n not in pair)
        for names in (config.order, config.reduce)
    )
    return dict(
        fuse=(*config.fuse, pair), lane=name if config.lane == pair[1] else config.lane, order=order, reduce=reduce
    )


def split_loops(config: Config, pair: tuple[str, str]) -> Changes | None:
    """Return the changes of ``config``, besides tiles, that split a fused ``pair`` of loops; None if it is fused with a
    third loop.
    """
    name = fused_name(*pair)
    if any(name in other for other in config.fuse):
        return None
    order, reduce = (
        tuple(x for n in names for x in (pair if n == name else (n,))) for names in (config.order, config.reduce)
    )
    fuse = tuple(other for other in config.fuse if other != pair)
    return dict(fuse=fuse, lane=pair[1] if config.lane == name else config.lane, order=order, reduce=reduce)


def with_split_pair(config: Config, pair: tuple[str, str], sizes: Mapping[str, int], lanes: int) -> Changes | None:
    """Return the changes of ``config`` that split a fused loop into two, or None if it is fused with a third loop.

    ``sizes`` are the sizes of the dims. A register tile of whole inner loops becomes a tile of both loops; a smaller or
    uneven tile becomes a tile of the inner loop, in vectors of ``lanes`` along the lanes.
    """
    a, b = pair
    name, loops = fused_name(a, b), split_loops(config, pair)
    if loops is None:
        return None
    extent, size = prod(sizes[dim] for dim in fused_dims(config, b)), config.size(name)
    unit = lanes if config.lane == name else 1
    tile: Sizes = ((b, min(size, -(-extent // unit) * unit)),)
    if size > extent and size % extent == 0:
        tile = ((a, size // extent), *tile)
    register = (part for own in config.tiles_at("register") for part in (tile if own[0] == name else (own,)))
    return loops | dict(
        register=tuple(register), cache=_without(config.tiles_at("cache"), (name,)),
        k_step=tuple((b if n == name else n, s) for n, s in config.tiles_at("k_step")),
    )  # fmt: skip


def _without(sizes: Sizes, names: tuple[str, ...]) -> Sizes:
    """Return ``sizes`` of other loops than ``names``."""
    return tuple((n, size) for n, size in sizes if n not in names)
