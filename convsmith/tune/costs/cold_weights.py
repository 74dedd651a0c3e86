"""Weights that no cache keeps from one call, or from one pass over them, to the next."""

from __future__ import annotations

from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.statement.statement import Statement
from convsmith.tune.costs.features import Section

__all__ = ["weights_read"]


def weights_read(st: Statement, target: Machine, passes: int = 1) -> Section:
    """Return the section of loading the constant operands of a statement: once in each call where no cache keeps them
    for the next one, and in each of the ``passes`` over them what the last cache does not keep.
    """
    nbytes = sum(view.layout.size * dtype(view.dtype).bytes for view in st.factors if view.constant)
    again = passes - bool(target.costs.weights_byte)
    beyond = again * max(nbytes - target.costs.weights_near, 0)
    return Section(1, (("cold weights", (("weights_byte", nbytes), ("memory_weight", beyond))),))
