"""Layers between convolutions that read every element once: means over the pixels of a channel, and gates, which scale
channels.

They are ordinary problems. A mean is a product of the pixels with equal weights. A gate is the operand of a
multiplication after a 1x1 depthwise convolution whose weights are ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from convsmith.diag.record import record
from convsmith.frontend.kernel import CompiledKernel
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import BinaryPostOp
from convsmith.runtime.border import Given
from convsmith.runtime.foreign import view
from convsmith.torch.layers import DTYPES

__all__ = ["TYPES", "GateLayer", "MeanLayer"]

TYPES = (torch.float32, torch.float64)
"""Data types of layers that compute means over pixels, or gates of channels: 16 bits would round each intermediate
product.
"""

_GATE_MASK = 0b11
"""The axes along which a gate varies: samples and channels."""


@record(frozen=True, eq=False)
class _ChannelLayer:
    """A layer without weights of a network, on sources with channels in the second dim, and last in memory."""

    name: str
    dtype: torch.dtype

    orders = (True, True)
    adds = False
    has_window = is_depthwise = is_pointwise = False
    operand = "post_op_0"


@record(frozen=True, eq=False)
class MeanLayer(_ChannelLayer):
    """The mean over all pixels of each channel; `keeps` states whether the result keeps the spatial dims."""

    keeps: bool

    def owned(self) -> MeanLayer:
        """Return the layer, which has no weights."""
        return self

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result for a source of `shape`."""
        return (*shape[:2], *[1] * (len(shape) - 2)) if self.keeps else shape[:2]

    def problem(self, shape: tuple[int, ...], _: bool) -> Matmul:
        """Return the product of a source of `shape` and a vector of weights."""
        pixels, type_ = math.prod(shape[2:]), DTYPES[self.dtype]
        return Matmul(src=(*shape[:2], pixels), wei=(1, pixels, 1), dt=(type_,) * 3, stag="acb")

    def packed_for(self, problem: Matmul, kernel: CompiledKernel) -> dict[str, Given]:
        """Return the weights in the form that the kernel takes."""
        return {"wei": kernel.pack(view("weight", torch.full(problem.wei, 1 / problem.wei[1], dtype=self.dtype)))}

    def by_torch(self) -> Callable[[Tensor, Tensor | None], Tensor]:
        """Return the function from the source to the result, by torch."""
        return lambda x, _: x.mean(tuple(range(2, x.dim())), keepdim=self.keeps)


@record(frozen=True, eq=False)
class GateLayer(_ChannelLayer):
    """The product of a source and a second tensor that has one element for each channel of a sample."""

    def owned(self) -> GateLayer:
        """Return the layer, which has no weights."""
        return self

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result for a source of `shape`."""
        return shape

    def problem(self, shape: tuple[int, ...], _: bool) -> Conv:
        """Return the problem for a source of `shape`."""
        mb, channels, *sizes = shape
        type_, rank = DTYPES[self.dtype], len(sizes)
        return Conv(
            mb=mb, ic=channels, oc=channels, g=channels, has_groups=True, i=tuple(sizes), o=tuple(sizes), k=(1,) * rank,
            s=(1,) * rank, d=(0,) * rank, p=(0,) * rank, dt=(type_,) * 3, stag="axb", dtag="axb",
            post_ops=(BinaryPostOp("mul", type_, _GATE_MASK),),
        )  # fmt: skip

    def packed_for(self, problem: Conv, kernel: CompiledKernel) -> dict[str, Given]:
        """Return the only weight, which is one."""
        return {"wei": kernel.pack(view("weight", torch.ones(problem.wei_shape, dtype=self.dtype)))}

    def by_torch(self) -> Callable[[Tensor, Tensor | None], Tensor]:
        """Return the function from source and gate to the result, by torch."""

        def layer(x: Tensor, gate: Tensor | None) -> Tensor:
            assert gate is not None
            return x * gate

        return layer
