"""Copies of a copy engine that serve more than the present step of a group.

These checks decide whether the cluster of a config is legal and its copies have parts for all groups, and whether
operands may stay in shared memory for all tiles of a group, and whether teams of its warps may take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from convsmith.arith.tensor_maps import part_axis
from convsmith.diag.errors import ConfigError
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.machine.device_costs import CopyEngine
from convsmith.schedule.config import Config
from convsmith.schedule.engine_copies import EngineCopy
from convsmith.schedule.loops import Loops
from convsmith.schedule.nest import Nest
from convsmith.statement.statement import Statement, View

__all__ = ["cluster_flaw", "parts_flaw", "resident_flaw", "teams_flaw"]


def cluster_flaw(loops: Loops, legal: Sequence[str], config: Config, machine: Machine) -> ConfigError | None:
    """Return the error if ``--cluster=`` is along none of the ``legal`` loops, which have a tile for each of its
    groups, or of a number of groups that the copy engine of ``machine`` does not reach; otherwise None.
    """
    for loop, groups in config.tiles_at("cluster"):
        sizes = () if machine.device is None or machine.device.engine is None else machine.device.engine.clusters
        given = f"--cluster={loop}:{groups}"
        if groups not in sizes:
            known = f"legal are {' and '.join(map(str, sizes))}" if sizes else "legal is none"
            return ConfigError("cluster", f"{given}: {machine.name} has no clusters of {groups} groups; {known}")
        if loop not in legal:
            return ConfigError(
                "cluster", f"{given}: the groups of a cluster share rows or columns of their products; legal are the "
                f"loops {' and '.join(legal)}",
            )  # fmt: skip
        tiles = -(-loops.extents[loop] // config.group_size(loop))
        if tiles < groups:
            return ConfigError(
                "cluster", f"{given}: the loop has {tiles} tiles of {config.group_size(loop)}; legal are more tiles"
            )
    return None


def parts_flaw(nest: Nest, copies: Sequence[EngineCopy], engine: CopyEngine) -> ConfigError | None:
    """Return the error if the copies of the operand that the cluster of ``nest`` shares have no equal parts for its
    groups; otherwise None.
    """
    for loop in nest.at("cluster"):
        for x in copies:
            of = x.mapped.map
            if loop.of in {own.of for own in x.loops} or part_axis(of, loop.extent, engine.together) is not None:
                continue
            return ConfigError(
                "cluster", f"--cluster={loop.of}:{loop.extent}: {of.rows} rows of a copy of {x.mapped.name} have no "
                f"{loop.extent} parts of a multiple of {engine.together}; legal are larger tiles",
            )  # fmt: skip
    return None


def resident_flaw(st: Statement, nest: Nest, config: Config, residing: int) -> ConfigError | None:
    """Return the error if an operand of ``--resident=`` does not stay the same for all tiles of a group of ``nest``;
    otherwise None. ``residing`` groups compute several tiles each, in equally many steps, unless there are none.
    """
    names = config.staged("resident")
    legal = [v.name for v in st.factors if residing and not residing % _turn(v, nest)]
    if not names or (set(names) <= set(legal) and len(names) < len(st.factors)):
        return None
    why = f"tiles of a group read different elements; legal are {', '.join(legal) or 'none here'}"
    if not residing:
        why = "a group computes one tile, or tiles of different numbers of steps; legal is no operand"
    return ConfigError("resident", f"--resident={','.join(names)}: {why}")


def teams_flaw(config: Config, is_persistent: bool) -> ConfigError | None:
    """Return the error if teams of warps cannot compute the tiles of a group in turn, of which it has several if it
    ``is_persistent``; otherwise None.
    """
    if config.teams == 1:
        return None
    given = {"--cluster=": config.tiles_at("cluster"), "--resident=": config.staged("resident")}
    others = [word for word, value in given.items() if value]
    why = f"legal is none of {', '.join(others)}" if others else "a group computes one tile; legal is --teams=1"
    return ConfigError("teams", f"--teams={config.teams}: {why}") if others or not is_persistent else None


def _turn(view: View, nest: Nest) -> int:
    """Return the number of successive tiles after which tiles read the same elements of ``view`` again: a group that
    computes every tile of a multiple of it reads no others.
    """
    read, grid = {v.name for x in view.coords for v in variables_of(x)}, [x for x in nest.grid if x.level != "cluster"]
    moved = [n for n, x in enumerate(grid) if x.extent > 1 and not read.isdisjoint(x.dims)]
    return prod(x.extent for x in grid[moved[0] :]) if moved else 1
