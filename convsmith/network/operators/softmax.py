"""Softmax: exponentials of the distances from the largest element of a row, divided by their sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import IndexLike, Var, minimum
from convsmith.ir.types import dtype
from convsmith.ir.value import Binary, Value, const
from convsmith.network.operators.arrays import ArrayOperator
from convsmith.problem.tensor import Tensor
from convsmith.statement.elementwise import elementwise
from convsmith.statement.maths import mul, sub
from convsmith.statement.operator import (
    RESULT,
    Loader,
    OperatorNest,
    OperatorNests,
    array,
    nests_of,
    result_array,
)

__all__ = ["Softmax"]

_SERIES, _MOST, _GROWN, _TOTAL = "series", "most", "grown", "total"

LANES = 16
"""Series of adjacent elements of a row whose maxima are found side by side."""


@record(frozen=True)
class Softmax(ArrayOperator):
    """The softmax of an array of three dims along the second one, or, if it is a `log`, its logarithm."""

    type: str
    shape: tuple[int, int, int]
    log: bool = False

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The source."""
        return (array("src", self.type, self.shape),)

    @property
    def result(self) -> Tensor:
        """The shares, or their logarithms."""
        return result_array(self.type, self.shape)

    @property
    def inner(self) -> tuple[Tensor, ...]:
        """The largest elements, in several series if rows are adjacent, the exponentials, and the reciprocals or the
        logarithms of their sums.
        """
        outer, _, inner = self.shape
        one, series = (outer, 1, inner), [(_SERIES, (outer, LANES, 1))] if self._has_series else []
        rows = (*series, (_MOST, one), *([] if self.log else [(_GROWN, self.shape)]), (_TOTAL, one))
        return tuple(array(name, self.type, shape) for name, shape in rows)

    @property
    def _has_series(self) -> bool:
        return self.shape[2] == 1 and self.shape[1] >= 2 * LANES

    def nests(self) -> OperatorNests:
        """Return the nests of the inner arrays, and that of the result."""
        made: list[OperatorNest] = []
        outer, size, inner = self.shape

        def at(rows: int) -> tuple[list[Var], tuple[tuple[str, int], ...], tuple[IndexLike, ...]]:
            """Return the loops of the next nest, with their extents, and the place of the row of an element."""
            own = [Var(f"{name}{len(made)}") for name in ("d", "k", "e")]
            return own, tuple(zip(map(str, own), (outer, rows, inner))), (own[0], 0, own[2])

        def reduced(of: int, combination: str, term: Callable[[Loader, Sequence[Var]], Value], to: str) -> None:
            """Add the reduction of a number `of` of terms in each row."""
            own, dims, row = at(of)
            value = self._total if to == _TOTAL else _whole
            made.append(
                OperatorNest(
                    (dims[0], dims[2]), row, value, (dims[1],), lambda load: term(load, own), combination, to=to
                )
            )  # fmt: skip

        def away(load: Loader, own: Sequence[Var]) -> Value:
            return sub(load("src", own), load(_MOST, (own[0], 0, own[2])))

        def each(value: Callable[[Loader, Sequence[Var]], Value], to: str) -> None:
            """Add the nest of one value for each element."""
            own, dims, _ = at(size)
            made.append(OperatorNest(dims, tuple(own), lambda load, _: value(load, own), to=to))

        if self._has_series:
            series, step = Var("s"), Var("t")
            place = minimum(step * LANES, size - LANES) + series  # the last steps overlap
            dims, terms = (("d", outer), ("s", LANES)), (("t", -(-size // LANES)),)
            made.append(
                OperatorNest(
                    dims, (Var("d"), series, 0), _whole, terms, lambda load: load("src", (Var("d"), place, 0)), "max",
                    to=_SERIES,
                )
            )  # fmt: skip
            reduced(LANES, "max", lambda load, own: load(_SERIES, own), _MOST)
        else:
            reduced(size, "max", lambda load, own: load("src", own), _MOST)
        if self.log:
            reduced(size, "add", lambda load, own: _exp(away(load, own)), _TOTAL)
            each(lambda load, own: sub(away(load, own), load(_TOTAL, (own[0], 0, own[2]))), RESULT)
        else:
            each(lambda load, own: _exp(away(load, own)), _GROWN)
            reduced(size, "add", lambda load, own: load(_GROWN, own), _TOTAL)
            each(lambda load, own: mul(load(_GROWN, own), load(_TOTAL, (own[0], 0, own[2]))), RESULT)
        return nests_of(self, made)

    def _total(self, _: Loader, found: Value | None) -> Value:
        """Return what the result needs of the sum of the exponentials of a row."""
        assert found is not None
        return elementwise("log", found, 0, 0) if self.log else Binary("div", const(dtype(self.type), 1), found)

    def reference(self, *arrays: Any) -> Any:
        """Return the softmax by numpy."""
        x = arrays[0]
        away = x - x.max(1, keepdims=True)
        total = np.exp(away).sum(1, keepdims=True, dtype=x.dtype)
        return away - np.log(total) if self.log else np.exp(away) * (1 / total)


def _exp(x: Value) -> Value:
    return elementwise("exp", x, 0, 0)


def _whole(_: Loader, found: Value | None) -> Value:
    assert found is not None
    return found
