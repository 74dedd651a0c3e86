"""Maxima of ranges along an axis, whose ends are values of a run."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import Var
from convsmith.ir.stmt import NumberedRows
from convsmith.ir.types import dtype
from convsmith.ir.value import Value, Where, const
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

__all__ = ["RangeMaximum"]


@record(frozen=True)
class RangeMaximum(Operator):
    """For each of `regions`, and each of its `bins`, the maxima of rows of an image of (channels, `count`, `width`).

    `places` number the image of a region. The rows of a bin are those from `first` up to `last`, without `last`, both
    by region and bin; a bin without rows has the maximum 0.
    """

    type: str
    images: int
    channels: int
    count: int
    width: int
    regions: int
    bins: int

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The images, their numbers, the ends of ranges, the numbers of rows, and zeros."""
        ends = (self.regions, self.bins)
        return (
            array("src", self.type, (self.images, self.channels, self.count, self.width)),
            array("places", "s32", (self.regions,)), array("first", self.type, ends), array("last", self.type, ends),
            array("rows", self.type, (self.count,), holds="operand"),
            array("zero", self.type, (self.count * self.width,), holds="operand"),
        )  # fmt: skip

    @property
    def constants(self) -> Mapping[str, Array]:
        """The numbers of rows, and the zeros that a number beyond the images reads."""
        t = numpy_dtype(self.type)
        return {"rows": np.arange(self.count, dtype=t), "zero": np.zeros(self.count * self.width, t)}

    @property
    def result(self) -> Tensor:
        """The maxima."""
        return result_array(self.type, (self.regions, self.channels, self.bins, self.width))

    def nests(self) -> OperatorNests:
        """Return one nest, whose reduction runs over all rows of the image."""
        r, c, b, x, k = at = [Var(name) for name in "rcbxk"]
        dims = tuple((str(name), size) for name, size in zip(at, self.result.shape))
        area, t = self.count * self.width, dtype(self.type)
        image, shape = NumberedRows(self.images, self.channels * area), (self.count, self.width)
        pick = PickedRow("image", "src", "places", (r,), image, c * area, shape)
        none = const(t, -inf)

        def term(load: Loader) -> Value:
            row, found = load("rows", [k]), load("image", [k, x])
            return Where("ge", row, load("first", [r, b]), Where("lt", row, load("last", [r, b]), found, none), none)

        def value(load: Loader, found: Value | None) -> Value:
            assert found is not None
            return Where("lt", load("first", [r, b]), load("last", [r, b]), found, const(t, 0))

        nest = OperatorNest(dims, (r, c, b, x), value, (("k", self.count),), term, "max", picks=(pick,))
        return nests_of(self, [nest])

    def reference(self, *arrays: Any) -> Any:
        """Return the maxima, region by region, in numpy."""
        source, places, first, last, rows, _ = arrays
        found: Any = np.zeros(self.result.shape, source.dtype)
        for r, b in np.ndindex(self.regions, self.bins):
            own = source[places[r]] if -self.images <= places[r] < self.images else np.zeros_like(source[0])
            inside = (rows >= first[r, b]) & (rows < last[r, b])
            if first[r, b] < last[r, b]:
                found[r, :, b] = own[:, inside].max(1, initial=-inf)
        return found
