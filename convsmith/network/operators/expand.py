"""Broadcasts as arrays of their own: each axis of one element is repeated."""

from __future__ import annotations

from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import Var
from convsmith.network.operators.pointwise import aligned
from convsmith.problem.tensor import Tensor
from convsmith.statement.operator import Operator, OperatorNest, OperatorNests, array, nests_of, result_array

__all__ = ["Expand"]


@record(frozen=True)
class Expand(Operator):
    """An array of `sizes`, to which the `shape` of the source broadcasts."""

    type: str
    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    tags: tuple[str, ...] = ("any", "any")

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The source."""
        return (array("src", self.type, self.shape, self.tags[0]),)

    @property
    def result(self) -> Tensor:
        """The repeated elements."""
        return result_array(self.type, self.sizes, self.tags[1])

    def nests(self) -> OperatorNests:
        """Return one nest over the elements of the result."""
        at = [Var(f"d{n}") for n in range(len(self.sizes))]
        source = aligned(self.inputs[0].shape, self.sizes, at)
        dims = tuple((str(x), size) for x, size in zip(at, self.sizes))
        return nests_of(self, [OperatorNest(dims, tuple(at), lambda load, _: load("src", source))])

    def reference(self, *arrays: Any) -> Any:
        """Return numpy's broadcast."""
        return np.broadcast_to(arrays[0], self.sizes)
