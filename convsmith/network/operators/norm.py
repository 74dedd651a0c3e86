"""Norms over rows and over groups of channels: elements less their mean, divided by their deviation, scaled and moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import IndexLike, Var
from convsmith.ir.types import dtype
from convsmith.ir.value import Binary, Unary, Value, const
from convsmith.network.operators.arrays import ArrayOperator
from convsmith.network.operators.pointwise import stepped
from convsmith.problem.post_ops import Eltwise
from convsmith.problem.tensor import Tensor
from convsmith.statement.maths import add, mul, sub
from convsmith.statement.operator import (
    RESULT,
    Loader,
    Operator,
    OperatorNest,
    OperatorNests,
    array,
    nests_of,
    result_array,
)

__all__ = ["FACTORS", "GroupNests", "GroupNorm", "Norm", "RowNorm", "present_sum"]

FACTORS = ("scale", "shift")
"""The arrays by which normalised elements are multiplied, and that are added then."""

_Element = Callable[[Loader, Sequence[Var]], Value]


@record(frozen=True)
class Norm(ArrayOperator):
    """A norm with the `factors`, a part of `FACTORS`, and `epsilon` added to the mean square, followed by element-wise
    `steps`.
    """

    type: str
    shape: tuple[int, ...]
    epsilon: float
    factors: tuple[str, ...] = FACTORS
    tags: tuple[str, ...] = ("any", "any")
    steps: tuple[Eltwise, ...] = ()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The source, and the factors, one for each column or channel."""
        more = (array(name, self.type, (self.shape[1],), holds="operand") for name in self.factors)
        return (array("src", self.type, self.shape, self.tags[0]), *more)

    @property
    def result(self) -> Tensor:
        """The normalised elements."""
        return result_array(self.type, self.shape, self.tags[1])

    @property
    def free(self) -> tuple[str, ...]:
        """The arrays whose layouts are free: not those of factors."""
        return ("src", RESULT)

    @property
    def replaceable(self) -> tuple[str, ...]:
        """The source: sums over elements come before the first result, and a result reads the element at its place."""
        return ("src",)

    def _mean(self, found: Value, count: int) -> Value:
        return mul(found, const(dtype(self.type), 1 / count))

    def _factor(self, squares: Value, count: int) -> Value:
        """Return the factor of elements, from the sum of a number `count` of squares."""
        t = dtype(self.type)
        return Binary("div", const(t, 1), Unary("sqrt", add(self._mean(squares, count), const(t, self.epsilon))))

    def _scaled(self, load: Loader, x: Value, column: IndexLike) -> Value:
        """Return a normalised element, scaled and moved, after the steps."""
        for name, operation in zip(FACTORS, (mul, add)):
            x = operation(x, load(name, (column,))) if name in self.factors else x
        return stepped(x, self.steps, self.type)

    def _along(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return the factors so that they broadcast to the source."""
        wide = (1, -1, *(1,) * (len(self.shape) - 2))
        return {name: x.reshape(wide) for name, x in zip(self.factors, arrays)}

    def _reference(self, x: Any, axes: tuple[int, ...], is_centred: bool, factors: Sequence[Any]) -> Any:
        wide = x.astype(np.float64)
        away = wide - wide.mean(axes, keepdims=True) if is_centred else wide
        found = (away / np.sqrt(np.square(away).mean(axes, keepdims=True) + self.epsilon)).reshape(self.shape)
        given = self._along(factors)
        y: Any = (found * given.get("scale", 1) + given.get("shift", 0)).astype(x.dtype)
        for step in self.steps:
            y = step.apply(y).astype(x.dtype)
        return y


@record(frozen=True)
class RowNorm(Norm):
    """The norm of each row of a matrix; unless it is `centred`, means are not subtracted."""

    centred: bool = True

    @property
    def inner(self) -> tuple[Tensor, ...]:
        """The mean of each row, and its factor."""
        names = (*(["mean"] if self.centred else []), "factor")
        return tuple(array(name, self.type, (self.shape[0], 1)) for name in names)

    def nests(self) -> OperatorNests:
        """Return the nests of the means, of the factors, and of the result."""
        rows, size = self.shape

        def away(load: Loader, at: Sequence[Var]) -> Value:
            x = load("src", at)
            return sub(x, load("mean", (at[0], 0))) if self.centred else x

        def sums(n: int, to: str, term: _Element, value: Callable[[Value, int], Value]) -> OperatorNest:
            at = Var(f"d{n}"), Var(f"k{n}")
            return OperatorNest(
                ((f"d{n}", rows),), (at[0], 0), lambda _, found: value(present_sum(found), size), ((f"k{n}", size),),
                lambda load: term(load, at), to=to,
            )  # fmt: skip

        def result(load: Loader, _: Value | None) -> Value:
            return self._scaled(load, mul(away(load, place), load("factor", (place[0], 0))), place[1])

        place = Var("d"), Var("k")
        means = [sums(0, "mean", lambda load, at: load("src", at), self._mean)] if self.centred else []
        factors = sums(1, "factor", lambda load, at: _square(away(load, at)), self._factor)
        return nests_of(self, [*means, factors, OperatorNest((("d", rows), ("k", size)), place, result)])

    def reference(self, *arrays: Any) -> Any:
        """Return the norm by numpy, with sums in f64."""
        return self._reference(arrays[0], (1,), self.centred, arrays[1:])


class GroupNests:
    """Nests over the channels of images of `shape`, which `made` lists in order; each has loops of names of its own."""

    def __init__(self, shape: Sequence[int], groups: int) -> None:
        self._shape, self._groups, self._each = shape, groups, shape[1] // groups
        self.made: list[OperatorNest] = []

    def place(self) -> tuple[list[Var], tuple[tuple[str, int], ...]]:
        """Return the variables of the next nest's loops over the elements of the images, and its dims."""
        pixels = range(len(self._shape) - 2)
        names = [f"{name}{len(self.made)}" for name in ("n", "c", *(f"x{k}_" for k in pixels))]
        return [Var(name) for name in names], tuple(zip(names, self._shape))

    def of_groups(self, source: str, between: str, to: str, value: Callable[[Value, int], Value]) -> None:
        """Add the sums of `source` over the channels of each group, as ``value`` of them and of the number of elements
        of a group, and a copy for each channel.
        """
        count, sizes = self._each * prod(self._shape[2:]), (self._shape[0], self._groups, self._each)
        names = [f"{name}{len(self.made)}" for name in ("n", "g", "k")]
        at = [Var(name) for name in names]
        dims = tuple(zip(names, sizes))
        self.made.append(
            OperatorNest(
                dims[:2], tuple(at[:2]), lambda _, found: value(present_sum(found), count), dims[2:],
                lambda load: load(source, (at[0], at[1] * self._each + at[2])), to=between,
            )
        )  # fmt: skip
        names = [f"{name}{len(self.made)}" for name in ("n", "g", "k")]
        to_at = [Var(name) for name in names]
        self.made.append(
            OperatorNest(
                tuple(zip(names, sizes)), (to_at[0], to_at[1] * self._each + to_at[2]),
                lambda load, _: load(between, to_at[:2]), to=to,
            )
        )  # fmt: skip


@record(frozen=True)
class GroupNorm(Norm):
    """The norm of each group of adjacent channels of an image, over all of its pixels."""

    groups: int = 1

    @property
    def inner(self) -> tuple[Tensor, ...]:
        """The sum, the mean, the sum of squares and the factor of each channel, and of each group of several."""
        n, c = self.shape[:2]
        whole = [] if self.groups == c else [(name, (n, self.groups)) for name in ("group_mean", "group_factor")]
        each = [(name, (n, c)) for name in (*(["sum", "squares"] if whole else []), "mean", "factor")]
        return tuple(array(name, self.type, shape) for name, shape in (*each, *whole))

    @property
    def adjacent_dims(self) -> set[int | None]:
        """The dims whose elements are adjacent in memory, in the source and in the result."""
        blocks = (t.layout.contiguous for t in (self.inputs[0], self.result))
        return {None if x is None else x.dim for x in blocks}

    @property
    def around(self) -> tuple[int, ...]:
        """An image, or a channel where it is a group and its pixels are adjacent."""
        return (1,) if 1 in self.adjacent_dims or self.groups < self.shape[1] else (1, 1)

    def nests(self) -> OperatorNests:
        """Return the nests of the means and factors of channels, and of the result."""
        c, *pixels = self.shape[1:]
        nests = GroupNests(self.shape, self.groups)

        def away(load: Loader, at: Sequence[Var]) -> Value:
            return sub(load("src", at), load("mean", at[:2]))

        def of_channels(term: _Element, to: str, value: Callable[[Value, int], Value] | None) -> None:
            """Add the sums over the pixels of each channel."""
            at, dims = nests.place()

            def stored(_: Loader, found: Value | None) -> Value:
                return present_sum(found) if value is None else value(present_sum(found), prod(pixels))

            nests.made.append(
                OperatorNest(dims[:2], tuple(at[:2]), stored, dims[2:], lambda load: term(load, at), to=to)
            )

        def means_and_factors(term: _Element, source: str, to: str, value: Callable[[Value, int], Value]) -> None:
            if self.groups == c:
                of_channels(term, to, value)
            else:
                of_channels(term, source, None)
                nests.of_groups(source, f"group_{to}", to, value)

        means_and_factors(lambda load, at: load("src", at), "sum", "mean", self._mean)
        means_and_factors(lambda load, at: _square(away(load, at)), "squares", "factor", self._factor)
        at, dims = nests.place()

        def result(load: Loader, _: Value | None) -> Value:
            return self._scaled(load, mul(away(load, at), load("factor", at[:2])), at[1])

        nests.made.append(OperatorNest(dims, tuple(at), result))
        return nests_of(self, nests.made)

    def flat(self) -> Operator:
        """Return the norm of rows of pixels, if the arrays are row-major."""
        plain = array("src", self.type, self.shape).layout
        if len(self.shape) == 3 or any(t.layout.strides != plain.strides for t in (self.inputs[0], self.result)):
            return self
        return replace(self, shape=(*self.shape[:2], prod(self.shape[2:])), tags=("any", "any"))

    def reference(self, *arrays: Any) -> Any:
        """Return the norm by numpy, with sums in f64."""
        n, c, *pixels = self.shape
        apart = arrays[0].reshape(n, self.groups, c // self.groups, *pixels)
        return self._reference(apart, tuple(range(2, apart.ndim)), True, arrays[1:])


def present_sum(x: Value | None) -> Value:
    """Return the sum that a nest with a reduction found."""
    assert x is not None
    return x


def _square(x: Value) -> Value:
    return mul(x, x)
