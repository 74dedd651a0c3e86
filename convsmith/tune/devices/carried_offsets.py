"""Whether the loops of a device's threads carry offsets from one iteration to the next: the additions that this saves.

Threads copy a tile to shared memory in turns. The assembler unrolls these loops, and computes the address of each turn
by an addition of 64 bits, unless it is a constant away from another one: loops that carry offsets leave it this sum.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod

from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.schedule.config import Config
from convsmith.schedule.copy_layouts import copy_shape
from convsmith.schedule.group_limits import are_asynchronous, as_in_memory, copied_nest
from convsmith.schedule.loops import Loops, loops_after_fusing
from convsmith.schedule.nest import Nest
from convsmith.schedule.nest_builders import nest_of
from convsmith.schedule.schedule import Schedule
from convsmith.statement.statement import Statement, View

__all__ = ["saved_additions", "with_carried_offsets"]


def with_carried_offsets(st: Statement, config: Config, machine: Machine) -> Config:
    """Return ``config`` for ``st``, whose loops carry offsets if a thread then has fewer additions in a step, and more
    steps copy within the loop over steps than ahead of it. Threads take no more registers: an offset replaces the
    address of each turn.
    """
    assert machine.device is not None
    loops = loops_after_fusing(st, config)
    nest = nest_of(Schedule(), st, loops, config, machine)
    parts, ahead = prod(n for _, n in config.tiles_at("split")), config.buffers - 1
    if prod(x.extent for x in nest.steps) <= max(2 * ahead, 1) * parts:
        return config
    return config.changed(carry=saved_additions(st, loops, config, nest, machine) > 0)


def saved_additions(st: Statement, loops: Loops, config: Config, nest: Nest, machine: Machine) -> int:
    """Return the number of additions of 64 bits that a thread saves in a step if loops carry offsets: one for each turn
    of an asynchronous copy whose address is a legal constant away from that of another turn.
    """
    device = machine.device
    assert device is not None
    saved = 0
    for view in (v for v in st.factors if v.name in config.staged("shared") and device.copy_reach):
        if are_asynchronous(st, view, loops, config, nest, device):
            turns, nbytes = _turns(st, view, loops, config, nest, device.access)
            saved += max(turns - -(-turns * nbytes // device.copy_reach), 0) if nbytes else 0
    return saved


def _turns(st: Statement, view: View, loops: Loops, config: Config, nest: Nest, access: int) -> tuple[int, int]:
    """Return the number of turns in which all threads copy ``view``, and the bytes in memory from one turn to the next;
    one turn if they are not equally far apart.
    """
    shape, extents = copy_shape(st, view, loops, config), copied_nest(st, view, loops, config, nest, access)
    dims = [d for d in as_in_memory(view) if shape[d] > 1]
    blocks = [b for b in view.layout.blocks if b.size > 1]
    strides = {b.dim: b.stride for b in blocks}
    if len(strides) < len(blocks) or any(d not in strides for d in dims):
        return 1, 0
    steps = [strides[d] for d in dims]
    steps[-1:] = [x * (shape[dims[-1]] // extents[-1]) for x in steps[-1:]]
    inner = 1
    for n in reversed(range(len(steps))):
        around, whole = pairwise(steps[: n + 1]), inner * extents[n]
        if whole > nest.size or not n:
            is_even = all(a == b * size for (a, b), size in zip(around, extents[1 : n + 1]))
            if nest.size % inner or not is_even:
                break
            return -(-prod(extents) // nest.size), nest.size // inner * steps[n] * dtype(view.dtype).bytes
        inner = whole
    return 1, 0
