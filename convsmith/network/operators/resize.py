"""Resizes: each element of the result lies at a place of the source, and is its nearest element, or a weighted sum of
its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import Index, Var, floordiv, maximum, minimum
from convsmith.ir.types import dtype
from convsmith.ir.value import Value, const
from convsmith.network.operators.arrays import nest_over_result
from convsmith.problem.tensor import Tensor
from convsmith.runtime.arrays import Array, numpy_dtype
from convsmith.statement.maths import add, mul, sub
from convsmith.statement.operator import Loader, Operator, OperatorNests, array, result_array

__all__ = ["ROUNDINGS", "Resize"]

ROUNDINGS = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
"""The ways to the nearest element, by ONNX's names."""


@record(frozen=True)
class Resize(Operator):
    """An array of `sizes`, whose element `x` along an axis lies at the place `(a * x + b) / c` of the source.

    `places` are the three numbers of each axis. With the `rounding` "linear", an element is the mean of the elements
    around its place, weighted by their distances; with one of `ROUNDINGS`, it is the element there. Places beyond an
    end of the source are those of its last element.
    """

    type: str
    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    places: tuple[tuple[int, int, int], ...]
    rounding: str
    tags: tuple[str, ...] = ("any", "any")

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The source, and the weights of the further neighbours along each axis that is resized."""
        source = array("src", self.type, self.shape, self.tags[0])
        return (source, *(array(name, self.type, x.shape, holds="operand") for name, x in self.constants.items()))

    @property
    def result(self) -> Tensor:
        """The resized array."""
        return result_array(self.type, self.sizes, self.tags[1])

    @property
    def constants(self) -> Mapping[str, Array]:
        """The distance of each place from the element before it, along each axis that is resized."""
        found = {}
        for n in self.resized if self.rounding == "linear" else ():
            a, b, c = self.places[n]
            weights = [float(Fraction(a * x + b, c) % 1) for x in range(self.sizes[n])]
            found[f"weights_{n}"] = np.array(weights, numpy_dtype(self.type))
        return found

    @property
    def resized(self) -> Sequence[int]:
        """The axes along which places are not those of the source."""
        same = ((1, 0, 1),)
        return [n for n, at in enumerate(self.places) if at not in same or self.shape[n] != self.sizes[n]]

    @property
    def repeated(self) -> tuple[int, ...] | None:
        """The number of adjacent copies of each element along each axis; None if the operator computes other arrays."""
        times = tuple(large // small if small else 0 for small, large in zip(self.shape, self.sizes))
        if self.rounding == "linear" or not all(times):
            return None
        is_even = all(self._nearest(n) == [x // t for x in range(self.sizes[n])] for n, t in enumerate(times))
        return times if is_even else None

    def _nearest(self, n: int) -> list[int]:
        """Return the place of the nearest element of the source, for each element along axis `n`."""
        (a, b, c), last = self.places[n], self.shape[n] - 1
        return [min(max(_rounded(Fraction(a * x + b, c), self.rounding), 0), last) for x in range(self.sizes[n])]

    def nests(self) -> OperatorNests:
        """Return one nest over the elements of the result."""

        def value(load: Loader, at: Sequence[Var]) -> Value:
            if self.rounding != "linear":
                return load("src", [self._clamped(n, self._place(n, x, self.rounding)) for n, x in enumerate(at)])
            found: Value | None = None
            one = const(dtype(self.type), 1)
            for further in product((0, 1), repeat=len(self.resized)):
                moved = dict(zip(self.resized, further))
                places = [
                    self._clamped(n, self._place(n, x, "floor") + moved[n]) if n in moved else x
                    for n, x in enumerate(at)
                ]
                term = load("src", places)
                for n, is_further in moved.items():
                    weight = load(f"weights_{n}", [at[n]])
                    term = mul(term, weight if is_further else sub(one, weight))
                found = term if found is None else add(found, term)
            assert found is not None
            return found

        return nest_over_result(self, value)

    def _place(self, n: int, x: Index, rounding: str) -> Index:
        """Return the whole number near the place of element `x` along axis `n`."""
        a, b, c = self.places[n]
        over = x * a + b
        if rounding == "floor":
            return floordiv(over, c)
        if rounding == "ceil":
            return floordiv(over + (c - 1), c)
        return floordiv(over * 2 + (c - 1 if rounding == "round_prefer_floor" else c), 2 * c)

    def _clamped(self, n: int, x: Index) -> Index:
        return minimum(maximum(x, 0), self.shape[n] - 1)

    def reference(self, *arrays: Any) -> Any:
        """Return the resized array, axis by axis, from places as fractions."""
        found = arrays[0]
        for n in self.resized:
            if self.rounding != "linear":
                found = found.take(self._nearest(n), n)
                continue
            a, b, c = self.places[n]
            exact = [Fraction(a * x + b, c) for x in range(self.sizes[n])]
            last = self.shape[n] - 1
            near, far = ([min(max(x // 1 + k, 0), last) for x in exact] for k in (0, 1))
            weights = np.array([float(x % 1) for x in exact], found.dtype)
            weights = weights.reshape(-1, *(1,) * (found.ndim - n - 1))
            found = found.take(near, n) * (1 - weights) + found.take(far, n) * weights
        return found


def _rounded(x: Fraction, rounding: str) -> int:
    if rounding == "floor":
        return x // 1
    if rounding == "ceil":
        return -(-x // 1)
    half = Fraction(1, 2)
    return -((half - x) // 1) if rounding == "round_prefer_floor" else (x + half) // 1
