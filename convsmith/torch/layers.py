"""`ConvLayer`: a convolution of a network, with the norm, bias, activations and addition that are folded into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from convsmith.diag.record import record
from convsmith.frontend.kernel import CompiledKernel
from convsmith.frontend.transposed import transposed_problem, whole_size
from convsmith.problem.activations import activation_post_ops
from convsmith.problem.conv import Conv
from convsmith.problem.descriptor import output_size
from convsmith.problem.post_ops import PER_TENSOR, BinaryPostOp, PostOp, SumPostOp
from convsmith.runtime.arrays import Array
from convsmith.runtime.border import Given
from convsmith.runtime.foreign import view
from convsmith.torch import devices
from convsmith.torch.layouts import in_order

__all__ = ["DTYPES", "RESIDUAL", "ConvLayer", "FoldedStep"]

DTYPES = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}
"""Data types of problems by data type of tensors."""


FoldedStep: TypeAlias = tuple[str | float, ...]
"""A step after the sums of a layer: an activation in the form that `cs.conv2d` takes, a name with numbers, or
`RESIDUAL`.
"""

RESIDUAL: FoldedStep = ("add",)
"""The addition of a second tensor of the result's shape."""

_BY_TORCH: dict[str, Callable[..., Tensor]] = {
    "relu": torch.relu_,
    "clip": functional.hardtanh_,
    "hardswish": lambda x: functional.hardswish(x, inplace=True),
    "hardsigmoid": lambda x: functional.hardsigmoid(x, inplace=True),
    "silu": lambda x: functional.silu(x, inplace=True),
    "mish": lambda x: functional.mish(x, inplace=True),
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid_,
    "tanh": torch.tanh_,
    "leaky_relu": functional.leaky_relu_,
    "elu": functional.elu_,
}
"""Activations by name, computed by torch, in place where it can."""

Ints: TypeAlias = tuple[int, ...]
Pairs: TypeAlias = tuple[tuple[int, int], ...]


