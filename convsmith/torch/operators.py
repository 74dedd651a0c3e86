"""The operators `torch.ops.convsmith`: kernels for the CPU and for CUDA, shapes without data, autograd and autocast.

The three operators are the three forms of one trilinear map of source, weights and gradient of the result, so the
gradient of each is computed by the other two, to any order. `padding` lists the front and the back pad of each axis. A
dilation of 1 is dense.

A call from Python goes through `conv`, `conv_transpose` or `weight_gradient` here, which bypass torch's dispatcher if
torch need not see the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import _C, Tensor
from torch.amp.autocast_mode import _cast
from torch.autograd import Function

from convsmith.frontend.window import ConvOptions, ConvWindow, coarse_sizes
from convsmith.torch.calls import result_type
from convsmith.torch.convolve import check_shapes, convolve, deconvolve, front_of, result_last, weight_gradients
from convsmith.torch.layouts import dense_strides, prefers_last
from convsmith.torch.visibility import is_recorded, is_unseen

__all__ = ["conv", "conv_gradients", "conv_transpose", "weight_gradient"]

_library: Any = torch.library.Library("convsmith", "DEF")  # type: ignore[no-untyped-call]
_KEYS = ("CPU", "CUDA")
"""Torch's names of the devices that kernels run on."""
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)


class _Operator:
    """The operator of a `schema`, whose first arguments are `tensors` tensors.

    `kernel` computes it on every device, `shape` returns tensors without data, `recorded` is its autograd function.
    """

    def __init__(
        self, schema: str, tensors: int, kernel: Callable[..., Any], shape: Callable[..., Any], recorded: Any
    ) -> None:
        self._tensors, self._kernel, self._recorded = tensors, kernel, recorded
        name = schema.partition("(")[0]
        _library.define(schema, tags=_TAGS)
        self.seen: Any = getattr(torch.ops.convsmith, name).default
        _library.impl(name, self._under_autograd, "Autograd")
        for key in _KEYS:
            _library.impl(name, kernel, key)
            _library.impl(name, partial(self._under_autocast, key), f"Autocast{key}")
        torch.library.register_fake(f"convsmith::{name}", shape, lib=_library)

    def __call__(self, *arguments: Any) -> Any:
        """Compute like the operator; a call that torch need not see bypasses the dispatcher."""
        tensors = arguments[: self._tensors]
        if not is_unseen(*tensors):
            return self.seen(*arguments)
        return self._recorded.apply(*arguments) if is_recorded(*tensors) else self._kernel(*arguments)

    def below_autograd(self, *arguments: Any) -> Any:
        """Compute like the operator, without recording for autograd."""
        if is_unseen(*arguments[: self._tensors]):
            return self._kernel(*arguments)
        with _C._AutoDispatchBelowAutograd():
            return self.seen(*arguments)

    def _under_autograd(self, *arguments: Any) -> Any:
        if is_recorded(*arguments[: self._tensors]):
            return self._recorded.apply(*arguments)
        return self.below_autograd(*arguments)

    def _under_autocast(self, key: str, *arguments: Any) -> Any:
        device = key.lower()
        with _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(getattr(_C.DispatchKey, f"Autocast{key}"))):
            return self.seen(*_cast(arguments, device, torch.get_autocast_dtype(device)))


@lru_cache(256)
def _pairs(*padding: int) -> tuple[tuple[int, int], ...]:
    return tuple(zip(padding[::2], padding[1::2]))


