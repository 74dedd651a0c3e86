"""Whether a result leaves through shared memory, from where the copy engine stores it beside the next products."""

from __future__ import annotations

from convsmith.machine.base import Machine
from convsmith.schedule.hardware import engine_of, hardware_flaw
from convsmith.schedule.hardware_choice import EngineTile
from convsmith.schedule.loops import in_parts
from convsmith.schedule.packed_operands import packed_statement
from convsmith.statement.statement import Statement
from convsmith.tune.device_features import residing
from convsmith.tune.device_parts import engine_cycles

__all__ = ["with_stored_result"]


def with_stored_result(x: EngineTile, st: Statement, machine: Machine) -> EngineTile:
    """Return a legal tile, or the same tile with the result in shared memory, if the model expects that to be faster:
    with as many slots, or fewer where shared memory has no room.

    Groups that reside on a unit together store while others multiply, so that a group gains only if it is alone. Only
    results that are stored to shared memory by matrices are considered.
    """
    assert machine.device is not None
    by_matrices = {row.result.dtype for row in machine.matrix_stores}
    alone = residing(x, st, machine) == 1 and machine.device.units.turns(x.groups) > 1
    if x.parts > 1 or st.c.dtype not in by_matrices or not alone:
        return x
    ways = [x]
    fewer = (n for n in reversed(engine_of(machine).slots) if n < x.config.buffers)
    for slots in (x.config.buffers, *fewer):
        config = x.config.changed(shared=(*x.config.staged("shared"), st.c.name), buffers=slots)
        read = packed_statement(in_parts(st, config, machine), config, machine)
        if hardware_flaw(read, config, machine) is None:
            ways.append(x._replace(config=config))
    return min(ways, key=lambda way: engine_cycles(way, st, machine))
