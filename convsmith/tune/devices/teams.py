"""Whether teams of warps compute the tiles of a group in turn: one stores its results while another multiplies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.schedule.hardware import engine_of, hardware_flaw
from convsmith.schedule.hardware_choice import EngineTile
from convsmith.schedule.packed_operands import packed_statement
from convsmith.statement.statement import Statement
from convsmith.tune.devices.device_features import residing
from convsmith.tune.devices.device_parts import engine_cycles
from convsmith.tune.devices.l2_blocks import in_l2_blocks

__all__ = ["in_turn"]

TEAMS = 2
"""Teams of the model: while one stores its results, the other multiplies."""
TEAMED = 0.75
"""Largest ratio of the expected times with teams and without at which the model takes teams: they were not timed on a
GPU, in contrast to the groups that they replace.
"""
HIDDEN = 0.5
"""Largest ratio of the time in which a tile is stored to that of its products, of the tiles that teams compute: stores
take memory's bytes from copies, which the model does not see, where there are more of them.
"""


def in_turn(best: EngineTile, tiles: Iterable[EngineTile], st: Statement, machine: Machine) -> EngineTile:
    """Return the legal one of ``tiles`` that teams of warps are expected to compute fastest in turn, if they take
    `TEAMED` of the time of ``best`` or less; otherwise ``best``.
    """
    most = TEAMED * engine_cycles(best, st, machine)
    ways = [(engine_cycles(x, st, machine), x) for x in _teamed(tiles, st, machine)]
    quicker = [way for way in ways if way[0] <= most]
    quicker.sort(key=lambda way: (way[0], -prod(way[1].tile), -way[1].config.buffers))
    for _, x in quicker:
        made = in_l2_blocks(x, st, machine)
        if hardware_flaw(packed_statement(st, made.config, machine), made.config, machine) is None:
            return made
    return best


def _teamed(tiles: Iterable[EngineTile], st: Statement, machine: Machine) -> Iterator[EngineTile]:
    """Yield the ``tiles`` of groups that compute several, and reside alone on a unit, in teams, with each number of
    slots that fits: a product of one team is short, and more slots hide the way of a copy.
    """
    assert machine.device is not None
    engine, units, size = engine_of(machine), machine.device.units, dtype(st.a.dtype)
    for x in tiles:
        config = x.config.changed(teams=TEAMS, l2=())
        made = x._replace(config=config)
        products = x.steps * x.terms * dtype(st.a.factor).bits / 16 / units.of_fragments
        if x.parts > 1 or x.longest or x.config.tiles_at("cluster") or x.config.staged("resident"):
            continue
        if engine.result > HIDDEN * products or units.turns(x.groups) < TEAMS or residing(made, st, machine) > 1:
            continue
        slot = sum(x.tile) * x.terms * size.bytes
        for slots in range(engine.slots[0], engine.slots[-1] + 1):
            if slots * slot + engine.reserved <= machine.device.shared.bytes:
                yield made._replace(config=config.changed(buffers=slots))
