"""Rearrangements: the dims of an array divided into parts, and the parts joined in another order, as one operator."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import Index, IndexLike, Var
from convsmith.network.operators.arrays import ArrayOperator, nest_that_moves
from convsmith.problem.tensor import Tensor
from convsmith.statement.operator import OperatorNests, result_array

__all__ = ["Rearrange"]


@record(frozen=True)
class Rearrange(ArrayOperator):
    """An array whose dims are parts of those of the source. `parts` are the sizes into which each dim of the source is
    divided, outermost first. `dims` are the parts, numbered in that order, that each dim of the result joins, outermost
    first. Along each of these dims, the result has `sizes` elements from `starts` on.
    """

    type: str
    shape: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]
    dims: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    tags: tuple[str, ...] = ("any", "any")

    @property
    def result(self) -> Tensor:
        """The array of `sizes`."""
        return result_array(self.type, self.sizes, self.tags[1])

    @property
    def part_sizes(self) -> tuple[int, ...]:
        """The sizes of all parts, by their numbers."""
        return tuple(chain.from_iterable(self.parts))

    def part_strides(self, strides: Sequence[int]) -> tuple[int, ...]:
        """Return the strides of all parts, by their numbers, where the dims of the source have `strides`."""
        return tuple(x * prod(own[n + 1 :]) for x, own in zip(strides, self.parts) for n in range(len(own)))

    def nests(self) -> OperatorNests:
        """Return one nest over the elements of the result."""
        return nest_that_moves(self, self._source)

    def _source(self, at: Sequence[Var]) -> Sequence[IndexLike]:
        """Return the coordinates in the source of the element `at` of the result."""
        sizes = self.part_sizes
        places: dict[int, Index] = {}
        for x, start, dim in zip(at, self.starts, self.dims):
            rest = x + start
            for n, part in reversed([*enumerate(dim)]):
                places[part] = rest % sizes[part] if n else rest
                rest = rest // sizes[part]
        found: list[IndexLike] = []
        numbers = iter(range(len(sizes)))
        for own in self.parts:
            place: IndexLike = 0
            for size in own:
                place = place * size + places[next(numbers)]
            found.append(place)
        return found

    def reference(self, *arrays: Any) -> Any:
        """Return the result of numpy's functions."""
        sizes = self.part_sizes
        moved = arrays[0].reshape(sizes).transpose([*chain.from_iterable(self.dims)])
        whole = moved.reshape([prod(sizes[n] for n in dim) for dim in self.dims])
        own = tuple(slice(start, start + size) for start, size in zip(self.starts, self.sizes))
        return np.ascontiguousarray(whole[own])
