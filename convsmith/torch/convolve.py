"""Convolutions of tensors on the CPU or a GPU: checked arguments, a kernel for their sizes, kept packed weights.

The operators of `torch.library` end here, and so do calls that bypass torch's dispatcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from convsmith.diag.errors import UsageError
from convsmith.diag.settings import settings
from convsmith.frontend.numpy_api import KEPT_KERNELS
from convsmith.frontend.window import ConvOptions, ConvWindow, Ints, window_of
from convsmith.torch import devices
from convsmith.torch.calls import TensorForm, TensorKernel, conv_problem, gradient_problem, kept_kernel
from convsmith.torch.layouts import check_memory, in_order, is_dense, prefers_last
from convsmith.torch.transforms import faster_with_transforms
from convsmith.torch.weights import KeptTensors

__all__ = [
    "Prepared", "TensorKey", "check_shapes", "convolve", "deconvolve", "front_of", "gradient_of_weights", "prepared",
    "result_last", "run", "shared_device", "weight_gradients",
]  # fmt: skip

_KEPT = KeptTensors(1 << 30)
"""Packed weights of earlier calls, with copies of the plain weights: at most 1 GiB."""


TensorKey: TypeAlias = tuple[Ints, Ints, torch.dtype]
"""The fields of a `TensorForm` as a tuple, which is a cheaper key."""


class Prepared(NamedTuple):
    """A kernel, and for each tensor the memory order into which a call copies it; None if it is read in place."""

    kernel: TensorKernel
    x: bool | None
    w: bool | None
    copies: bool
    keeps: bool


def convolve(x: Tensor, w: Tensor, bias: Tensor | None, options: ConvOptions) -> Tensor:
    """Return the convolution of dense or strided tensors on one device."""
    found = prepared(
        shared_device(x, w, bias), (x.shape, x.stride(), x.dtype), (w.shape, w.stride(), w.dtype),
        None if bias is None else (bias.shape, bias.stride(), bias.dtype),
        options, None, torch.get_num_threads(), settings.choice,
    )  # fmt: skip
    return run(found, x, w, bias)


def deconvolve(x: Tensor, w: Tensor, bias: Tensor | None, sizes: Ints, window: ConvWindow) -> Tensor:
    """Return the transposed convolution of spatial shape `sizes`: the gradient of the source of a convolution."""
    found = prepared(
        shared_device(x, w, bias), (x.shape, x.stride(), x.dtype), (w.shape, w.stride(), w.dtype),
        None if bias is None else (bias.shape, bias.stride(), bias.dtype),
        window, sizes, torch.get_num_threads(), settings.choice,
    )  # fmt: skip
    result = run(found, x, w, bias)
    if result.shape[2:] == sizes:
        return result
    # No element of the source reaches the end of the result, which holds only the bias.
    whole = torch.zeros((*result.shape[:2], *sizes), dtype=result.dtype, device=result.device)
    if bias is not None:
        whole += bias.detach().reshape(-1, *[1] * len(sizes))
    front_of(whole, result.shape[2:]).copy_(result)
    return in_order(whole, prefers_last(result.shape, result.stride()))


def weight_gradients(
    x: Tensor, grad: Tensor, kernel: Ints, window: ConvWindow, with_bias: bool, last: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the weights (OC, IC / groups, *kernel), with channels `last` in memory or not, and of the
    bias, which is empty if it is not requested.
    """
    check_memory((("input", x), ("gradient", grad)))
    made, reached, x_last, grad_last = gradient_of_weights(
        shared_device(x, grad, None), (x.shape, x.stride(), x.dtype), (grad.shape, grad.stride(), grad.dtype),
        (kernel, last), window, with_bias, torch.get_num_threads(), settings.choice,
    )  # fmt: skip
    x = front_of(x.detach(), reached)
    results = [made.new(n) for n in range(len(made.outputs))]
    made.into((in_order(x, x_last), in_order(grad.detach(), grad_last)), results)
    shape = (grad.shape[1], x.shape[1] // window.groups, *kernel)
    weights = results[0] if window.groups == 1 else results[0].view(shape)
    return weights, results[1] if with_bias else x.new_empty(0)


@lru_cache(KEPT_KERNELS)
def gradient_of_weights(
    device: torch.device, x: TensorKey, grad: TensorKey, weights: tuple[Ints, bool], window: ConvWindow,
    with_bias: bool, threads: int, _: object,
) -> tuple[TensorKernel, Ints, bool, bool]:
    """Return the kernel of a gradient of weights, the spatial shape of the source that taps reach, and the memory
    orders of source and gradient.
    """
    fine, coarse, (kernel, last) = TensorForm(*x), TensorForm(*grad), weights
    sides = zip(fine.shape[2:], coarse.shape[2:], kernel, *window[:3])
    reached = tuple(min(size, n * s + (k - 1) * d - front) for size, n, k, s, (front, _), d in sides)
    reads = fine._replace(shape=(*fine.shape[:2], *reached))
    problem = gradient_problem(reads, coarse, kernel, window, (fine.last, last, coarse.last), with_bias)
    return kept_kernel(problem, threads, device), reached, fine.last, coarse.last


def check_shapes(x: Any, w: Any, bias: Any, groups: int, transposed: bool) -> None:
    """Raise UsageError if the shapes `x`, `w` and `bias` (or None) do not match."""
    if w[0] % groups:
        which = "source" if transposed else "output"
        raise UsageError(f"groups={groups} does not divide the {w[0]} {which} channels of weight", code="bad-groups")
    wanted = w[0] if transposed else w[1] * groups
    if x[1] != wanted:
        where = "dim 0" if transposed else f"{groups} groups of dim 1"
        raise UsageError(
            f"input has {x[1]} channels (dim 1 of {tuple(x)}), but weight is for {wanted} ({where} of {tuple(w)}); "
            "legal is the same number",
            code="shape",
        )
    channels = w[1] * groups if transposed else w[0]
    if bias is not None and tuple(bias) != (channels,):
        raise UsageError(f"bias: shape is {tuple(bias)}; legal is {(channels,)}", code="shape")


def result_last(x_shape: Any, x_strides: Any, w_shape: Any, w_strides: Any) -> bool:
    """Return whether a result has channels last in memory: as in torch, if source or weights have."""
    return prefers_last(x_shape, x_strides) or prefers_last(w_shape, w_strides)


def front_of(tensor: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the leading part of a tensor with spatial shape `sizes`; the tensor itself if the shapes are equal."""
    for axis, size in enumerate(sizes, 2):
        if tensor.shape[axis] != size:
            tensor = tensor.narrow(axis, 0, size)
    return tensor


def shared_device(x: Tensor, other: Tensor, bias: Tensor | None) -> torch.device:
    """Return the device of the tensors of a call. UsageError if they are on several devices."""
    device = devices.device_of(x)
    if devices.device_of(other) != device or (bias is not None and devices.device_of(bias) != device):
        devices.check_devices((("input", x), ("the second tensor", other), ("bias", bias)))
    return device


def run(found: Prepared, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """Return the result of a prepared kernel on tensors of its shapes and strides. UsageError if a tensor has no
    memory.
    """
    kernel = found.kernel
    if not (x.data_ptr() and w.data_ptr() and (bias is None or bias.data_ptr())):
        check_memory((("input", x), ("weight", w), ("bias", bias)))
    if found.copies:
        x = x if found.x is None else in_order(x.detach(), found.x)
        w = w if found.w is None else in_order(w.detach(), found.w)
        bias = bias if bias is None else bias.detach().contiguous()
    if found.keeps and (packed := _KEPT.packed(kernel, w, bias)) is not None:
        return kernel.call_packed(x, packed, bias)
    return kernel(x, w) if bias is None else kernel(x, w, bias)


@lru_cache(KEPT_KERNELS)
def prepared(
    device: torch.device, x_key: TensorKey, w_key: TensorKey, bias_key: TensorKey | None,
    options: ConvOptions | ConvWindow, sizes: Ints | None, threads: int, _: object,
) -> Prepared:  # fmt: skip
    """Return the kernel of a convolution, transposed if the result has `sizes`, and the copies that its tensors need.
    """
    x, w, bias = TensorForm(*x_key), TensorForm(*w_key), None if bias_key is None else TensorForm(*bias_key)
    window = options if isinstance(options, ConvWindow) else window_of(w.shape[2:], options)
    check_shapes(x.shape, w.shape, None if bias is None else bias.shape, window.groups, sizes is not None)
    problem = conv_problem(x, w, None if bias is None else bias.dtype, window, sizes)
    kernel = kept_kernel(problem, threads, device)
    if settings.accuracy == "relaxed" and not devices.is_gpu(device):
        kernel = faster_with_transforms(kernel, problem, threads)
    of_x, of_w = (None if is_dense(form.shape, form.strides, form.last) else form.last for form in (x, w))
    strided = bias is not None and bias.shape[0] > 1 and bias.strides != (1,)
    # A copy of the weights would be a new tensor in each call.
    keeps = kernel.packs and of_w is None and not devices.is_gpu(device)
    return Prepared(kernel, of_x, of_w, strided or (of_x, of_w) != (None, None), keeps)
