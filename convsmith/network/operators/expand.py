"""Broadcasts as arrays of their own: each axis of one element is repeated."""

from __future__ import annotations

from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.network.operators.arrays import ArrayOperator, nest_that_moves
from convsmith.network.operators.pointwise import aligned
from convsmith.problem.tensor import Tensor
from convsmith.statement.operator import OperatorNests, result_array

__all__ = ["Expand"]


@record(frozen=True)
class Expand(ArrayOperator):
    """An array of `sizes`, to which the `shape` of the source broadcasts."""

    type: str
    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    tags: tuple[str, ...] = ("any", "any")

    @property
    def result(self) -> Tensor:
        """The repeated elements."""
        return result_array(self.type, self.sizes, self.tags[1])

    def nests(self) -> OperatorNests:
        """Return one nest over the elements of the result."""
        return nest_that_moves(self, lambda at: aligned(self.inputs[0].shape, self.sizes, at))

    def reference(self, *arrays: Any) -> Any:
        """Return numpy's broadcast."""
        return np.broadcast_to(arrays[0], self.sizes)
