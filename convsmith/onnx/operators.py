"""ONNX's convolutions and integer matrix products (operator set 22) as functions on arrays.

Inputs have ONNX's order and names; attributes are keywords. Arrays are (N, C, *spatial) with one to three spatial axes.
Scales and zero points are arguments of a kernel, so one kernel serves all their values; an all-zero zero point is
omitted from the kernel.
"""

from __future__ import annotations

from convsmith.frontend.numpy_api import compile
from convsmith.frontend.transposed import run_transposed
from convsmith.onnx.calls import (
    conv_call,
    conv_integer_call,
    conv_transpose_problem,
    matmul_integer_call,
    qlinear_conv_call,
    qlinear_matmul_call,
)
from convsmith.onnx.values import Scalars
from convsmith.onnx.window import Numbers, window
from convsmith.runtime.arrays import Array, takes_arrays
from convsmith.runtime.border import Names

__all__ = ["conv", "conv_integer", "conv_transpose", "matmul_integer", "qlinear_conv", "qlinear_matmul"]

_NAMES = Names({"src": "X", "wei": "W", "bia": "B", "dst": "Y"})


@takes_arrays
def conv(
    X: Array, W: Array, B: Array | None = None, *, auto_pad: str = "NOTSET", dilations: Numbers = None,
    group: int = 1, kernel_shape: Numbers = None, pads: Numbers = None, strides: Numbers = None,
) -> Array:  # fmt: skip
    """`Conv`: convolve X (N, C, *) with W (M, C / group, *) and add the bias B (M,); all f32, f64, f16 or bf16.

    Sums of f16 and bf16 are f32 and are rounded once. `pads` lists all front pads, then all back pads; `auto_pad` is
    "NOTSET", "SAME_UPPER", "SAME_LOWER" or "VALID".
    """
    attributes = window(auto_pad, dilations, group, kernel_shape, pads, strides)
    return conv_call(X, W, B, attributes).run()


@takes_arrays
def conv_transpose(
    X: Array, W: Array, B: Array | None = None, *, auto_pad: str = "NOTSET", dilations: Numbers = None,
    group: int = 1, kernel_shape: Numbers = None, output_padding: Numbers = None, output_shape: Numbers = None,
    pads: Numbers = None, strides: Numbers = None,
) -> Array:  # fmt: skip
    """`ConvTranspose`: transposed convolution of X (N, C, *) with W (C, M / group, *), plus bias B (M,); types as in
    `conv`.

    `output_shape` holds the spatial sizes only and determines the pads; the odd element of a pad is at the front unless
    `auto_pad` is "SAME_UPPER". An output element that no element of X reaches equals the bias, or 0.
    """
    attributes = window(auto_pad, dilations, group, kernel_shape, pads, strides, output_padding, output_shape)
    problem, shape, checked = conv_transpose_problem(X, W, B, attributes)
    return run_transposed(compile(problem), shape, _NAMES, X, W, checked, None)


@takes_arrays
def conv_integer(
    x: Array, w: Array, x_zero_point: Scalars | None = None, w_zero_point: Scalars | None = None, *,
    auto_pad: str = "NOTSET", dilations: Numbers = None, group: int = 1, kernel_shape: Numbers = None,
    pads: Numbers = None, strides: Numbers = None,
) -> Array:  # fmt: skip
    """`ConvInteger`: convolve x with w (u8 or s8) after subtracting their zero points; return s32 sums.

    `x_zero_point` is one number; `w_zero_point` is one number or one per output channel. Padding contributes nothing.
    """
    attributes = window(auto_pad, dilations, group, kernel_shape, pads, strides)
    return conv_integer_call(x, w, x_zero_point, w_zero_point, attributes).run()


@takes_arrays
def qlinear_conv(
    x: Array, x_scale: Scalars, x_zero_point: Scalars, w: Array, w_scale: Scalars, w_zero_point: Scalars,
    y_scale: Scalars, y_zero_point: Array, B: Array | None = None, *, auto_pad: str = "NOTSET",
    dilations: Numbers = None, group: int = 1, kernel_shape: Numbers = None, pads: Numbers = None,
    strides: Numbers = None,
) -> Array:  # fmt: skip
    """`QLinearConv`: saturate(round((sums + B) * (x_scale * w_scale) / y_scale) + y_zero_point).

    The result has the type of `y_zero_point`. Sums are exact in 32 bits; each later step is rounded to f32; `round` is
    to nearest even. `w_scale` and `w_zero_point` are one number or one per output channel; B is s32.
    """
    attributes = window(auto_pad, dilations, group, kernel_shape, pads, strides)
    given = (x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B)
    return qlinear_conv_call(*given, attributes).run()


@takes_arrays
def matmul_integer(
    A: Array, B: Array, a_zero_point: Scalars | None = None, b_zero_point: Scalars | None = None
) -> Array:
    """`MatMulInteger`: numpy.matmul of A and B (u8 or s8) after subtracting their zero points; return s32 sums.

    `a_zero_point` is one number or one per row, `b_zero_point` one or one per column; with batch dims they are (..., M,
    1) and (..., 1, N). A kernel takes one zero point for A and the same columns of zero points in every batch for B;
    the contribution of differences from these is added to the sums afterwards, exactly.
    """
    return matmul_integer_call(A, B, a_zero_point, b_zero_point).run()


@takes_arrays
def qlinear_matmul(
    a: Array, a_scale: Scalars, a_zero_point: Scalars, b: Array, b_scale: Scalars, b_zero_point: Scalars,
    y_scale: Scalars, y_zero_point: Array,
) -> Array:  # fmt: skip
    """`QLinearMatMul`: saturate(round(sums * (a_scale * b_scale) / y_scale) + y_zero_point).

    Types and rounding are as in `qlinear_conv`, zero points as in `matmul_integer`, except that the correction is added
    to the sums in f32. Scales (f32, f16 or bf16) have the shapes of zero points.
    """
    return qlinear_matmul_call(a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point).run()
