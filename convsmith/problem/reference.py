"""The numpy reference: the right numbers, computed in the plainest way that is fast enough to test with.

One step a kernel tap: the rectangle of outputs at which the tap meets the source is updated; elsewhere the term is
absent, so padding never multiplies an infinite or NaN weight. Independent of the compiler: no IR, no views.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.problem.conv import Conv

__all__ = ["conv_reference"]

Array = np.ndarray[tuple[int, ...], Any]


def conv_reference(problem: Conv, src: Array, wei: Array, bias: Array | None = None, dtype: Any = np.float64) -> Array:
    """The destination (shape: `problem.dst_shape`) from logical arrays of the shapes that `problem` states.

    Sums are held in `dtype`: float64, or int64 for integer-valued data (exact). Bias and post-ops follow; integer sums
    become float64 before the first post-op. UsageError: a shape differs, or a bias is missing or in excess.
    """
    _check(problem, src, wei, bias)
    g, rank = problem.g, problem.rank
    x = src.astype(dtype).reshape(problem.mb, g, problem.ic // g, *problem.i)
    w = wei.astype(dtype).reshape(g, problem.oc // g, problem.ic // g, *problem.k)
    sums = np.zeros((problem.mb, g, problem.oc // g, *problem.o), dtype)
    # BLAS may skip terms whose factor is zero, which hides NaN from 0 * inf.
    finite = bool(np.isfinite(x).all() and np.isfinite(w).all())
    for taps in itertools.product(*map(range, problem.k)):
        read: list[Any] = [...]
        written: list[Any] = [...]
        for axis, tap in enumerate(taps):
            low, high = problem.tap_range(axis, tap)
            start = low * problem.s[axis] + tap * (problem.d[axis] + 1) - problem.p[axis]
            written.append(slice(low, high))
            read.append(
                slice(start, start + (high - low) * problem.s[axis], problem.s[axis]) if high > low else slice(0, 0)
            )
        pixels = x[tuple(read)]
        flat = pixels.reshape(*pixels.shape[:3], int(np.prod(pixels.shape[3:])))
        factors = w[(slice(None),) * 3 + taps]
        terms = np.matmul(factors, flat) if finite else np.einsum("goi,ngip->ngop", factors, flat)
        sums[tuple(written)] += terms.reshape(*terms.shape[:3], *pixels.shape[3:])
    dst = sums.reshape(problem.dst_shape)
    if bias is not None:
        dst += bias.astype(dtype).reshape(-1, *[1] * rank)
    for post_op in problem.post_ops:
        dst = post_op.apply(dst.astype(np.result_type(dst, np.float32)))
    return dst


def _check(problem: Conv, src: Array, wei: Array, bias: Array | None) -> None:
    if (bias is not None) != problem.bias:
        raise UsageError(f"--dir={problem.dir} {'needs a' if problem.bias else 'takes no'} bias", code="bad-bias")
    given = [("src", src, problem.src_shape), ("wei", wei, problem.wei_shape)]
    if bias is not None:
        given.append(("bias", bias, problem.bias_shape))
    for name, array, shape in given:
        if array.shape != shape:
            raise UsageError(f"{name} has shape {array.shape}; {problem} expects {shape}", code="bad-shape")
