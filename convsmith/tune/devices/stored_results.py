"""Whether a result leaves through shared memory, from where the copy engine stores it beside the next products."""

from __future__ import annotations

from collections.abc import Iterator

from convsmith.machine.base import Machine
from convsmith.schedule.hardware import engine_of, hardware_flaw
from convsmith.schedule.hardware_choice import EngineTile
from convsmith.schedule.loops import in_parts
from convsmith.schedule.packed_operands import packed_statement
from convsmith.statement.statement import Statement
from convsmith.tune.devices.device_features import residing
from convsmith.tune.devices.device_parts import engine_cycles

__all__ = ["STORE_PARTS", "with_stored_result"]

STORE_PARTS = (2, 4)
"""Numbers of parts in which results leave through shared memory that has no room for a tile of them."""
IN_PARTS = 0.95
"""Largest ratio of the expected times with and without parts at which the model takes parts, which were not timed on a
GPU.
"""


def with_stored_result(x: EngineTile, st: Statement, machine: Machine) -> EngineTile:
    """Return a legal tile, or the same tile with the result in shared memory, if the model expects that to be faster:
    with as many slots, or fewer, or in parts where shared memory has no room.

    Groups that reside on a unit together store while others multiply, so that a group gains only if it is alone. Only
    results that are stored to shared memory by matrices are considered.
    """
    assert machine.device is not None
    by_matrices = {row.result.dtype for row in machine.matrix_stores}
    alone = residing(x, st, machine) == 1 and machine.device.units.turns(x.groups) > 1
    if x.parts > 1 or st.c.dtype not in by_matrices or not alone:
        return x

    def expected(way: EngineTile) -> float:
        return engine_cycles(way, st, machine)

    fewer = (n for n in reversed(engine_of(machine).slots) if n < x.config.buffers)
    legal = [way for slots in (x.config.buffers, *fewer) for way in _stored(x, slots, 1, st, machine)]
    whole = min((x, *legal), key=expected)
    divided = [way for parts in STORE_PARTS for way in _stored(x, x.config.buffers, parts, st, machine)]
    best = min(divided, key=expected, default=whole)
    return best if expected(best) <= IN_PARTS * expected(whole) else whole


def _stored(x: EngineTile, slots: int, parts: int, st: Statement, machine: Machine) -> Iterator[EngineTile]:
    """Yield the tile with the result in shared memory, in so many ``parts``, beside so many ``slots``, if it is legal.
    """
    shared = (*x.config.staged("shared"), st.c.name)
    config = x.config.changed(shared=shared, buffers=slots, store_parts=parts)
    read = packed_statement(in_parts(st, config, machine), config, machine)
    if hardware_flaw(read, config, machine) is None:
        yield x._replace(config=config)