@record(frozen=True, eq=False)
class ConvLayer:
    """A convolution: `weight` in torch's shape, with norms folded in, and the `steps` after its sums.

    `padding` is a (front, back) pair per axis; a dilation of 1 is dense. `output_padding` is None for a convolution
    that is not transposed.
    """

    name: str
    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]
    groups: int
    output_padding: tuple[int, ...] | None
    steps: tuple[FoldedStep, ...]
    has_norm: bool = False

    def owned(self) -> ConvLayer:
        """Return the layer with weights in its own memory, where weights with a folded norm already are."""
        if self.has_norm:
            return self
        return replace(self, weight=self.weight.clone(), bias=None if self.bias is None else self.bias.clone())

    @property
    def adds(self) -> bool:
        """Whether the layer adds a second tensor."""
        return RESIDUAL in self.steps

    @property
    def folded(self) -> str:
        """The names of the operations that are folded into the layer."""
        return "+".join((*(["norm"] if self.has_norm else []), *(str(step[0]) for step in self.steps)))

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result for a source of `shape`."""
        axes = zip(shape[2:], self.weight.shape[2:], self.stride, self.dilation, self.padding)
        if self.output_padding is None:
            sizes = [output_size(i, k, s, d - 1, front, back) for i, k, s, d, (front, back) in axes]
            return (shape[0], self.weight.shape[0], *sizes)
        more = self.output_padding
        sizes = [whole_size(i, k, s, d) + more[n] - sum(pads) for n, (i, k, s, d, pads) in enumerate(axes)]
        return (shape[0], self.weight.shape[1] * self.groups, *sizes)

    def problem(self, shape: tuple[int, ...], in_place: bool) -> Conv:
        """Return the problem of the layer on a channels-last source of `shape`.

        If the layer adds a tensor, the result replaces that tensor if `in_place`, and otherwise has its own memory.
        """
        return self.problem_to(shape, self.result_shape(shape)[2:], in_place)

    def problem_to(self, shape: Ints, sizes: Ints, in_place: bool) -> Conv:
        """Return the problem on a source of `shape` with a result of spatial `sizes`."""
        bias = None if self.bias is None else DTYPES[self.bias.dtype]
        return _problem(
            shape, sizes, tuple(self.weight.shape), DTYPES[self.weight.dtype], bias, self.stride, self.padding,
            self.dilation, self.groups, self.output_padding is not None, self.steps, in_place,
        )  # fmt: skip

    @property
    def dtype(self) -> torch.dtype:
        """The data type of sources, weights and results."""
        return self.weight.dtype

    @property
    def device(self) -> torch.device:
        """The device of sources, weights and results."""
        return devices.device_of(self.weight)

    @property
    def kind(self) -> str:
        """The name of this kind of layer in reports."""
        return "convolution"

    @property
    def orders(self) -> tuple[bool, bool]:
        """Whether source and result have channels as their second dim and last in memory; otherwise they are
        contiguous.
        """
        return True, True

    @property
    def has_window(self) -> bool:
        """Whether pixels of the result read windows of the source, which may extend beyond its end."""
        return True

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is convolved with its own window."""
        return self.output_padding is None and self.groups == self.weight.shape[0] > 1 == self.weight.shape[1]

    @property
    def is_pointwise(self) -> bool:
        """Whether the layer is a product of channels at each pixel."""
        dense = {*self.weight.shape[2:], *self.stride, self.groups} == {1}
        return self.output_padding is None and dense and not any(map(any, self.padding))

    @property
    def operand(self) -> str:
        """The argument of the kernel that is added, if the result has its own memory."""
        return f"post_op_{self.steps.index(RESIDUAL)}"

    def weights_of(self, problem: Conv) -> Array:
        """Return the weights in the shape of the layer's `problem`."""
        weight = self.weight
        if self.output_padding is not None:
            g, (ic, ocg, *k) = self.groups, weight.shape
            weight = weight.reshape(g, ic // g, ocg, *k).transpose(1, 2)
        return view("weight", weight.reshape(problem.wei_shape).contiguous().cpu())

    def packed_for(self, problem: Conv, kernel: CompiledKernel) -> dict[str, Given]:
        """Return the weights, with the bias, in the form that the kernel of the layer's `problem` takes.

        Denormal weights, which slow a CPU down, become zero.
        """
        bias = None if self.bias is None else view("bias", self.bias.cpu())
        return {"wei": kernel.pack(self.weights_of(problem), bias, denormals="flush")}

    def by_torch(self) -> Callable[[Tensor, Tensor | None], Tensor]:
        """Return the function from source and residual to the result, by torch, on channels-last weights."""
        weight, fronts = in_order(self.weight, True), tuple(front for front, _ in self.padding)
        convolve: Callable[[Tensor], Tensor]
        if self.output_padding is not None:
            transposed = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
            compute, more = transposed[weight.dim() - 3], self.output_padding
            convolve = lambda x: compute(x, weight, self.bias, self.stride, fronts, more, self.groups, self.dilation)  # noqa: E731
        else:
            plain = (functional.conv1d, functional.conv2d, functional.conv3d)[weight.dim() - 3]
            pads = "same" if any(front != back for front, back in self.padding) else fronts
            convolve = lambda x: plain(x, weight, self.bias, self.stride, pads, self.dilation, self.groups)  # noqa: E731

        return lambda x, residual: self.finished(convolve(x), residual)

    def finished(self, y: Tensor, residual: Tensor | None) -> Tensor:
        """Return the result of the steps after the sums `y`, computed by torch."""
        for step in self.steps:
            if step == RESIDUAL and residual is not None:
                y = y.add_(residual)
            else:
                y = _BY_TORCH[str(step[0])](y, *step[1:])
        return y


@lru_cache(1024)
def _problem(
    shape: Ints, sizes: Ints, weight: Ints, dtype: str, bias: str | None, stride: Ints, padding: Pairs, dilation: Ints,
    groups: int, transposed: bool, steps: tuple[FoldedStep, ...], in_place: bool,
) -> Conv:  # fmt: skip
    """Return the problem of a layer from a source of `shape` to spatial `sizes`; equal layers share one."""
    post_ops: list[PostOp] = []
    for step in steps:
        if step == RESIDUAL:
            post_ops.append(SumPostOp() if in_place else BinaryPostOp("add", dtype, PER_TENSOR, "axb"))
        else:
            post_ops += activation_post_ops(step)
    options: dict[str, Any] = {
        "dt": (dtype, dtype, dtype), "stag": "axb", "dtag": "axb", "post_ops": tuple(post_ops),
        **({} if bias is None else {"dir": "FWD_B", "bia_dt": bias}),
    }  # fmt: skip
    fronts = tuple(front for front, _ in padding)
    if transposed:
        return transposed_problem(shape, weight, groups, stride, dilation, fronts, sizes, **options)
    oc, _, *k = weight
    return Conv(
        mb=shape[0], ic=shape[1], oc=oc, i=tuple(shape[2:]), o=sizes, k=tuple(k), s=stride,
        d=tuple(hole - 1 for hole in dilation), p=fronts, g=groups, has_groups=groups > 1, **options,
    )  # fmt: skip
