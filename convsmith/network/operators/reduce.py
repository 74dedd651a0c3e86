"""Reductions along axes: sums and means, of elements or their squares, products, and extremes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import IndexLike, Var
from convsmith.ir.types import dtype
from convsmith.ir.value import Binary, Value, const
from convsmith.network.operators.arrays import ArrayOperator
from convsmith.network.operators.pointwise import stepped
from convsmith.problem.post_ops import Eltwise
from convsmith.problem.tensor import Tensor
from convsmith.statement.maths import mul
from convsmith.statement.operator import Loader, OperatorNest, OperatorNests, nests_of, result_array

__all__ = ["REDUCTIONS", "Reduce"]

REDUCTIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "sum": ("add", np.sum), "sum_square": ("add", lambda x, **k: np.sum(np.square(x), **k)),
    "mean": ("add", np.mean), "mean_square": ("add", lambda x, **k: np.mean(np.square(x), **k)),
    "max": ("max", np.max), "min": ("min", np.min), "prod": ("mul", np.prod),
}  # fmt: skip
"""Reductions by name: the operation on two values, and the function of numpy."""


@record(frozen=True)
class Reduce(ArrayOperator):
    """The reduction of `kind`, a key of `REDUCTIONS`, along `axes`, which the result keeps with one element each,
    followed by element-wise `steps`.
    """

    kind: str
    type: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    tags: tuple[str, ...] = ("any", "any")
    steps: tuple[Eltwise, ...] = ()

    @property
    def result(self) -> Tensor:
        """One element along each of the axes."""
        shape = tuple(1 if n in self.axes else size for n, size in enumerate(self.shape))
        return result_array(self.type, shape, self.tags[1])

    def nests(self) -> OperatorNests:
        """Return one nest, whose reduction runs along the axes."""
        t = dtype(self.type)
        source = [Var(f"k{n}" if n in self.axes else f"d{n}") for n in range(len(self.shape))]
        to: list[IndexLike] = [0 if n in self.axes else x for n, x in enumerate(source)]
        sizes = [(str(x), size) for x, size in zip(source, self.shape)]
        terms = tuple(pair for n, pair in enumerate(sizes) if n in self.axes)
        count = prod(self.shape[n] for n in self.axes)

        def term(load: Loader) -> Value:
            x = load("src", source)
            return mul(x, x) if self.kind.endswith("square") else x

        def value(_: Loader, found: Value | None) -> Value:
            assert found is not None
            whole = Binary("div", found, const(t, count)) if self.kind.startswith("mean") else found
            return stepped(whole, self.steps, self.type)

        dims = tuple(pair for n, pair in enumerate(sizes) if n not in self.axes)
        return nests_of(self, [OperatorNest(dims, tuple(to), value, terms, term, REDUCTIONS[self.kind][0])])

    def reference(self, *arrays: Any) -> Any:
        """Return the reduction by numpy."""
        y = REDUCTIONS[self.kind][1](arrays[0], axis=self.axes, keepdims=True).astype(arrays[0].dtype)
        for step in self.steps:
            y = step.apply(y).astype(arrays[0].dtype)
        return y
