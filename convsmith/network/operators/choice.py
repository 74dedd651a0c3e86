"""Operators on truth values, which are bytes of 0 and 1: comparisons, choices between two arrays, and conversions of
numbers to other types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.types import U8, dtype
from convsmith.ir.value import COMPARISONS, Cast, Unary, Value, Where, const, dtype_of
from convsmith.network.operators.arrays import ArrayOperator, ArraysOperator, nest_over_result
from convsmith.network.operators.pointwise import aligned, broadcast
from convsmith.problem.post_ops import OPERATORS
from convsmith.problem.tensor import Tensor
from convsmith.problem.types import TYPES, convert
from convsmith.statement.operator import Operator, OperatorNests, array, result_array

__all__ = ["COMPARISONS", "ChangeType", "ChooseByMask", "Compare"]


@record(frozen=True)
class ChooseByMask(Operator):
    """The elements of the second array where the mask, the first, is not 0, and of the third elsewhere; the `shapes` of
    the three broadcast.
    """

    type: str
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    tags: tuple[str, ...] = ("any", "any", "any", "any")

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The mask, and both arrays."""
        rows = zip(("mask", "yes", "no"), ("u8", self.type, self.type), self.shapes, self.tags)
        return tuple(array(*row) for row in rows)

    @property
    def result(self) -> Tensor:
        """The result, of the shape to which the inputs broadcast."""
        return result_array(self.type, broadcast(self.shapes), self.tags[-1])

    def nests(self) -> OperatorNests:
        """Return one nest over the elements of the result."""

        def value(read: list[Value]) -> Value:
            mask, yes, no = read
            return Where("ne", mask, const(U8, 0), yes, no)

        return _nests(self, value)

    def reference(self, *arrays: Any) -> Any:
        """Return numpy's choice."""
        return np.broadcast_to(np.where(arrays[0] != 0, *arrays[1:]), self.result.shape)


@record(frozen=True)
class Compare(ArraysOperator):
    """1 where `comparison`, one of `COMPARISONS`, holds between two arrays, whose `shapes` broadcast, and 0 elsewhere.
    """

    type: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    comparison: str
    tags: tuple[str, ...] = ("any", "any", "any")

    @property
    def result(self) -> Tensor:
        """The truth values, of the shape to which the inputs broadcast."""
        return result_array("u8", broadcast(self.shapes), self.tags[-1])

    def nests(self) -> OperatorNests:
        """Return one nest over the elements of the result."""
        return _nests(self, lambda read: Where(self.comparison, read[0], read[1], const(U8, 1), const(U8, 0)))

    def reference(self, *arrays: Any) -> Any:
        """Return numpy's comparison."""
        return np.broadcast_to(OPERATORS[self.comparison](*arrays), self.result.shape).astype(np.uint8)


@record(frozen=True)
class ChangeType(ArrayOperator):
    """The numbers of an array in the type `to`: without their fraction, and saturated, where that has integers."""

    type: str
    to: str
    shape: tuple[int, ...]
    tags: tuple[str, ...] = ("any", "any")

    @property
    def result(self) -> Tensor:
        """The numbers of the source in the other type."""
        return result_array(self.to, self.shape, self.tags[1])

    def nests(self) -> OperatorNests:
        """Return one nest over all elements."""
        return _nests(self, lambda read: Cast(dtype(self.to), _whole(read[0]) if self._truncates else read[0]))

    @property
    def _truncates(self) -> bool:
        return TYPES[self.to].integer and not TYPES[self.type].integer

    def reference(self, *arrays: Any) -> Any:
        """Return the conversion in numpy."""
        return convert(np.trunc(arrays[0]) if self._truncates else arrays[0], self.to)


def _whole(x: Value) -> Value:
    """Return a number without its fraction."""
    zero = const(dtype_of(x), 0)
    size = Unary("floor", Unary("abs", x))
    return Where("lt", x, zero, Unary("neg", size), size)


def _nests(op: Operator, value: Callable[[list[Value]], Value]) -> OperatorNests:
    """Return one nest over the elements of the result, which are values of those of the inputs at the same place."""
    whole = op.result.shape
    return nest_over_result(
        op, lambda load, at: value([load(t.name, aligned(t.shape, whole, at)) for t in op.inputs])
    )  # fmt: skip
