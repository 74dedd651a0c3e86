"""ONNX's convolutions and integer matrix products (operator set 22) as functions on arrays.

Inputs have ONNX's order and names; attributes are keywords. Arrays are (N, C, *spatial) with one to three spatial axes.
Scales and zero points are arguments of a kernel, so one kernel serves all their values; an all-zero zero point is
omitted from the kernel.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from convsmith.frontend.arguments import data_type
from convsmith.frontend.numpy_api import compile
from convsmith.frontend.onnx_matrices import Product
from convsmith.frontend.onnx_values import (
    Points,
    Scalars,
    bias,
    given,
    one_or,
    present,
    quantities,
    scales,
    zero_points,
)
from convsmith.frontend.onnx_window import Numbers, OperandNames, convolution, transposed, window
from convsmith.frontend.transposed import run_transposed
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import BinaryPostOp, Eltwise, PostOp
from convsmith.runtime.arrays import Array, takes_arrays
from convsmith.runtime.border import Names

__all__ = ["conv", "conv_integer", "conv_transpose", "matmul_integer", "qlinear_conv", "qlinear_matmul"]

_FLOATS = ("f32", "f64", "f16", "bf16")
_BYTES = ("u8", "s8")
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
    dtype = data_type("X", X, _FLOATS)
    data_type("W", W, (dtype,))
    options = _float_options(dtype, B)
    problem = convolution(OperandNames("X", "W"), X.shape, W.shape, attributes, **options)
    arrays = {"src": X, "wei": W.reshape(problem.wei_shape)}
    if B is not None:
        arrays["bia"] = bias(B, dtype, problem.oc)
    return compile(problem).run(**arrays)["dst"]


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
    dtype = data_type("X", X, _FLOATS)
    data_type("W", W, (dtype,))
    problem, shape = transposed(OperandNames("X", "W"), X.shape, W.shape, attributes, **_float_options(dtype, B))
    checked = None if B is None else bias(B, dtype, problem.oc)
    return run_transposed(compile(problem), shape, _NAMES, X, W, checked, None)


@takes_arrays
def conv_integer(
    x: Array, w: Array, x_zero_point: Scalars | None = None, w_zero_point: Scalars | None = None, *,
    auto_pad: str = "NOTSET", dilations: Numbers = None, group: int = 1, kernel_shape: Numbers = None,
    pads: Numbers = None, strides: Numbers = None,
) -> Array:  # fmt: skip
    """`ConvInteger`: convolve x with w, u8 or s8, less their zero points, and return s32 sums.

    `x_zero_point` is one number; `w_zero_point` is one number or one per output channel. Padding contributes nothing.
    """
    attributes = window(auto_pad, dilations, group, kernel_shape, pads, strides)
    dt = (data_type("x", x, _BYTES), data_type("w", w, _BYTES), "s32")
    points = {
        "src": _points("x_zero_point", x_zero_point, dt[0]),
        "wei": _points("w_zero_point", w_zero_point, dt[1], w.shape[0] if w.ndim else 1),
    }
    problem = convolution(OperandNames("x", "w"), x.shape, w.shape, attributes, dt=dt, zero_points=quantities(points))
    return compile(problem).run(src=x, wei=w.reshape(problem.wei_shape), **given(points))["dst"]


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
    dt = (data_type("x", x, _BYTES), data_type("w", w, _BYTES), data_type("y_zero_point", y_zero_point, _BYTES))
    channels = w.shape[0] if w.ndim else 1
    points = {
        "src": _points("x_zero_point", x_zero_point, dt[0]),
        "wei": _points("w_zero_point", w_zero_point, dt[1], channels),
        "dst": _points("y_zero_point", y_zero_point, dt[2]),
    }
    scale = one_or("x_scale", scales("x_scale", x_scale), 1) * one_or("w_scale", scales("w_scale", w_scale), channels)
    problem = convolution(
        OperandNames("x", "w"), x.shape, w.shape, attributes, dt=dt, zero_points=quantities(points),
        post_ops=_requantise(2 if scale.size > 1 else 0), **({} if B is None else {"dir": "FWD_B", "bia_dt": "s32"}),
    )  # fmt: skip
    arrays = {"src": x, "wei": w.reshape(problem.wei_shape), **given(points)}
    if B is not None:
        arrays["bia"] = bias(B, "s32", problem.oc)
    arrays["post_op_0"] = scale.reshape(1, -1, *(1,) * problem.rank)
    arrays["post_op_1"] = one_or("y_scale", scales("y_scale", y_scale), 1).reshape((1,) * x.ndim)
    return compile(problem).run(**arrays)["dst"]


@takes_arrays
def matmul_integer(
    A: Array, B: Array, a_zero_point: Scalars | None = None, b_zero_point: Scalars | None = None
) -> Array:
    """`MatMulInteger`: numpy.matmul of A and B, u8 or s8, less their zero points; returns s32 sums.

    `a_zero_point` is one number or one per row, `b_zero_point` one or one per column; with batch dims they are (..., M,
    1) and (..., 1, N). A kernel takes one zero point for A and the same columns of zero points in every batch for B;
    the contribution of differences from these is added to the sums afterwards, exactly.
    """
    dt = (data_type("A", A, _BYTES), data_type("B", B, _BYTES), "s32")
    product = Product("A", A, "B", B)
    a = product.rows("a_zero_point", zero_points("a_zero_point", a_zero_point, dt[0]))
    b = product.columns("b_zero_point", zero_points("b_zero_point", b_zero_point, dt[1]))
    a_point, b_point, correction = product.points(a, b)
    points = {"src": present(a_point), "wei": present(b_point)}
    problem = _product(product.a.shape, product.b.shape, dt=dt, zero_points=quantities(points))
    sums = compile(problem).run(src=product.a, wei=product.b, **given(points))["dst"]
    return product.result(sums if correction is None else np.add(sums, correction).astype(np.int32))


@takes_arrays
def qlinear_matmul(
    a: Array, a_scale: Scalars, a_zero_point: Scalars, b: Array, b_scale: Scalars, b_zero_point: Scalars,
    y_scale: Scalars, y_zero_point: Array,
) -> Array:  # fmt: skip
    """`QLinearMatMul`: saturate(round(sums * (a_scale * b_scale) / y_scale) + y_zero_point).

    Types and rounding are those of `qlinear_conv`. Zero points are as in `matmul_integer`, except that the correction
    is added to the sums in f32. Scales, f32, f16 or bf16, have the shapes of zero points.
    """
    dt = (data_type("a", a, _BYTES), data_type("b", b, _BYTES), data_type("y_zero_point", y_zero_point, _BYTES))
    product = Product("a", a, "b", b)
    rows = product.rows("a_zero_point", zero_points("a_zero_point", a_zero_point, dt[0]))
    columns = product.columns("b_zero_point", zero_points("b_zero_point", b_zero_point, dt[1]))
    a_point, b_point, correction = product.points(rows, columns)
    points = {
        "src": present(a_point), "wei": present(b_point), "dst": _points("y_zero_point", y_zero_point, dt[2]),
    }  # fmt: skip
    scale = product.rows("a_scale", scales("a_scale", a_scale)) * product.columns("b_scale", scales("b_scale", b_scale))
    mask = sum(1 << axis for axis, size in enumerate(scale.shape) if size > 1)
    options = {} if correction is None else {"bia_mask": (1 << scale.ndim) - 1, "bia_dt": "s32"}
    problem = _product(
        product.a.shape, product.b.shape, dt=dt, zero_points=quantities(points), post_ops=_requantise(mask), **options
    )
    arrays = {"src": product.a, "wei": product.b, **given(points)}
    if correction is not None:
        arrays["bia"] = np.broadcast_to(correction, problem.bias_shape).astype(np.int32)
    arrays["post_op_0"] = scale
    arrays["post_op_1"] = one_or("y_scale", scales("y_scale", y_scale), 1).reshape((1,) * scale.ndim)
    return product.result(compile(problem).run(**arrays)["dst"])


@lru_cache(1024)
def _product(src: tuple[int, ...], wei: tuple[int, ...], **options: Any) -> Matmul:
    return Matmul(src=src, wei=wei, **options)


def _points(name: str, values: Scalars | None, dtype: str, count: int = 1) -> Points:
    return present(one_or(name, zero_points(name, values, dtype), count))


def _float_options(dtype: str, B: Array | None) -> dict[str, Any]:
    options: dict[str, Any] = {"dt": (dtype,) * 3}
    return options if B is None else options | {"dir": "FWD_B", "bia_dt": dtype}


@lru_cache
def _requantise(mask: int) -> tuple[PostOp, ...]:
    """Return the post-ops that multiply by the sums' scale, divide by the result's scale and round to an integer."""
    return (BinaryPostOp("mul", "f32", mask), BinaryPostOp("div"), Eltwise("round"))


def __dir__() -> list[str]:
    return list(__all__)
