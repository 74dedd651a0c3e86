"""Operators that read an array at places which another array numbers in each run: rows, and single elements."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.stmt import NumberedRows
from convsmith.ir.value import Value
from convsmith.problem.tensor import Tensor
from convsmith.runtime.arrays import Array, numpy_dtype
from convsmith.statement.operator import (
    Loader,
    Operator,
    OperatorNest,
    OperatorNests,
    PickedRow,
    array,
    nests_of,
    result_array,
)

__all__ = ["GatherElements", "GatherRows"]


class _NumberedRead(Operator):
    """Base class of operators that read the array `src` of a `type` at numbers in the array `places`, of s32.

    A negative number counts from the end; a number beyond the array reads zeros.
    """

    type: str

    @property
    def constants(self) -> Mapping[str, Array]:
        """The zeros that a number beyond the array reads."""
        return {"zero": np.zeros(self._row, numpy_dtype(self.type))}

    @property
    def _row(self) -> tuple[int, ...]:
        """The shape of the elements that a number stands for."""
        raise NotImplementedError

    def _inputs(self, source: tuple[int, ...], places: tuple[int, ...]) -> tuple[Tensor, ...]:
        zero = array("zero", self.type, self._row, holds="operand")
        return (array("src", self.type, source), array("places", "s32", places), zero)


@record(frozen=True)
class GatherRows(_NumberedRead):
    """For each of the `numbers`, the row with that number: the source has `parts` of `count` rows of `size` elements.
    """

    type: str
    parts: int
    count: int
    size: int
    numbers: int

    @property
    def _row(self) -> tuple[int, ...]:
        return (self.size,)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The source, the numbers, and a row of zeros."""
        return self._inputs((self.parts, self.count, self.size), (self.numbers,))

    @property
    def result(self) -> Tensor:
        """The rows."""
        return result_array(self.type, (self.parts, self.numbers, self.size))

    def nests(self) -> OperatorNests:
        """Return one nest over the elements of the result."""
        part, number, element = at = [Var(f"d{n}") for n in range(3)]
        dims = tuple((str(x), size) for x, size in zip(at, self.result.shape))
        rows = NumberedRows(self.count, self.size)
        pick = PickedRow("row", "src", "places", (number,), rows, part * (self.count * self.size), self._row)

        def value(load: Loader, _: Value | None) -> Value:
            return load("row", [element])

        return nests_of(self, [OperatorNest(dims, tuple(at), value, picks=(pick,))])

    def reference(self, *arrays: Any) -> Any:
        """Return the rows by numpy's `take`."""
        source, places, _ = arrays
        inside = (places >= -self.count) & (places < self.count)
        found = source.take(np.where(inside, places, 0), 1)
        return np.where(inside[None, :, None], found, np.zeros((), source.dtype))


@record(frozen=True)
class GatherElements(_NumberedRead):
    """For each element of `places`, the element of the source, of `shape`, at the same coordinates, but at the number
    along `axis`.
    """

    type: str
    shape: tuple[int, ...]
    places: tuple[int, ...]
    axis: int

    @property
    def _row(self) -> tuple[int, ...]:
        return (1,)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The source, the numbers, and a zero."""
        return self._inputs(self.shape, self.places)

    @property
    def result(self) -> Tensor:
        """The elements."""
        return result_array(self.type, self.places)

    def nests(self) -> OperatorNests:
        """Return one nest over the elements of the result."""
        at = [Var(f"d{n}") for n in range(len(self.places))]
        steps = [prod(self.shape[n + 1 :]) for n in range(len(self.shape))]
        offset: Index = as_index(0)
        for n, (x, step) in enumerate(zip(at, steps)):
            offset = offset if n == self.axis else offset + x * step
        rows = NumberedRows(self.shape[self.axis], steps[self.axis])
        pick = PickedRow("element", "src", "places", tuple(at), rows, offset, self._row)
        dims = tuple((str(x), size) for x, size in zip(at, self.places))
        nest = OperatorNest(dims, tuple(at), lambda load, _: load("element", [0]), picks=(pick,))
        return nests_of(self, [nest])

    def reference(self, *arrays: Any) -> Any:
        """Return the elements by numpy's `take_along_axis`."""
        source, places, _ = arrays
        size = self.shape[self.axis]
        inside = (places >= -size) & (places < size)
        own = tuple(slice(None) if n == self.axis else slice(k) for n, k in enumerate(self.places))
        found = np.take_along_axis(source[own], np.where(inside, places, 0).astype(np.int64), self.axis)
        return np.where(inside, found, np.zeros((), source.dtype))
