"""Softmax: exponentials of the distances from the largest element of a row, divided by their sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import IndexLike, Var, minimum
from convsmith.ir.types import F32, dtype
from convsmith.ir.value import Binary, Value, const, dtype_of
from convsmith.network.operators.arrays import ArrayOperator
from convsmith.problem.tensor import Tensor
from convsmith.statement.elementwise import elementwise
from convsmith.statement.maths import exp_of_negative, mul, sub
from convsmith.statement.operator import (
    RESULT,
    Loader,
    OperatorNest,
    OperatorNests,
    array,
    nests_of,
    result_array,
)

__all__ = ["Softmax", "exp_of_distance"]

_SERIES, _MOST, _GROWN, _TOTAL = "series", "most", "grown", "total"

SERIES = (64, 16)
"""Numbers of series of adjacent elements of a row whose maxima are found side by side: several vectors, whose latencies
overlap, then a few elements, which are compared one after the other. A row has two elements of each series.
"""


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
        one, series = (outer, 1, inner), [(f"{_SERIES}{n}", (outer, n, 1)) for n in self._series]
        rows = (*series, (_MOST, one), *([] if self.log else [(_GROWN, self.shape)]), (_TOTAL, one))
        return tuple(array(name, self.type, shape) for name, shape in rows)

    @property
    def replaceable(self) -> tuple[str, ...]:
        """The source: a row is written after all of it was read."""
        return ("src",)

    @property
    def _series(self) -> tuple[int, ...]:
        """The numbers of series; none if the elements of a row are apart, or few."""
        _, size, inner = self.shape
        return tuple(n for n in SERIES if inner == 1 and size >= 2 * n)

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

        source, count = "src", size
        for n in self._series:
            made.append(self._maxima(source, count, n))
            source, count = f"{_SERIES}{n}", n
        reduced(count, "max", lambda load, own: load(source, own), _MOST)
        if self.log:
            reduced(size, "add", lambda load, own: exp_of_distance(away(load, own)), _TOTAL)
            each(lambda load, own: sub(away(load, own), load(_TOTAL, (own[0], 0, own[2]))), RESULT)
        else:
            each(lambda load, own: exp_of_distance(away(load, own)), _GROWN)
            reduced(size, "add", lambda load, own: load(_GROWN, own), _TOTAL)
            each(lambda load, own: mul(load(_GROWN, own), load(_TOTAL, (own[0], 0, own[2]))), RESULT)
        return nests_of(self, made)

    def _maxima(self, source: str, count: int, n: int) -> OperatorNest:
        """Return the nest of the largest elements of ``n`` series of the ``count`` elements of rows of an array."""
        row, series, step = Var(f"d{_SERIES}{n}"), Var(f"s{n}"), Var(f"t{n}")
        place = minimum(step * n, count - n) + series  # the last steps overlap
        return OperatorNest(
            ((str(row), self.shape[0]), (str(series), n)), (row, series, 0), _whole, ((str(step), -(-count // n)),),
            lambda load: load(source, (row, place, 0)), "max", to=f"{_SERIES}{n}",
        )  # fmt: skip

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


def exp_of_distance(x: Value) -> Value:
    """Return the exponential of a distance from the largest element, which is negative or zero."""
    return exp_of_negative(x) if dtype_of(x) is F32 else elementwise("exp", x, 0, 0)


def _whole(_: Loader, found: Value | None) -> Value:
    assert found is not None
    return found
