"""Pools: the maximum, the mean or the sum of the elements of a window, channel by channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import IndexLike, Var, conj, ge0
from convsmith.ir.types import dtype
from convsmith.ir.value import COMBINATIONS, Binary, Select, Value, const
from convsmith.problem.tensor import Tensor
from convsmith.runtime.arrays import Array, numpy_dtype
from convsmith.statement.operator import (
    Loader,
    Operator,
    OperatorNest,
    OperatorNests,
    array,
    nests_of,
    result_array,
)

__all__ = ["Pool"]

_COUNTS = "counts"


@record(frozen=True)
class Pool(Operator):
    """The maximum ("max"), the mean ("mean") or the sum ("sum") of each window of `k` elements along the axes after the
    first two.

    Windows are `s` elements apart, their elements `d`, and the first begins `p` elements before the source; there are
    `o` of them. Elements outside of the source are absent: a mean divides by the number of elements that are present,
    or, if it `counts_pads`, by the elements that lie less than `back` beyond the end of the source.
    """

    kind: str
    type: str
    shape: tuple[int, ...]
    o: tuple[int, ...]
    k: tuple[int, ...]
    s: tuple[int, ...]
    d: tuple[int, ...]
    p: tuple[int, ...]
    back: tuple[int, ...]
    counts_pads: bool = False
    tags: tuple[str, ...] = ("any", "any")

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The source, and the divisors of sums if windows have different ones."""
        source = array("src", self.type, self.shape, self.tags[0])
        return (source, *(array(name, self.type, x.shape, holds="operand") for name, x in self.constants.items()))

    @property
    def result(self) -> Tensor:
        """The maxima, means or sums, (N, C, *o)."""
        return result_array(self.type, (*self.shape[:2], *self.o), self.tags[1])

    @property
    def constants(self) -> Mapping[str, Array]:
        """The divisors of sums, (*o), if windows have different ones."""
        divisors = self._divisors()
        if self.kind != "mean" or (divisors == divisors.flat[0]).all():
            return {}
        return {_COUNTS: divisors}

    def _divisors(self) -> Any:
        """Return the number by which the sum of each window is divided."""
        found: Any = np.ones((), numpy_dtype(self.type))
        for i, o, k, s, d, p, back in zip(self.shape[2:], self.o, self.k, self.s, self.d, self.p, self.back):
            low, high = (-p, i + back) if self.counts_pads else (0, i)
            counts = [sum(low <= x * s + t * d - p < high for t in range(k)) for x in range(o)]
            found = np.multiply.outer(found, np.array(counts, found.dtype))
        return np.maximum(found, 1)

    def nests(self) -> OperatorNests:
        """Return one nest, whose reduction runs over the elements of a window."""
        rank, t = len(self.o), dtype(self.type)
        pixels = [Var(f"o{n}") for n in range(rank)]
        taps = [Var(f"k{n}") for n in range(rank)]
        at = [x * s + y * d - p for x, y, s, d, p in zip(pixels, taps, self.s, self.d, self.p)]
        present = conj([c for x, i in zip(at, self.shape[2:]) for c in (ge0(x), x < i)])
        first: tuple[IndexLike, ...] = (Var("n"), Var("c"))
        combination = "max" if self.kind == "max" else "add"
        absent = const(t, COMBINATIONS[combination])
        divisors = self._divisors()

        def value(load: Loader, found: Value | None) -> Value:
            assert found is not None
            if self.kind != "mean":
                return found
            by = load(_COUNTS, pixels) if self.constants else const(t, float(divisors.flat[0]))
            return Binary("div", found, by)

        dims = (("n", self.shape[0]), ("c", self.shape[1]), *((str(x), o) for x, o in zip(pixels, self.o)))
        terms = tuple((str(x), k) for x, k in zip(taps, self.k))
        nest = OperatorNest(
            dims, (*first, *pixels), value, terms,
            lambda load: Select(present, load("src", (*first, *at)), absent), combination,
        )  # fmt: skip
        return nests_of(self, [nest])

    def reference(self, *arrays: Any) -> Any:
        """Return the pools, window by window."""
        x, sizes = arrays[0], self.shape[2:]
        y: Any = np.empty((*self.shape[:2], *self.o), x.dtype)
        divisors = self._divisors()
        for at in product(*map(range, self.o)):
            windows = zip(at, self.k, self.s, self.d, self.p, sizes)
            place, own = (..., *at), [_inside(o * s - p, k, d, i) for o, k, s, d, p, i in windows]
            part = x[(..., *np.ix_(*own))].reshape(*self.shape[:2], prod(map(len, own)))
            if self.kind == "max":
                y[place] = part.max(-1, initial=-np.inf)
            else:
                y[place] = part.sum(-1) / (divisors[at] if self.kind == "mean" else 1)
        return y


def _inside(start: int, taps: int, step: int, size: int) -> Sequence[int]:
    """Return the places of a window along an axis of `size` elements."""
    return [x for x in range(start, start + taps * step, step) if 0 <= x < size]
