"""The operators `torch.ops.convsmith`: kernels for the CPU, shapes without data, autograd and autocast.

The three operators are the three forms of one trilinear map of source, weights and gradient of the result, so the
gradient of each is computed by the other two, to any order. In `padding`, front and back pad of each axis follow each
other. A dilation of 1 is dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp.autocast_mode import _cast

from convsmith.frontend.window import ConvWindow, coarse_sizes
from convsmith.torch.calls import result_type
from convsmith.torch.convolve import check_shapes, convolve, deconvolve, front_of, result_last, weight_gradients
from convsmith.torch.layouts import dense_strides

__all__ = ["conv", "conv_transpose", "weight_gradient"]

_OPTIONS = "int[] stride, int[] padding, int[] dilation, int groups"
_SCHEMAS = (
    f"conv(Tensor x, Tensor w, Tensor? bias, {_OPTIONS}) -> Tensor",
    f"conv_transpose(Tensor x, Tensor w, Tensor? bias, SymInt[] sizes, {_OPTIONS}) -> Tensor",
    "weight_gradient(Tensor x, Tensor grad, SymInt[] kernel, bool with_bias, bool last, "
    f"{_OPTIONS}) -> (Tensor, Tensor)",
)

_library: Any = torch.library.Library("convsmith", "DEF")  # type: ignore[no-untyped-call]
for _schema in _SCHEMAS:
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides))

conv: Any = torch.ops.convsmith.conv.default
conv_transpose: Any = torch.ops.convsmith.conv_transpose.default
weight_gradient: Any = torch.ops.convsmith.weight_gradient.default


def _pairs(padding: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(zip(padding[::2], padding[1::2]))


def _window(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> ConvWindow:
    return ConvWindow(tuple(stride), _pairs(padding), tuple(dilation), groups)


# -- kernels for the CPU
def _conv(x: Tensor, w: Tensor, bias: Tensor | None, *options: Any) -> Tensor:
    stride, padding, dilation, groups = options
    return convolve(x, w, bias, tuple(stride), _pairs(padding), tuple(dilation), groups)


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
def _last(w: Tensor) -> bool:
    return result_last(w.shape, w.stride(), w.shape, w.stride())


def _save(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
    x, w, bias, *options = inputs
    ctx.save_for_backward(x, w)
    ctx.options, ctx.biased = options, bias is not None


def _conv_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    due, options = ctx.needs_input_grad, ctx.options
    of_x = of_w = of_bias = None
    if due[0]:
        of_x = conv_transpose(grad, w, None, x.shape[2:], *options)
    if due[1]:
        of_w, of_bias = weight_gradient(x, grad, w.shape[2:], due[2], _last(w), *options)
    if due[2] and of_bias is None:
        of_bias = _sum(grad)
    return of_x, of_w, of_bias if due[2] else None, *[None] * len(options)


def _conv_transpose_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    due, options = ctx.needs_input_grad, ctx.options[1:]
    of_x = front_of(conv(grad, w, None, *options), x.shape[2:]) if due[0] else None
    of_w = weight_gradient(grad, x, w.shape[2:], False, _last(w), *options)[0] if due[1] else None
    return of_x, of_w, _sum(grad) if due[2] else None, *[None] * (len(options) + 1)


def _sum(grad: Tensor) -> Tensor:
    return grad.sum((0, *range(2, grad.ndim)))


def _save_gradient(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
    x, grad, _, ctx.with_bias, _, *ctx.options = inputs
    ctx.save_for_backward(x, grad)


def _weight_gradient_backward(ctx: Any, of_w: Tensor, of_bias: Tensor) -> tuple[Tensor | None, ...]:
    x, grad = ctx.saved_tensors
    due = ctx.needs_input_grad
    of_x = conv_transpose(grad, of_w, None, x.shape[2:], *ctx.options) if due[0] else None
    of_grad = None
    if due[1]:
        bias = of_bias if ctx.with_bias else None
        of_grad = front_of(conv(x, of_w, bias, *ctx.options), grad.shape[2:])
    return of_x, of_grad, *[None] * 7


# -- autocast
def _autocast(operator: Any) -> Any:
    """Return `operator` on tensors of autocast's type."""

    def call(*arguments: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
            return operator(*_cast(arguments, "cpu", torch.get_autocast_dtype("cpu")))

    return call


_Rows = tuple[tuple[Any, Any, Any, Any, Any], ...]
_ROWS: _Rows = (
    (conv, _conv, _conv_shape, _conv_backward, _save),
    (conv_transpose, _conv_transpose, _conv_transpose_shape, _conv_transpose_backward, _save),
    (weight_gradient, _weight_gradient, _weight_gradient_shape, _weight_gradient_backward, _save_gradient),
)
for _operator, _kernel, _shape, _backward, _setup in _ROWS:
    _name = _operator._schema.name
    _library.impl(_name.partition("::")[2], _kernel, "CPU")
    _library.impl(_name.partition("::")[2], _autocast(_operator), "AutocastCPU")
    torch.library.register_fake(_name, _shape, lib=_library)
    torch.library.register_autograd(_name, _backward, setup_context=_setup, lib=_library)
