"""Sums of products of a problem in numpy, in the plainest form that is fast enough for tests.

Each step handles one kernel tap: it adds the products for the rectangle of coarse coordinates at which the tap reads
inside the fine side. Padding is skipped, not multiplied by zero, so an infinity or a NaN never meets it. This module
shares no code with the compiler: no IR, no views.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from convsmith.problem.conv import Conv

__all__ = ["bias_gradient", "forward", "matrix_product", "source_gradient", "weight_gradient"]

Array = np.ndarray[tuple[int, ...], Any]

_EXACT = 2**53
"""Largest integer up to which all integers are exact in float64."""


def forward(problem: Conv, src: Array, wei: Array) -> Array:
    """Return the destination of `problem`: sums of source times weights."""
    return (_to_fine if problem.deconv else _to_coarse)(problem, src, _grouped(problem, wei), problem.product_shape)


def source_gradient(problem: Conv, wei: Array, diff_dst: Array) -> Array:
    """Return the gradient of the source; elements that no tap reads are zero."""
    return (_to_coarse if problem.deconv else _to_fine)(problem, diff_dst, _grouped(problem, wei), problem.src_shape)


def weight_gradient(problem: Conv, src: Array, diff_dst: Array) -> Array:
    """Return the gradient of the weights; taps that read only padding are zero."""
    coarse, fine = (src, diff_dst) if problem.deconv else (diff_dst, src)
    a, b = _split_channels(problem, coarse), _split_channels(problem, fine)
    sums = np.zeros((problem.g, a.shape[2], b.shape[2], *problem.k), a.dtype)
    for taps, inside, at in _steps(problem):
        # Shapes (n, g, c, p) and (n, g, f, p); the reduction is over n and p.
        left, right = (np.moveaxis(_pixels(x[index]), 0, 2) for x, index in ((a, inside), (b, at)))
        left, right = (x.reshape(*x.shape[:2], -1) for x in (left, right))
        sums[(...,) + taps] = matrix_product(left, np.swapaxes(right, 1, 2))
    return (np.swapaxes(sums, 1, 2) if problem.deconv else sums).reshape(problem.wei_shape)


def bias_gradient(diff_dst: Array) -> Array:
    """Return the sums of `diff_dst` over all axes except channels."""
    result: Array = diff_dst.sum(axis=tuple(axis for axis in range(diff_dst.ndim) if axis != 1))
    return result


def matrix_product(a: Array, b: Array) -> Array:
    """Return the matrix product over the last two axes, broadcast over the others; exact for integers. NaN times 0 is
    NaN.
    """
    if np.issubdtype(a.dtype, np.integer):
        largest = int(np.abs(a).max(initial=0)) * int(np.abs(b).max(initial=0)) * max(a.shape[-1], 1)
        if largest < _EXACT:
            return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64))
    elif not (np.isfinite(a).all() and np.isfinite(b).all()):
        # BLAS may skip terms with a zero factor and so lose the NaN of 0 * inf.
        with np.errstate(invalid="ignore"):
            return np.asarray(np.einsum("...ij,...jk->...ik", a, b))
    return np.asarray(np.matmul(a, b))


def _to_coarse(problem: Conv, fine: Array, wei: Array, shape: tuple[int, ...]) -> Array:
    x = _split_channels(problem, fine)
    sums = np.zeros((problem.mb, problem.g, wei.shape[1], *problem.coarse), x.dtype)
    for taps, inside, at in _steps(problem):
        target = sums[inside]
        target += matrix_product(wei[(slice(None),) * 3 + taps], _pixels(x[at])).reshape(target.shape)
    return sums.reshape(shape)


def _to_fine(problem: Conv, coarse: Array, wei: Array, shape: tuple[int, ...]) -> Array:
    x = _split_channels(problem, coarse)
    sums = np.zeros((problem.mb, problem.g, wei.shape[2], *problem.fine), x.dtype)
    for taps, inside, at in _steps(problem):
        factors = np.swapaxes(wei[(slice(None),) * 3 + taps], 1, 2)
        target = sums[at]
        target += matrix_product(factors, _pixels(x[inside])).reshape(target.shape)
    return sums.reshape(shape)


def _steps(problem: Conv) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...], tuple[Any, ...]]]:
    """Yield each tap, the slices of coarse coordinates at which it reads the fine side, and the fine slices it reads
    there.
    """
    for taps in itertools.product(*map(range, problem.k)):
        inside: list[Any] = [...]
        at: list[Any] = [...]
        for axis, tap in enumerate(taps):
            low, high = problem.tap_range(axis, tap)
            stride = problem.s[axis]
            start = low * stride + tap * (problem.d[axis] + 1) - problem.p[axis]
            inside.append(slice(low, high))
            at.append(slice(start, start + (high - low) * stride, stride) if high > low else slice(0, 0))
        yield taps, tuple(inside), tuple(at)


def _grouped(problem: Conv, wei: Array) -> Array:
    """Return the weights as (g, channels of the coarse side, channels of the fine side, *k)."""
    grouped = wei.reshape(problem.g, problem.oc // problem.g, problem.ic // problem.g, *problem.k)
    return np.swapaxes(grouped, 1, 2) if problem.deconv else grouped


def _split_channels(problem: Conv, x: Array) -> Array:
    return x.reshape(x.shape[0], problem.g, x.shape[1] // problem.g, *x.shape[2:])


def _pixels(x: Array) -> Array:
    """Return `x` with all spatial axes flattened to one."""
    return x.reshape(*x.shape[:3], int(np.prod(x.shape[3:])))
