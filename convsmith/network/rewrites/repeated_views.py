"""Views of arrays whose elements are repeated along a dim, as heads of keys are for several heads of queries."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from convsmith.diag.record import record
from convsmith.network.graph import Work
from convsmith.network.operators.expand import Expand
from convsmith.network.operators.move import Transpose
from convsmith.network.operators.slice import Slice
from convsmith.network.rewrites.strided_views import StridedView, after_move

__all__ = ["RepeatedView"]


@record(frozen=True)
class RepeatedView:
    """An array that has each element of a ``view`` ``times`` times, one after the other along the dim ``axis``."""

    view: StridedView
    axis: int = 0
    times: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(size * self.times if n == self.axis else size for n, size in enumerate(self.view.shape))

    def reshaped(self, shape: Sequence[int]) -> RepeatedView | None:
        """Return the same elements in row-major order as an array of ``shape``; None if no view states it."""
        after = prod(self.shape[self.axis + 1 :])
        axes = [n for n, size in enumerate(shape) if size % self.times == 0 and prod(shape[n + 1 :]) == after]
        if self.times == 1:
            axes = [0]
        if not axes:
            return None
        own = [size // self.times if n == axes[0] else size for n, size in enumerate(shape)]
        view = self.view.reshaped(own)
        return None if view is None else RepeatedView(view, axes[0], self.times)

    def after(self, work: Work, shape: Sequence[int]) -> RepeatedView | None:
        """Return what a move, a broadcast along one dim, or an operator that moves no element, reads of the array, as
        one of ``shape``; None if no view states it.
        """
        if isinstance(work, Expand):
            whole = self.reshaped((*(1,) * (len(work.sizes) - len(work.shape)), *work.shape))
            repeated = [n for n, size in enumerate(work.sizes) if whole is not None and size != whole.shape[n]]
            if whole is None or len(repeated) > 1 or (repeated and self.times > 1):
                return None
            wide = RepeatedView(whole.view, repeated[0], work.sizes[repeated[0]]) if repeated else whole
            return wide.reshaped(shape)
        if self.times == 1:
            view = after_move(self.view, work, shape)
            return None if view is None else RepeatedView(view)
        if isinstance(work, Transpose):
            whole = self.reshaped(work.shape)
            if whole is None:
                return None
            moved = RepeatedView(whole.view.transposed(work.axes), work.axes.index(whole.axis), self.times)
            return moved.reshaped(shape)
        return None if isinstance(work, Slice) else self.reshaped(shape)
