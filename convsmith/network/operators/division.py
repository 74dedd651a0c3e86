"""Whole quotients and remainders of two arrays, whose signs follow C's or Python's rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import Var
from convsmith.ir.types import F64, dtype
from convsmith.ir.value import Binary, Cast, Fma, Unary, Value, Where, const
from convsmith.network.operators.arrays import ArraysOperator, flat_size, nest_over_result
from convsmith.network.operators.pointwise import aligned, broadcast
from convsmith.problem.tensor import Tensor
from convsmith.problem.types import TYPES
from convsmith.statement.operator import Loader, Operator, OperatorNests, result_array

__all__ = ["WholeDivision"]


@record(frozen=True)
class WholeDivision(ArraysOperator):
    """The quotients of two arrays without their fractions, or the remainders if it `gives_remainder`; the two `shapes`
    broadcast.

    A quotient is the nearest whole number towards zero, as in C, or towards minus infinity if it `floors`, as in
    Python. Types are f32 and integers of up to 32 bits. A remainder of f32 is exact for quotients below 2**52. Whole
    numbers are divided by 1 in place of 0.
    """

    type: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    gives_remainder: bool
    floors: bool = False
    tags: tuple[str, ...] = ("any", "any", "any")

    @property
    def result(self) -> Tensor:
        """The quotients or remainders, of the shape to which the inputs broadcast."""
        return result_array(self.type, broadcast(self.shapes), self.tags[-1])

    def nests(self) -> OperatorNests:
        """Return one nest over the elements of the result, which computes in f64."""
        shape, zero = self.result.shape, const(F64, 0)

        def value(load: Loader, at: Sequence[Var]) -> Value:
            read = [load(t.name, aligned(t.shape, shape, at)) for t in self.inputs]
            x, y = Cast(F64, read[0]), Cast(F64, read[1])
            if TYPES[self.type].integer:
                divisor: Value = Where("eq", y, zero, const(F64, 1), y)
            else:
                divisor = y
            ratio = Binary("div", x, divisor)
            whole: Value = Unary("floor", ratio)
            if not self.floors:
                whole = Where("lt", ratio, zero, Unary("neg", Unary("floor", Unary("neg", ratio))), whole)
            if not self.gives_remainder:
                return Cast(dtype(self.type), whole)
            # A finite number is its own remainder of an infinite one with the same sign.
            rest: Value = Where("eq", whole, zero, x, Fma(Unary("neg", whole), divisor, x))
            # A ratio that is rounded up to a whole number leaves a rest of the other sign.
            step: Value = divisor if self.floors else Where("lt", ratio, zero, Unary("neg", divisor), divisor)
            sign = divisor if self.floors else x
            rest = Where("lt", Binary("mul", rest, sign), zero, Binary("add", rest, step), rest)
            return Cast(dtype(self.type), rest)

        return nest_over_result(self, value)

    def flat(self) -> Operator:
        """Return the operator on vectors, if all arrays have the same memory."""
        size = flat_size(self, self.tags)
        return replace(self, shapes=((size,),) * 2, tags=("any",) * 3) if size else self

    def reference(self, *arrays: Any) -> Any:
        """Return numpy's quotients and remainders."""
        x, y = arrays
        with np.errstate(all="ignore"):
            if TYPES[self.type].integer:
                x, y = (a.astype(np.int64) for a in (x, y))
                y = np.where(y == 0, 1, y)
            if self.gives_remainder:
                found = np.mod(x, y) if self.floors else np.fmod(x, y)
            else:
                found = np.floor(x / y) if self.floors else np.trunc(x / y)
        return np.broadcast_to(found, self.result.shape).astype(arrays[0].dtype)
