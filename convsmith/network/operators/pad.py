"""Pads: elements before and after an array along each axis; negative pads remove elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import Index, Var, conj, ge0, maximum, minimum, mod
from convsmith.ir.types import dtype
from convsmith.ir.value import Select, Value, const
from convsmith.network.operators.arrays import ArrayOperator, nest_over_result
from convsmith.problem.tensor import Tensor
from convsmith.statement.operator import Loader, OperatorNests, result_array

__all__ = ["MODES", "Pad"]

MODES = ("constant", "edge", "reflect", "wrap")
"""Sources of the added elements: a value, the nearest element, elements mirrored at it, or those of the other end."""


@record(frozen=True)
class Pad(ArrayOperator):
    """An array with `before` and `after` elements more along each axis, as `mode`, one of `MODES`, says."""

    type: str
    shape: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    mode: str = "constant"
    value: float = 0.0
    tags: tuple[str, ...] = ("any", "any")

    @property
    def result(self) -> Tensor:
        """The source between its pads."""
        sizes = tuple(b + size + a for b, size, a in zip(self.before, self.shape, self.after))
        return result_array(self.type, sizes, self.tags[1])

    def nests(self) -> OperatorNests:
        """Return one nest over the elements of the result."""

        def value(load: Loader, at: Sequence[Var]) -> Value:
            places = [x - b for x, b in zip(at, self.before)]
            if self.mode != "constant":
                return load("src", [self._inside(x, size) for x, size in zip(places, self.shape)])
            inside = conj([c for x, size in zip(places, self.shape) for c in (ge0(x), x < size)])
            return Select(inside, load("src", places), const(dtype(self.type), self.value))

        return nest_over_result(self, value)

    def _inside(self, x: Index, size: int) -> Index:
        """Return the place of the element that stands at `x`."""
        if self.mode == "edge":
            return minimum(maximum(x, 0), size - 1)
        if self.mode == "wrap":
            return mod(x, size)
        mirrored = maximum(x, -x)
        return minimum(mirrored, -mirrored + 2 * (size - 1))

    def reference(self, *arrays: Any) -> Any:
        """Return numpy's pad of the array without the elements that negative pads remove."""
        pads = [*zip(self.before, self.after)]
        cut = tuple(slice(max(-b, 0), size - max(-a, 0)) for (b, a), size in zip(pads, self.shape))
        more: Any = {"constant_values": self.value} if self.mode == "constant" else {}
        return np.pad(arrays[0][cut], [(max(b, 0), max(a, 0)) for b, a in pads], self.mode, **more)  # type: ignore[call-overload]
