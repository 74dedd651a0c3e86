"""The places of the maxima of windows."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import IndexLike, Var, conj, ge0
from convsmith.ir.types import F32, S32, dtype
from convsmith.ir.value import Binary, Cast, Select, Value, Where, const
from convsmith.network.operators.pool import Pool
from convsmith.problem.tensor import Tensor
from convsmith.runtime.arrays import Array
from convsmith.statement.operator import Loader, Operator, OperatorNest, OperatorNests, array, nests_of, result_array

__all__ = ["LARGEST_IMAGE", "PoolPlaces"]

LARGEST_IMAGE = 1 << 24
"""Largest number of elements of an image, whose numbers f32 holds exactly."""
_NUMBERS, _STARTS = "numbers", "starts"


@record(frozen=True)
class PoolPlaces(Operator):
    """The number, of s32, of the first element of each window that equals the maximum of the window, which `pool`
    computes. Elements of the source have numbers in row-major order.

    An image has at most `LARGEST_IMAGE` elements.
    """

    pool: Pool

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The source, the maxima, the numbers of the elements of an image, and of the first element of each image."""
        of_pool = self.pool
        held = self.constants
        return (
            array("src", of_pool.type, of_pool.shape), array("maxima", of_pool.type, of_pool.result.shape),
            array(_NUMBERS, "f32", held[_NUMBERS].shape, holds="operand"),
            array(_STARTS, "s32", held[_STARTS].shape, holds="operand"),
        )  # fmt: skip

    @property
    def constants(self) -> Mapping[str, Array]:
        """The numbers of elements."""
        images, sizes = self.pool.shape[:2], self.pool.shape[2:]
        numbers = np.arange(prod(sizes), dtype=np.float32).reshape(sizes)
        starts = np.arange(prod(images), dtype=np.int32).reshape(images) * np.int32(prod(sizes))
        return {_NUMBERS: numbers, _STARTS: starts}

    @property
    def result(self) -> Tensor:
        """The numbers, (N, C, *o)."""
        return result_array("s32", self.pool.result.shape)

    def nests(self) -> OperatorNests:
        """Return one nest, whose reduction runs over the elements of a window."""
        of_pool = self.pool
        pixels = [Var(f"o{n}") for n in range(len(of_pool.o))]
        taps = [Var(f"k{n}") for n in range(len(of_pool.o))]
        images: tuple[IndexLike, ...] = (Var("n"), Var("c"))
        at = [x * s + y * d - p for x, y, s, d, p in zip(pixels, taps, of_pool.s, of_pool.d, of_pool.p)]
        present = conj([c for x, i in zip(at, of_pool.shape[2:]) for c in (ge0(x), x < i)])
        none = const(F32, inf)

        def term(load: Loader) -> Value:
            best = load("maxima", (*images, *pixels))
            absent = const(dtype(of_pool.type), -inf)
            here = Select(present, load("src", (*images, *at)), absent)
            return Select(present, Where("eq", here, best, load(_NUMBERS, at), none), none)

        def value(load: Loader, found: Value | None) -> Value:
            assert found is not None
            return Binary("add", Cast(S32, found), load(_STARTS, images))

        shape = self.result.shape
        dims = (("n", shape[0]), ("c", shape[1]), *((str(x), o) for x, o in zip(pixels, of_pool.o)))
        terms = tuple((str(x), k) for x, k in zip(taps, of_pool.k))
        return nests_of(self, [OperatorNest(dims, (*images, *pixels), value, terms, term, "min")])

    def reference(self, *arrays: Any) -> Any:
        """Return the numbers, element by element."""
        x, maxima, numbers, starts = arrays
        of_pool = self.pool
        y = np.full(self.result.shape, inf)
        for tap in np.ndindex(*of_pool.k):
            for at in np.ndindex(*of_pool.o):
                windows = zip(at, tap, of_pool.s, of_pool.d, of_pool.p)
                place = tuple(o * s + k * d - p for o, k, s, d, p in windows)
                if all(0 <= i < size for i, size in zip(place, of_pool.shape[2:])):
                    hit = np.where(x[(..., *place)] == maxima[(..., *at)], numbers[place], inf)
                    y[(..., *at)] = np.minimum(y[(..., *at)], hit)
        return y.astype(np.int32) + starts.reshape(*starts.shape, *(1,) * len(of_pool.o))
