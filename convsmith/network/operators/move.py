"""Operators that move elements: transposes, parts of an array, and copies to another layout or shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.network.operators.arrays import ArrayOperator, nest_over_result, nest_that_moves
from convsmith.problem.tensor import Tensor
from convsmith.statement.operator import Operator, OperatorNests, array, result_array

__all__ = ["Reshape", "Transpose"]


@record(frozen=True)
class Transpose(ArrayOperator):
    """An array whose dim `n` is dim `axes[n]` of the source; with the axes in order, a copy to another layout."""

    type: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    tags: tuple[str, ...] = ("any", "any")

    @property
    def result(self) -> Tensor:
        """The source with its dims in the order of `axes`."""
        return result_array(self.type, tuple(self.shape[axis] for axis in self.axes), self.tags[1])

    @property
    def keeps_order(self) -> bool:
        """Whether the elements of the result lie in memory in the order of those of the source, so that they may be
        the same memory: a permutation of dims to channels last reads a source that has its channels last already.
        """
        old, new = self.inputs[0].layout.strides, self.result.layout.strides
        return all(old[axis] == new[n] for n, axis in enumerate(self.axes) if self.shape[axis] > 1)

    def nests(self) -> OperatorNests:
        """Return one nest over the elements of the result."""
        return nest_that_moves(self, lambda at: [at[self.axes.index(axis)] for axis in range(len(self.shape))])

    def reference(self, *arrays: Any) -> Any:
        """Return numpy's transpose."""
        return np.ascontiguousarray(arrays[0].transpose(self.axes))


@record(frozen=True)
class Reshape(Operator):
    """The `count` elements of the source in row-major order, as an array of another shape.

    No kernel runs unless the source must stay, and the result must lie elsewhere.
    """

    type: str
    count: int

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The elements of the source."""
        return (array("src", self.type, (self.count,)),)

    @property
    def result(self) -> Tensor:
        """The elements of the result."""
        return result_array(self.type, (self.count,))

    def nests(self) -> OperatorNests:
        """Return the nest of a copy."""
        return nest_over_result(self, lambda load, at: load("src", at))

    def reference(self, *arrays: Any) -> Any:
        """Return the elements of the source."""
        return arrays[0].reshape(-1)
