"""`LinearLayer`: a linear layer, which is a convolution of one pixel in a row of pixels."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from convsmith.diag.record import record
from convsmith.problem.conv import Conv
from convsmith.torch.layers import ConvLayer

__all__ = ["LinearLayer"]


@record(frozen=True, eq=False)
class LinearLayer(ConvLayer):
    """A linear layer of a source whose last dim has the channels, with weights (OC, IC, 1).

    If `moved`, the channels of the result are its second dim; memory is the same in both cases.
    """

    moved: bool = False

    @property
    def kind(self) -> str:
        """The name of this kind of layer in reports."""
        return "linear"

    @property
    def orders(self) -> tuple[bool, bool]:
        """Whether source and result have channels as their second dim and last in memory; otherwise they are
        contiguous.
        """
        return False, self.moved

    @property
    def has_window(self) -> bool:
        """Whether pixels of the result read windows of the source, which may extend beyond its end."""
        return False

    @property
    def is_pointwise(self) -> bool:
        """Whether the layer may be part of a chain of convolutions."""
        return False

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result for a source of `shape`."""
        channels = self.weight.shape[0]
        return (shape[0], channels, *shape[1:-1]) if self.moved else (*shape[:-1], channels)

    def problem(self, shape: tuple[int, ...], in_place: bool) -> Conv:
        """Return the problem of the layer on a contiguous source of `shape`, whose rows become the pixels of one image.
        """
        pixels = math.prod(shape[:-1])
        return self.problem_to((1, shape[-1], pixels), (pixels,), in_place)

    def by_torch(self) -> Callable[[Tensor, Tensor | None], Tensor]:
        """Return the function from source and residual to the result, by torch."""
        weight = self.weight.squeeze(2)

        def layer(x: Tensor, residual: Tensor | None) -> Tensor:
            y = functional.linear(x, weight, self.bias)
            return self.finished(y.movedim(-1, 1) if self.moved else y, residual)

        return layer
