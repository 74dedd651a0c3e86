"""The choice between attention as one operator and as two products with a softmax between them, by the cost model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.network.operators.attention import Attention
from convsmith.network.operators.on_bytes import OnBytes
from convsmith.network.operators.softmax import Softmax
from convsmith.network.placement.layout_choice import operator_cycles
from convsmith.problem.problem import Problem
from convsmith.statement.operator import Operator
from convsmith.tune.compile import default_cycles
from convsmith.tune.vector_width import machine_of

__all__ = ["attention_choice"]

_PLAIN = "f32"
_SURE = 1.25
"""Rows that are computed for each row of the result, up to which the model is not asked: products of the same type have
the same rate, and one operator moves fewer bytes."""


def attention_choice(
    machine: Machine | None, target: Machine, threads: int, stored: str
) -> Callable[[Attention], bool]:  # fmt: skip
    """Return the function that says whether an operator takes fewer cycles than its products and a softmax, whose
    values are ``stored`` in a type. Products run on ``machine``, by default this one at the best level for their types,
    and operators on ``target``.
    """

    def product_cycles(problem: Problem) -> float:
        own = replace(problem, dt=(stored,) * 3)
        return default_cycles(own, (machine or machine_of(own)).with_cold_weights, threads)

    def pays(op: Attention) -> bool:
        scores = op.batch * op.heads * op.rows * op.keys
        padded = -(-op.rows // op.tile) * op.tile / op.rows
        if stored == _PLAIN and padded <= _SURE:
            return True
        sums = scores * padded * (op.depth + op.width) / target.lanes(dtype(op.type).bits)
        softmax: Operator = Softmax(op.type, (scores // op.keys, op.keys, 1))
        softmax = softmax if stored == _PLAIN else OnBytes(softmax, (stored, stored), coded=False)
        apart = sum(map(product_cycles, op.products)) + operator_cycles(softmax, target)
        return sums * target.prices["multiply_add"] < apart

    return pays
