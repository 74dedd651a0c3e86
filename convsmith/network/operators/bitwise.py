"""Operations on the bits of whole numbers of two arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import Var
from convsmith.ir.types import S32, dtype
from convsmith.ir.value import Binary, Cast, Value, Where, const
from convsmith.network.operators.arrays import ArraysOperator, flat_size, nest_over_result
from convsmith.network.operators.pointwise import aligned, broadcast
from convsmith.problem.tensor import Tensor
from convsmith.statement.operator import Loader, Operator, OperatorNests, result_array

__all__ = ["BITWISE", "Bitwise"]

BITWISE = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
"""Operations by the IR's name: the function of numpy."""
_BITS = 8
"""Bits of a number that is shifted."""


@record(frozen=True)
class Bitwise(ArraysOperator):
    """The operation `alg`, of `BITWISE`, on two arrays of u8, s8 or s32, whose `shapes` broadcast; only u8 is shifted.
    """

    type: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    alg: str
    tags: tuple[str, ...] = ("any", "any", "any")

    @property
    def result(self) -> Tensor:
        """The result, of the shape to which the inputs broadcast."""
        return result_array(self.type, broadcast(self.shapes), self.tags[-1])

    def nests(self) -> OperatorNests:
        """Return one nest over the elements of the result, which computes in s32."""
        shape, t = self.result.shape, dtype(self.type)

        def value(load: Loader, at: Sequence[Var]) -> Value:
            x, y = (Cast(S32, load(t.name, aligned(t.shape, shape, at))) for t in self.inputs)
            if self.alg not in ("shl", "shr"):
                return Cast(t, Binary(self.alg, x, y))
            far = const(S32, _BITS)
            shifted = Binary("and", Binary(self.alg, x, Binary("min", y, far)), const(S32, 255))
            return Cast(t, Where("lt", y, far, shifted, const(S32, 0)))

        return nest_over_result(self, value)

    def flat(self) -> Operator:
        """Return the operator on vectors, if all arrays have the same memory."""
        size = flat_size(self, self.tags)
        return replace(self, shapes=((size,),) * 2, tags=("any",) * 3) if size else self

    def reference(self, *arrays: Any) -> Any:
        """Return the result of numpy's function."""
        return np.broadcast_to(BITWISE[self.alg](*arrays), self.result.shape)
