"""The register tiles of a config, counted by their sizes; and the parts of them that each term computes at borders."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from convsmith.ir.index import Mod, Var
from convsmith.ir.walk import variables_of
from convsmith.schedule.config import Config
from convsmith.schedule.copies import restricted
from convsmith.schedule.loops import Loops
from convsmith.statement.statement import view_steps
from convsmith.tune.costs.borders import Presence
from convsmith.tune.costs.code_size import splits
from convsmith.tune.costs.shared_facts import SharedFacts

__all__ = ["ADDRESSES", "TileCount", "parts_inside", "rows_cross_blocks", "whole_tiles"]

ADDRESSES = 12
"""Maximum number of rows at addresses of their own that a tile keeps in registers beside its pointers and counters."""


class TileCount(NamedTuple):
    """``number`` register tiles of ``pixels`` by ``vectors``, or parts of tiles with the fraction ``part`` of their
    pixels.
    """

    pixels: int
    vectors: int
    number: float
    part: float = 1.0

    @property
    def sums(self) -> int:
        """The vectors of sums of a tile."""
        return self.pixels * self.vectors


def rows_cross_blocks(facts: SharedFacts, config: Config) -> bool:
    """Return whether rows of a tile of a gradient of the weights begin within a block of channels and end in the next
    one, at a place that differs between tiles, so that each row has an address of its own.
    """
    if facts.st.constant or all([view.layout.is_plain for view in facts.st.factors]):
        return False
    rows = {Var(facts.dims[n][-1]): size for n, size in config.tiles_at("register") if n != config.lane}
    read = (view for view in facts.st.factors if view.name not in config.packed)
    blocks = (atom for view in read for atom in view_steps(view) if isinstance(atom, Mod))
    return any(x.den % rows[v] and rows[v] % x.den for x in blocks for v in variables_of(x) if v in rows)


def whole_tiles(facts: SharedFacts, loops: Loops, config: Config) -> list[TileCount]:
    """Return the register tiles of a kernel of all groups and residue classes."""
    return _tiles(facts, loops, config, {})


def parts_inside(facts: SharedFacts, loops: Loops, config: Config) -> list[TileCount]:
    """Return the parts of register tiles that a step of a sum computes, in the mean of all taps. A tap leaves out the
    pixels that it finds beyond a border, and vectors of such pixels alone.
    """
    if config.realise == "peel":
        return _tiles(facts, loops, config, facts.inside)
    along = {a for n in restricted(config) for a in loops.axes[n]}
    axes = {d.name: d.axis for d in facts.st.dims} if along else {}
    return _tiles(facts, loops, config, {n: x for n, x in facts.inside.items() if along and axes[n] in along})


def _tiles(facts: SharedFacts, loops: Loops, config: Config, inside: Mapping[str, Presence]) -> list[TileCount]:
    """Return the tiles, or the parts of them with pixels ``inside``; configs that differ elsewhere share them."""
    key = (config.lane, config.tiles_at("register"), *inside, *loops.extents.items())
    found = facts.tiles.get(key)
    if found is None:
        found = facts.tiles[key] = _counted(facts, loops, config, inside)
    return found


def _counted(facts: SharedFacts, loops: Loops, config: Config, inside: Mapping[str, Presence]) -> list[TileCount]:
    lane, tile = config.lane, dict(config.tiles_at("register"))
    along_k, lanes = loops.kinds[lane] == "k", facts.filled(lane)
    columns: list[tuple[int, float]]
    if along_k:
        columns = [*splits(loops.extents[facts.n], tile.get(facts.n, 1))]
    else:
        width, runs = max(tile[lane] // lanes, 1), (-(-n // lanes) for n in facts.columns(loops, lane))
        parts = inside[lane].cut(width, lanes) if lane in inside else []
        columns = [(n, number) for n, _, number in parts] or [x for n in runs for x in splits(n, width)]
    rows = loops.of("m")
    if loops.kinds[lane] == "m":
        rows = [facts.n, *(n for n in rows if n != lane and n in tile)]
    pixels: list[tuple[int, float, float]] = [(1, 1.0, 1.0)]
    for name in rows:
        size = tile.get(name, 1)
        whole = [(n, n, float(count)) for n, count in splits(loops.extents[name], size)]
        sizes = inside[name].cut(size) if name in inside else whole
        pixels = [(m * n, a * b, part * n / of) for m, a, part in pixels for n, of, b in sizes]
    counted = {lane, *rows} | ({facts.n} if along_k else set())
    around: float = prod(n for name, n in loops.extents.items() if loops.kinds[name] != "k" and name not in counted)
    around *= prod(m for name, m in facts.classes.items() if name not in facts.st.reduce)
    around *= prod(x.mean() / facts.st.extents[name] for name, x in inside.items() if name not in counted)
    return [TileCount(m, v, around * a * b, part) for m, a, part in pixels for v, b in columns]
