"""Slices: a part of an array, with a start and a step along each axis."""

from __future__ import annotations

from typing import Any

from convsmith.diag.record import record
from convsmith.network.operators.arrays import ArrayOperator, nest_that_moves
from convsmith.problem.tensor import Tensor
from convsmith.statement.operator import OperatorNests, result_array

__all__ = ["Slice"]


@record(frozen=True)
class Slice(ArrayOperator):
    """Along each axis, `sizes` elements from `starts` on, `steps` apart; a step may be negative."""

    type: str
    shape: tuple[int, ...]
    starts: tuple[int, ...]
    steps: tuple[int, ...]
    sizes: tuple[int, ...]
    tags: tuple[str, ...] = ("any", "any")

    @property
    def result(self) -> Tensor:
        """The part."""
        return result_array(self.type, self.sizes, self.tags[1])

    def nests(self) -> OperatorNests:
        """Return one nest over the elements of the result."""
        return nest_that_moves(self, lambda at: [x * k + start for x, k, start in zip(at, self.steps, self.starts)])

    def reference(self, *arrays: Any) -> Any:
        """Return the part, taken along each axis."""
        found = arrays[0]
        for axis, (start, step, size) in enumerate(zip(self.starts, self.steps, self.sizes)):
            found = found.take([start + step * n for n in range(size)], axis)
        return found
