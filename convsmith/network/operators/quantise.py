"""Conversions between floats and bytes with a scale and a zero point, one of each or one along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import IndexLike, Var
from convsmith.ir.types import F32, dtype
from convsmith.ir.value import Binary, Cast, Unary, Value
from convsmith.network.operators.arrays import nest_over_result
from convsmith.problem.tensor import Tensor
from convsmith.problem.types import TYPES
from convsmith.runtime.arrays import numpy_dtype
from convsmith.statement.operator import Loader, Operator, OperatorNests, array, result_array

__all__ = ["Dequantise", "Quantise"]


@record(frozen=True)
class _Conversion(Operator):
    """A conversion with scales of `scales` elements, 1 or those of `shape` along `axis`; `type` is that of bytes."""

    type: str
    shape: tuple[int, ...]
    scales: int = 1
    axis: int = 0
    tags: tuple[str, ...] = ("any", "any")

    def _operands(self) -> tuple[Tensor, ...]:
        return tuple(array(name, "f32", (self.scales,), holds="operand") for name in ("scale", "zero_point"))

    @property
    def free(self) -> tuple[str, ...]:
        """The arrays whose layouts are free: not those of scales and zero points."""
        return ("src", "dst")

    def _nests(self, value: Any) -> OperatorNests:

        def made(load: Loader, at: Sequence[Var]) -> Value:
            one: Sequence[IndexLike] = [at[self.axis] if self.scales > 1 else 0]
            found: Value = value(load("src", at), load("scale", one), load("zero_point", one))
            return found

        return nest_over_result(self, made)

    def _along(self, x: Any) -> Any:
        """Return scales or zero points so that they broadcast to the source."""
        return x.reshape(-1, *(1,) * (len(self.shape) - self.axis - 1)) if self.scales > 1 else x.reshape(())


@record(frozen=True)
class Quantise(_Conversion):
    """Floats divided by the scale, rounded to the nearest integer, ties to even, plus the zero point, saturated."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The floats, the scales, and the zero points as floats."""
        return (array("src", "f32", self.shape, self.tags[0]), *self._operands())

    @property
    def result(self) -> Tensor:
        """The bytes."""
        return result_array(self.type, self.shape, self.tags[1])

    def nests(self) -> OperatorNests:
        """Return one nest over all elements."""
        t = dtype(self.type)
        return self._nests(lambda x, s, p: Cast(t, Binary("add", Unary("round", Binary("div", x, s)), p)))

    def reference(self, *arrays: Any) -> Any:
        """Return the bytes by numpy."""
        x, scale, point = arrays
        limits = np.iinfo(TYPES[self.type].numpy)
        return np.clip(np.rint(x / self._along(scale)) + self._along(point), limits.min, limits.max).astype(
            numpy_dtype(self.type)
        )


@record(frozen=True)
class Dequantise(_Conversion):
    """Bytes less the zero point, multiplied by the scale."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The bytes, the scales, and the zero points as floats."""
        return (array("src", self.type, self.shape, self.tags[0]), *self._operands())

    @property
    def result(self) -> Tensor:
        """The floats."""
        return result_array("f32", self.shape, self.tags[1])

    def nests(self) -> OperatorNests:
        """Return one nest over all elements."""
        return self._nests(lambda x, s, p: Binary("mul", Binary("sub", Cast(F32, x), p), s))

    def reference(self, *arrays: Any) -> Any:
        """Return the floats by numpy."""
        x, scale, point = arrays
        return ((x.astype(np.float32) - self._along(point)) * self._along(scale)).astype(np.float32)
