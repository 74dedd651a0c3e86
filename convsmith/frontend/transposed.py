"""Transposed convolutions with the options of PyTorch and ONNX, converted to the form of a deconvolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.frontend.kernel import CompiledKernel
from convsmith.problem.conv import Conv
from convsmith.problem.post_ops import Eltwise, print_post_ops
from convsmith.problem.types import TYPES, convert
from convsmith.runtime.arrays import Array, as_array
from convsmith.runtime.border import Given, Names

__all__ = ["deconvolution_weights", "run_transposed", "transposed_problem", "whole_size"]

Numbers = Sequence[int]


def whole_size(size: int, kernel: int, stride: int, dilation: int) -> int:
    """Return the number of outputs along an axis that `size` inputs reach, without pads. A dilation of 1 is dense."""
    return stride * (size - 1) + (kernel - 1) * dilation + 1


def transposed_problem(
    x_shape: Numbers, w_shape: Numbers, g: int, s: Numbers, d: Numbers, fronts: Numbers, sizes: Numbers, **options: Any
) -> Conv:
    """Return the deconvolution of sources (N, C, *) with weights (C, OC / g, *), by default row-major; `options` are
    further fields of `Conv`.

    `sizes` may exceed the problem's output sizes by elements that no source reaches, because a `Conv` permits fewer of
    these than its stride.
    """
    n, ic, *i = x_shape
    _, ocg, *k = w_shape
    reached = [
        min(size, max(whole_size(extent, taps, step, hole) + step - 1 - front, 0))
        for extent, taps, step, hole, front, size in zip(i, k, s, d, fronts, sizes)
    ]
    return Conv(
        mb=n, ic=ic, oc=ocg * g, i=tuple(i), o=tuple(reached), k=tuple(k), s=tuple(s), d=tuple(hole - 1 for hole in d),
        p=tuple(fronts), g=g, has_groups=g > 1, deconv=True, **{"wtag": "acbx" if g > 1 else "bax", **options},
    )  # fmt: skip


def deconvolution_weights(problem: Conv, w: Array) -> Array:
    """Return weights `w` (C, OC / g, *) as the weights of the deconvolution `problem`, in the same memory."""
    grouped = w.reshape(problem.g, problem.ic // problem.g, problem.oc // problem.g, *problem.k)
    return grouped.swapaxes(1, 2).reshape(problem.wei_shape)


def run_transposed(
    kernel: CompiledKernel, sizes: tuple[int, ...], names: Names, x: Array, w: Array, bias: Array | None,
    out: Array | None,
) -> Array:  # fmt: skip
    """Return the output of spatial shape `sizes`, computed by the kernel of a `transposed_problem`, in `out` or a new
    array.
    """
    problem = kernel.problem
    assert isinstance(problem, Conv)
    shape = (problem.mb, problem.oc, *sizes)
    if out is not None and as_array(names["dst"], out).shape != shape:
        raise UsageError(f"{names['dst']}: shape is {out.shape}; legal is {shape}", code="shape")
    arrays: dict[str, Given] = {"src": x, "wei": deconvolution_weights(problem, w)}
    if bias is not None:
        arrays["bia"] = bias
    if sizes == problem.o:
        return kernel.run_as(names, arrays if out is None else {**arrays, "dst": out})["dst"]
    # Only with a dilation may the output exceed the reached elements by a stride or more.
    steps = [step for step in problem.post_ops if isinstance(step, Eltwise)]
    if len(steps) < len(problem.post_ops):
        raise UnsupportedError(
            f"{print_post_ops(problem.post_ops)} on an output of {sizes}, where no source reaches elements beyond "
            f"{problem.o}; available are element-wise functions",
            code="unsupported-option",
        )
    whole = _empty(problem, shape) if out is None else out
    reached = tuple(slice(size) for size in problem.o)
    arrays["dst"] = whole[(slice(None), slice(None), *reached)]
    kernel.run_as(names, arrays)
    unreached = np.ones(sizes, np.bool_)
    unreached[reached] = False
    value: Array = np.zeros(problem.oc) if bias is None else bias.astype(np.float64)
    for step in steps:
        value = step.apply(value)
    whole[..., unreached] = convert(value, problem.dst_type)[:, None]
    return whole


def _empty(problem: Conv, shape: tuple[int, ...]) -> Array:
    """Return a new array with the memory order of the problem's result: channels first or last."""
    dtype = TYPES[problem.dst_type].numpy
    if problem.dtag != "axb":
        return np.empty(shape, dtype)
    return np.moveaxis(np.empty((shape[0], *shape[2:], shape[1]), dtype), -1, 1)
