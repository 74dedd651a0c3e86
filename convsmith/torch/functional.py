"""`conv1d`, `conv2d`, `conv3d` and their transposes, with the arguments of `torch.nn.functional`, on convsmith's
kernels for the CPU and for a GPU of CUDA.

A call is an operator of `torch.library`. If torch need not see the call, because nothing traces or transforms it, the
kernel runs directly, which saves several microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.frontend.window import ConvOptions, ConvWindow, transposed_sizes, window_of
from convsmith.torch import operators
from convsmith.torch.calls import type_name
from convsmith.torch.convolve import convolve
from convsmith.torch.devices import check_devices
from convsmith.torch.steps import recorded_conv
from convsmith.torch.visibility import bypass_on, has_tangent, is_recorded, is_unseen

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]

Numbers: TypeAlias = int | Sequence[int]
Padding: TypeAlias = int | str | Sequence[int]

def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Numbers = 1, padding: Padding = 0,
    dilation: Numbers = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Return the convolution of input (N, C, W) or (C, W), like `torch.nn.functional.conv1d`."""
    return _conv(1, input, weight, bias, ConvOptions(stride, padding, dilation, groups))


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Numbers = 1, padding: Padding = 0,
    dilation: Numbers = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Return the convolution of input (N, C, H, W) or (C, H, W), like `torch.nn.functional.conv2d`.

    The result is channels-last in memory if input or weight is. Gradients are computed by convsmith's kernels. A kernel
    uses `torch.get_num_threads()` threads, or, for tensors of a GPU, the current stream. UsageError names an argument
    that does not fit.
    """
    return _conv(2, input, weight, bias, ConvOptions(stride, padding, dilation, groups))


def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Numbers = 1, padding: Padding = 0,
    dilation: Numbers = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Return the convolution of input (N, C, D, H, W) or (C, D, H, W), like `torch.nn.functional.conv3d`."""
    return _conv(3, input, weight, bias, ConvOptions(stride, padding, dilation, groups))


def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Numbers = 1, padding: Numbers = 0,
    output_padding: Numbers = 0, groups: int = 1, dilation: Numbers = 1,
) -> Tensor:  # fmt: skip
    """Return the transposed convolution of input, like `torch.nn.functional.conv_transpose1d`."""
    options = ConvOptions(stride, padding, dilation, groups, None, output_padding)
    return _conv_transpose(1, input, weight, bias, options)


def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Numbers = 1, padding: Numbers = 0,
    output_padding: Numbers = 0, groups: int = 1, dilation: Numbers = 1,
) -> Tensor:  # fmt: skip
    """Return the transposed convolution of input, like `torch.nn.functional.conv_transpose2d`; see `conv2d`."""
    options = ConvOptions(stride, padding, dilation, groups, None, output_padding)
    return _conv_transpose(2, input, weight, bias, options)


def conv_transpose3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Numbers = 1, padding: Numbers = 0,
    output_padding: Numbers = 0, groups: int = 1, dilation: Numbers = 1,
) -> Tensor:  # fmt: skip
    """Return the transposed convolution of input, like `torch.nn.functional.conv_transpose3d`."""
    options = ConvOptions(stride, padding, dilation, groups, None, output_padding)
    return _conv_transpose(3, input, weight, bias, options)


def _conv(rank: int, x: Tensor, w: Tensor, bias: Tensor | None, options: ConvOptions) -> Tensor:
    if is_unseen(x, w, bias) and x.ndim == w.ndim == rank + 2:
        try:
            return (recorded_conv if is_recorded(x, w, bias) else convolve)(x, w, bias, options)
        except TypeError:  # a list cannot be a key
            pass
    whole = _checked(rank, x, w, bias)
    window = _window(tuple(w.shape[2:]), _frozen(rank, options))
    result: Tensor = operators.conv(whole, w, bias, window.stride, _flat(window), window.dilation, window.groups)
    return result if whole is x else result.squeeze(0)


def _conv_transpose(rank: int, x: Tensor, w: Tensor, bias: Tensor | None, options: ConvOptions) -> Tensor:
    whole = _checked(rank, x, w, bias)
    if isinstance(options.padding, str):
        raise UsageError(f"padding={shown(options.padding)} is not legal: expected numbers", code="bad-padding")
    options = _frozen(rank, options)
    window = _window(tuple(w.shape[2:]), options)
    sizes = transposed_sizes(whole.shape[2:], w.shape[2:], window, options)
    result: Tensor = operators.conv_transpose(
        whole, w, bias, sizes, window.stride, _flat(window), window.dilation, window.groups
    )
    return result if whole is x else result.squeeze(0)


def _checked(rank: int, x: Any, w: Any, bias: Any) -> Tensor:
    """Return the source with its batch dim. UsageError if a tensor is on another device or has another rank."""
    for name, tensor in (("input", x), ("weight", w), ("bias", bias)):
        if tensor is None and name == "bias":
            continue
        if not isinstance(tensor, Tensor):
            raise UsageError(
                f"{name}: expected a tensor of torch, got {type(tensor).__name__}; convsmith.conv{rank}d takes arrays "
                "of other libraries",
                code="not-an-array",
            )
        if tensor.layout is not torch.strided:
            message = f"{name}: layout is {tensor.layout}; legal is torch.strided"
            raise UsageError(message, code="layout")
        if has_tangent(tensor):
            raise UsageError(
                f"{name}: has a tangent of forward-mode autograd, which no kernel follows; legal are gradients by "
                "backward()",
                code="forward-mode",
            )
    check_devices((("input", x), ("weight", w), ("bias", bias)))
    if w.ndim != rank + 2:
        message = f"weight: rank is {w.ndim}, shape {tuple(w.shape)}; legal is rank {rank + 2}"
        raise UsageError(message, code="rank")
    if x.ndim not in (rank + 1, rank + 2):
        raise UsageError(
            f"input: rank is {x.ndim}, shape {tuple(x.shape)}; legal is rank {rank + 2}, or {rank + 1} without a batch",
            code="rank",
        )
    type_name("input", x.dtype)
    bypass_on(x.device)
    whole: Tensor = x if x.ndim == rank + 2 else x.unsqueeze(0)
    return whole


def _frozen(rank: int, options: ConvOptions) -> ConvOptions:
    """Return options with lists as tuples; a single entry applies to all axes, as in torch."""
    return ConvOptions(*[
        x if not isinstance(x, (list, tuple)) else tuple(x) * rank if len(x) == 1 else tuple(x) for x in options
    ])  # fmt: skip


def _window(kernel: tuple[int, ...], options: ConvOptions) -> ConvWindow:
    """Return the window of a call; torch's compiler traces the function and would ignore the cache."""
    make = window_of if torch.compiler.is_compiling() else _known_window
    return make(kernel, options)


_known_window = lru_cache(256)(window_of)


def _flat(window: ConvWindow) -> Sequence[int]:
    return [pad for pair in window.padding for pad in pair]
