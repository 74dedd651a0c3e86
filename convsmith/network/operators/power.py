"""Powers whose exponents another array states in each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import Var
from convsmith.ir.value import Value
from convsmith.network.operators.arrays import ArraysOperator, flat_size, nest_over_result
from convsmith.network.operators.pointwise import aligned, broadcast
from convsmith.problem.tensor import Tensor
from convsmith.statement.maths import power
from convsmith.statement.operator import Loader, Operator, OperatorNests, result_array

__all__ = ["Power"]


@record(frozen=True)
class Power(ArraysOperator):
    """The elements of the first array to the power of those of the second, of f32, with the signs and the ends of C's
    `pow`; the two `shapes` broadcast.
    """

    type: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    tags: tuple[str, ...] = ("any", "any", "any")

    @property
    def result(self) -> Tensor:
        """The powers, of the shape to which the inputs broadcast."""
        return result_array(self.type, broadcast(self.shapes), self.tags[-1])

    def nests(self) -> OperatorNests:
        """Return one nest over the elements of the result."""
        shape = self.result.shape

        def value(load: Loader, at: Sequence[Var]) -> Value:
            base, exponent = (load(t.name, aligned(t.shape, shape, at)) for t in self.inputs)
            return power(base, exponent)

        return nest_over_result(self, value)

    def flat(self) -> Operator:
        """Return the operator on vectors, if all arrays have the same memory."""
        size = flat_size(self, self.tags)
        return replace(self, shapes=((size,),) * 2, tags=("any",) * 3) if size else self

    def reference(self, *arrays: Any) -> Any:
        """Return numpy's powers, computed in double precision."""
        base, exponent = (x.astype(np.float64) for x in arrays)
        with np.errstate(all="ignore"):
            found = np.power(base, exponent).astype(np.float32)
        return np.broadcast_to(found, self.result.shape)
