"""Concatenation: several arrays, one after the other along an axis."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import Var
from convsmith.ir.value import Value
from convsmith.network.operators.arrays import ArraysOperator
from convsmith.problem.tensor import Tensor
from convsmith.statement.operator import Loader, OperatorNest, OperatorNests, nests_of, result_array

__all__ = ["Concat"]


@record(frozen=True)
class Concat(ArraysOperator):
    """Arrays of `shapes`, which are equal but along `axis`, one after the other along that axis."""

    type: str
    shapes: tuple[tuple[int, ...], ...]
    axis: int
    tags: tuple[str, ...]

    @staticmethod
    def of(type_: str, shapes: tuple[tuple[int, ...], ...], axis: int) -> Concat:
        """Return the operator on row-major arrays."""
        return Concat(type_, shapes, axis, ("any",) * (len(shapes) + 1))

    @property
    def result(self) -> Tensor:
        """All parts."""
        first = self.shapes[0]
        whole = sum(shape[self.axis] for shape in self.shapes)
        return result_array(self.type, (*first[: self.axis], whole, *first[self.axis + 1 :]), self.tags[-1])

    def nests(self) -> OperatorNests:
        """Return one nest for each part."""
        nests = []
        starts = accumulate((shape[self.axis] for shape in self.shapes), initial=0)
        for n, (shape, start) in enumerate(zip(self.shapes, starts)):
            at = [Var(f"d{n}_{dim}") for dim in range(len(shape))]
            to = tuple(x + start if dim == self.axis else x for dim, x in enumerate(at))
            dims = tuple((str(x), size) for x, size in zip(at, shape))
            nests.append(OperatorNest(dims, to, partial(_read, f"src_{n}", at)))
        return nests_of(self, nests)

    def reference(self, *arrays: Any) -> Any:
        """Return numpy's concatenation."""
        return np.concatenate(arrays, self.axis)


def _read(name: str, at: list[Var], load: Loader, _: Value | None) -> Value:
    return load(name, at)
