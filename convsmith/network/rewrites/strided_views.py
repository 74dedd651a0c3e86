"""Views of row-major arrays in memory that reshapes, transposes and slices read, where no element has to move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import NamedTuple

from convsmith.diag.record import record
from convsmith.network.graph import Work
from convsmith.network.operators.move import Transpose
from convsmith.network.operators.slice import Slice

__all__ = ["ArrayBox", "StridedView", "after_move"]


class ArrayBox(NamedTuple):
    """A view as a box of a row-major array: the dims of the array are those of the view in ``order``, outermost first.
    Dim n of the view begins at element ``starts[n]`` of ``wholes[n]``.
    """

    order: tuple[int, ...]
    wholes: tuple[int, ...]
    starts: tuple[int, ...]


@record(frozen=True)
class StridedView:
    """An array of ``shape`` in the memory of another one, from element ``offset`` on; ``strides`` count elements. A dim
    of one element has any stride.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @staticmethod
    def dense(shape: Sequence[int]) -> StridedView:
        """Return the view of a whole row-major array."""
        return StridedView(tuple(shape), tuple(prod(shape[n + 1 :]) for n in range(len(shape))))

    def transposed(self, axes: Sequence[int]) -> StridedView:
        """Return the view whose dim n is dim ``axes[n]``."""
        shape, strides = (tuple(x[axis] for axis in axes) for x in (self.shape, self.strides))
        return replace(self, shape=shape, strides=strides)

    def sliced(self, starts: Sequence[int], steps: Sequence[int], sizes: Sequence[int]) -> StridedView:
        """Return the view of ``sizes`` elements along each dim, from ``starts`` on, ``steps`` apart."""
        offset = self.offset + sum(start * stride for start, stride in zip(starts, self.strides))
        return StridedView(tuple(sizes), tuple(k * stride for k, stride in zip(steps, self.strides)), offset)

    def reshaped(self, shape: Sequence[int]) -> StridedView | None:
        """Return the view of the same elements in row-major order as an array of ``shape``; None if no strides have
        that order.
        """
        old = [(size, stride) for size, stride in zip(self.shape, self.strides) if size > 1]
        new = [n for n, size in enumerate(shape) if size > 1]
        if prod(shape) != prod(self.shape):
            return None
        strides, i, j = [0] * len(shape), 0, 0
        while i < len(old):
            first, start = i, j
            read, made = old[i][0], shape[new[j]]
            while read != made:
                if read < made:
                    i += 1
                    read *= old[i][0]
                else:
                    j += 1
                    made *= shape[new[j]]
            i, j = i + 1, j + 1
            run, stride = old[first:i], old[i - 1][1]
            if any(outer != size * inner for (_, outer), (size, inner) in pairwise(run)):
                return None
            for n in reversed(new[start:j]):
                strides[n], stride = stride, stride * shape[n]
        return StridedView(tuple(shape), tuple(strides), self.offset)

    def boxed(self, total: int) -> ArrayBox | None:
        """Return the view as a box of an array of ``total`` elements; None if the array has no dims of that kind. Dims
        of one element come first in the order.
        """
        last = len(self.shape) - 1
        several = [n for n, size in enumerate(self.shape) if size > 1] or [last]
        strides = {n: self.strides[n] if self.shape[n] > 1 else 1 for n in several}
        several.sort(key=lambda n: -strides[n])
        starts, wholes = [0] * len(self.shape), [1] * len(self.shape)
        around, rest = total, self.offset
        for n in several:
            if strides[n] < 1 or around % strides[n]:
                return None
            wholes[n], around = around // strides[n], strides[n]
            starts[n], rest = divmod(rest, strides[n])
            if starts[n] + self.shape[n] > wholes[n]:
                return None
        if around != 1:
            return None
        ones = [n for n in range(len(self.shape)) if n not in several]
        return ArrayBox((*ones, *several), tuple(wholes), tuple(starts))


def after_move(view: StridedView, work: Work, shape: Sequence[int]) -> StridedView | None:
    """Return what a slice, a transpose, or an operator that moves no element, reads of ``view``, as an array of
    ``shape``; None if no strides state it.
    """
    if not isinstance(work, Transpose | Slice):
        return view.reshaped(shape)
    whole = view.reshaped(work.shape)
    if whole is None:
        return None
    if isinstance(work, Transpose):
        return whole.transposed(work.axes).reshaped(shape)
    return whole.sliced(work.starts, work.steps, work.sizes).reshaped(shape)
