"""Weighted sums of a few elements, at places and with weights that other arrays state in each run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import Var
from convsmith.ir.stmt import NumberedRows
from convsmith.ir.value import Value
from convsmith.problem.tensor import Tensor
from convsmith.runtime.arrays import Array, numpy_dtype
from convsmith.statement.maths import mul
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

__all__ = ["WeightedElements"]


@record(frozen=True)
class WeightedElements(Operator):
    """For each channel and each of `points`, the sum of `terms` elements of an image of `count` elements, each with a
    weight. All channels of a sample share `places`, of s32, and `weights`; a place beyond the image has no element.
    """

    type: str
    batch: int
    channels: int
    count: int
    points: int
    terms: int

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The images, the places, the weights, and a zero."""
        shape = (self.batch, self.terms, self.points)
        source = array("src", self.type, (self.batch, self.channels, self.count))
        places, weights = array("places", "s32", shape), array("weights", self.type, shape)
        return (source, places, weights, array("zero", self.type, (1,), holds="operand"))

    @property
    def constants(self) -> Mapping[str, Array]:
        """The zero that a place beyond the image reads."""
        return {"zero": np.zeros(1, numpy_dtype(self.type))}

    @property
    def result(self) -> Tensor:
        """The sums."""
        return result_array(self.type, (self.batch, self.channels, self.points))

    def nests(self) -> OperatorNests:
        """Return one nest, whose reduction runs over the terms."""
        n, c, p, k = (Var(x) for x in ("n", "c", "p", "k"))
        dims = (("n", self.batch), ("c", self.channels), ("p", self.points))
        offset = n * (self.channels * self.count) + c * self.count
        pick = PickedRow("element", "src", "places", (n, k, p), NumberedRows(self.count, 1), offset, (1,))

        def value(_: Loader, total: Value | None) -> Value:
            assert total is not None
            return total

        def term(load: Loader) -> Value:
            return mul(load("element", [0]), load("weights", [n, k, p]))

        return nests_of(self, [OperatorNest(dims, (n, c, p), value, (("k", self.terms),), term, picks=(pick,))])

    def reference(self, *arrays: Any) -> Any:
        """Return the sums in numpy."""
        source, places, weights, _ = arrays
        inside = (places >= -self.count) & (places < self.count)
        rows = np.arange(self.batch)[:, None, None]
        found = source.transpose(0, 2, 1)[rows, np.where(inside, places, 0)]
        return np.einsum("nkpc,nkp->ncp", found, np.where(inside, weights, 0)).astype(source.dtype)
