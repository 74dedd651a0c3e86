"""Groups of registers as vectors: what longer vectors leave empty.

Where instructions name groups of registers, long vectors take fewer instructions, and leave fewer groups for the sums
of a register tile. A kernel serves vectors of any length, and steps of many lanes are empty in part where a loop ends:
16 channels fill a group of two registers of 256 bits, and half of a group of four.
"""

from __future__ import annotations

from math import prod

from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import fused_dims
from convsmith.statement.views import statement

__all__ = ["left_empty"]

LESS_CERTAIN = 1.15
"""Ratio of expected times above which groups of fewer registers replace those of the level: they take more
instructions, while a core may take no time for empty lanes.
"""


def left_empty(problem: Problem, config: Config, machine: Machine, level: Machine) -> float:
    """Return the ratio of the time of a kernel's steps to that of steps without empty lanes: the mean for registers of
    half, all and twice the units from which tiles leave channels to longer vectors. Groups of fewer registers than
    those of the ``level`` itself count as slower, by `LESS_CERTAIN`.
    """
    st = statement(problem, machine)
    sizes = {d.name: d.size for d in st.dims}
    dims = fused_dims(config, config.lane)
    lengths = [machine.costs.scalable_units * times // 2 for times in (1, 2, 4)]
    is_scaled = all(n in sizes for n in dims) and not any(d.kind == "k" for d in st.dims if d.name in dims)
    certain = LESS_CERTAIN if machine.vectors.group < level.vectors.group else 1.0
    mean = sum(lengths) / len(lengths)
    if not is_scaled:  # vectors of terms have one unit, of which the shortest registers have several
        return certain * mean / lengths[0]
    lanes = prod(sizes[n] for n in dims)
    tile = max(config.size(config.lane), machine.width(dtype(st.acc)))
    tiles = -(-lanes // tile)
    if tiles == 1:  # code for so few lanes names the registers that the shortest ones need
        return certain * mean / lengths[0]
    return certain * sum(units * -(-tiles // units) for units in lengths) / (len(lengths) * tiles)