def _window(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> ConvWindow:
    return ConvWindow(tuple(stride), _pairs(*padding), tuple(dilation), groups)


# -- kernels
def _conv(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: Any, padding: Sequence[int], dilation: Any, groups: int
) -> Tensor:
    return convolve(x, w, bias, ConvOptions(tuple(stride), _pairs(*padding), tuple(dilation), groups))


def _conv_transpose(x: Tensor, w: Tensor, bias: Tensor | None, sizes: Sequence[int], *options: Any) -> Tensor:
    return deconvolve(x, w, bias, tuple(sizes), _window(*options))


def _weight_gradient(
    x: Tensor, grad: Tensor, kernel: Sequence[int], with_bias: bool, last: bool, *options: Any
) -> tuple[Tensor, Tensor]:
    return weight_gradients(x, grad, tuple(kernel), _window(*options), with_bias, last)


# -- shapes without data
def _empty(like: Tensor, shape: Sequence[int], last: bool) -> Tensor:
    return like.new_empty_strided(tuple(shape), dense_strides(shape, last), dtype=result_type(like.dtype))


def _conv_shape(x: Tensor, w: Tensor, bias: Tensor | None, *options: Any) -> Tensor:
    window = _window(*options)
    check_shapes(x.shape, w.shape, None if bias is None else bias.shape, window.groups, False)
    sizes = coarse_sizes(x.shape[2:], w.shape[2:], window)
    return _empty(x, (x.shape[0], w.shape[0], *sizes), result_last(x.shape, x.stride(), w.shape, w.stride()))


def _conv_transpose_shape(x: Tensor, w: Tensor, bias: Tensor | None, sizes: Sequence[int], *options: Any) -> Tensor:
    groups = options[-1]
    check_shapes(x.shape, w.shape, None if bias is None else bias.shape, groups, True)
    last = result_last(x.shape, x.stride(), w.shape, w.stride())
    return _empty(x, (x.shape[0], w.shape[1] * groups, *sizes), last)


def _weight_gradient_shape(
    x: Tensor, grad: Tensor, kernel: Sequence[int], with_bias: bool, last: bool, *options: Any
) -> tuple[Tensor, Tensor]:
    channels = grad.shape[1]
    weights = _empty(x, (channels, x.shape[1] // options[-1], *kernel), last)
    return weights, x.new_empty(channels if with_bias else 0)


# -- autograd
def conv_gradients(
    saved: Sequence[Tensor], grad: Tensor, due: Sequence[bool], options: Sequence[Any]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return those of the gradients of source, weights and bias that are `due`, from the `saved` source and weights and
    the gradient of the result of a convolution.
    """
    x, w = saved
    of_x = of_w = of_bias = None
    if due[0]:
        of_x = conv_transpose(grad, w, None, x.shape[2:], *options)
    if due[1]:
        of_w, of_bias = weight_gradient(x, grad, w.shape[2:], due[2], _is_last(w), *options)
    elif due[2]:
        of_bias = _sum(grad)
    return of_x, of_w, of_bias if due[2] else None


class _RecordedConv(Function):
    """A convolution that autograd records."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, *options: Any) -> Any:
        ctx.save_for_backward(x, w)
        ctx.options = options
        return conv.below_autograd(x, w, bias, *options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradients of source, weights and bias."""
        return *conv_gradients(ctx.saved_tensors, grad, ctx.needs_input_grad, ctx.options), *[None] * len(ctx.options)


class _RecordedConvTranspose(Function):
    """A transposed convolution that autograd records."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, *options: Any) -> Any:
        ctx.save_for_backward(x, w)
        ctx.options = options
        return conv_transpose.below_autograd(x, w, bias, *options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradients of source, weights and bias."""
        x, w = ctx.saved_tensors
        due, (_, *options) = ctx.needs_input_grad, ctx.options
        of_x = of_w = None
        if due[0]:
            of_x = front_of(conv(grad, w, None, *options), x.shape[2:])
        if due[1]:
            of_w, _ = weight_gradient(grad, x, w.shape[2:], False, _is_last(w), *options)
        return of_x, of_w, _sum(grad) if due[2] else None, *[None] * len(ctx.options)


class _RecordedGradient(Function):
    """Gradients of weights and bias that autograd records."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, grad: Tensor, *options: Any) -> Any:
        ctx.save_for_backward(x, grad)
        ctx.options = options
        return weight_gradient.below_autograd(x, grad, *options)

    @staticmethod
    def backward(ctx: Any, of_w: Tensor, of_bias: Tensor) -> Any:
        """Return the gradients of the source and of the result's gradient."""
        x, grad = ctx.saved_tensors
        due, (_, with_bias, _, *options) = ctx.needs_input_grad, ctx.options
        of_x = of_grad = None
        if due[0]:
            of_x = conv_transpose(grad, of_w, None, x.shape[2:], *options)
        if due[1]:
            of_grad = front_of(conv(x, of_w, of_bias if with_bias else None, *options), grad.shape[2:])
        return of_x, of_grad, *[None] * len(ctx.options)


def _is_last(w: Tensor) -> bool:
    return prefers_last(w.shape, w.stride())


def _sum(grad: Tensor) -> Tensor:
    return grad.sum((0, *range(2, grad.ndim)))


_OPTIONS = "int[] stride, int[] padding, int[] dilation, int groups"
conv = _Operator(f"conv(Tensor x, Tensor w, Tensor? bias, {_OPTIONS}) -> Tensor", 3, _conv, _conv_shape, _RecordedConv)
conv_transpose = _Operator(
    f"conv_transpose(Tensor x, Tensor w, Tensor? bias, SymInt[] sizes, {_OPTIONS}) -> Tensor",
    3, _conv_transpose, _conv_transpose_shape, _RecordedConvTranspose,
)  # fmt: skip
weight_gradient = _Operator(
    "weight_gradient(Tensor x, Tensor grad, SymInt[] kernel, bool with_bias, bool last, "
    f"{_OPTIONS}) -> (Tensor, Tensor)",
    2, _weight_gradient, _weight_gradient_shape, _RecordedGradient,
)  # fmt: skip
