"""An operator of ONNX on given inputs as a problem with its arrays.

The array functions of `convsmith.onnx` run these problems; a profile of a model times them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.record import record
from convsmith.frontend.arguments import data_type
from convsmith.frontend.numpy_api import compile
from convsmith.frontend.transposed import deconvolution_weights
from convsmith.onnx.matrices import Product
from convsmith.onnx.values import (
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
from convsmith.onnx.window import OnnxWindow, OperandNames, convolution, transposed, window
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import BinaryPostOp, Eltwise, PostOp
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import Array

__all__ = [
    "NODE_CALLS", "KernelCall", "OperatorCall", "conv_call", "conv_integer_call", "conv_transpose_problem",
    "matmul_integer_call", "node_call", "qlinear_conv_call", "qlinear_matmul_call",
]  # fmt: skip

_FLOATS = ("f32", "f64", "f16", "bf16")
_BYTES = ("u8", "s8")


@record(frozen=True)
class KernelCall:
    """A problem with its input arrays by name; `finish` returns the operator's output, given the kernel's."""

    problem: Problem
    arrays: Mapping[str, Array]
    finish: Callable[[Array], Array] = field(default=lambda y: y)

    def run(self) -> Array:
        """Return the operator's output."""
        return self.finish(compile(self.problem).run(**self.arrays)["dst"])


def conv_call(X: Array, W: Array, B: Array | None, attributes: OnnxWindow) -> KernelCall:
    """Return the call of `Conv`."""
    dtype = data_type("X", X, _FLOATS)
    data_type("W", W, (dtype,))
    problem = convolution(OperandNames("X", "W"), X.shape, W.shape, attributes, **_float_options(dtype, B))
    arrays = {"src": X, "wei": W.reshape(problem.wei_shape)}
    if B is not None:
        arrays["bia"] = bias(B, dtype, problem.oc)
    return KernelCall(problem, arrays)


def conv_transpose_problem(
    X: Array, W: Array, B: Array | None, attributes: OnnxWindow
) -> tuple[Conv, tuple[int, ...], Array | None]:
    """Return the problem of `ConvTranspose`, the spatial shape of the operator's output, and the checked bias."""
    dtype = data_type("X", X, _FLOATS)
    data_type("W", W, (dtype,))
    problem, shape = transposed(OperandNames("X", "W"), X.shape, W.shape, attributes, **_float_options(dtype, B))
    return problem, shape, None if B is None else bias(B, dtype, problem.oc)


def _conv_transpose_call(X: Array, W: Array, B: Array | None, attributes: OnnxWindow) -> KernelCall:
    """Return the call of `ConvTranspose`. UnsupportedError if a part of the output is reached by no element of X."""
    problem, shape, checked = conv_transpose_problem(X, W, B, attributes)
    if shape != problem.o:
        raise UnsupportedError(
            f"the output {shape} has elements beyond {problem.o} that no source reaches; they are written outside of "
            "the kernel", code="unreached",
        )  # fmt: skip
    arrays = {"src": X, "wei": deconvolution_weights(problem, W)}
    return KernelCall(problem, arrays if checked is None else {**arrays, "bia": checked})


def conv_integer_call(
    x: Array, w: Array, x_zero_point: Scalars | None, w_zero_point: Scalars | None, attributes: OnnxWindow
) -> KernelCall:
    """Return the call of `ConvInteger`."""
    dt = (data_type("x", x, _BYTES), data_type("w", w, _BYTES), "s32")
    points = {
        "src": _points("x_zero_point", x_zero_point, dt[0]),
        "wei": _points("w_zero_point", w_zero_point, dt[1], w.shape[0] if w.ndim else 1),
    }
    problem = convolution(OperandNames("x", "w"), x.shape, w.shape, attributes, dt=dt, zero_points=quantities(points))
    return KernelCall(problem, {"src": x, "wei": w.reshape(problem.wei_shape), **given(points)})


def qlinear_conv_call(
    x: Array, x_scale: Scalars, x_zero_point: Scalars, w: Array, w_scale: Scalars, w_zero_point: Scalars,
    y_scale: Scalars, y_zero_point: Array, B: Array | None, attributes: OnnxWindow,
) -> KernelCall:  # fmt: skip
    """Return the call of `QLinearConv`."""
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
    return KernelCall(problem, arrays)


def matmul_integer_call(
    A: Array, B: Array, a_zero_point: Scalars | None, b_zero_point: Scalars | None
) -> KernelCall:
    """Return the call of `MatMulInteger`."""
    dt = (data_type("A", A, _BYTES), data_type("B", B, _BYTES), "s32")
    product = Product("A", A, "B", B)
    a = product.rows("a_zero_point", zero_points("a_zero_point", a_zero_point, dt[0]))
    b = product.columns("b_zero_point", zero_points("b_zero_point", b_zero_point, dt[1]))
    a_point, b_point, correction = product.points(a, b)
    points = {"src": present(a_point), "wei": present(b_point)}
    problem = _product(product.a.shape, product.b.shape, dt=dt, zero_points=quantities(points))

    def finish(sums: Array) -> Array:
        return product.result(sums if correction is None else np.add(sums, correction).astype(np.int32))

    return KernelCall(problem, {"src": product.a, "wei": product.b, **given(points)}, finish)


def qlinear_matmul_call(
    a: Array, a_scale: Scalars, a_zero_point: Scalars, b: Array, b_scale: Scalars, b_zero_point: Scalars,
    y_scale: Scalars, y_zero_point: Array,
) -> KernelCall:  # fmt: skip
    """Return the call of `QLinearMatMul`."""
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
    return KernelCall(problem, arrays, product.result)


# -- nodes of models
_ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides", "output_padding", "output_shape")
_DEFAULTS: dict[str, Any] = {"auto_pad": "NOTSET", "group": 1}


@record(frozen=True)
class OperatorCall:
    """The function that makes the call of an operator, the number of its inputs, the number of required inputs, and the
    positions of source and weights among them. A product has no window.
    """

    call: Callable[..., KernelCall]
    inputs: int
    needed: int
    factors: tuple[int, int]
    has_window: bool = True


NODE_CALLS: dict[str, OperatorCall] = {
    "Conv": OperatorCall(conv_call, 3, 2, (0, 1)),
    "ConvTranspose": OperatorCall(_conv_transpose_call, 3, 2, (0, 1)),
    "ConvInteger": OperatorCall(conv_integer_call, 4, 2, (0, 1)),
    "QLinearConv": OperatorCall(qlinear_conv_call, 9, 8, (0, 3)),
    "MatMulInteger": OperatorCall(matmul_integer_call, 4, 2, (0, 1), has_window=False),
    "QLinearMatMul": OperatorCall(qlinear_matmul_call, 8, 8, (0, 3), has_window=False),
}
"""The operators that a profile takes, by ONNX's names."""


def node_call(operator: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any]) -> KernelCall:
    """Return the call of a node with an `operator` of `NODE_CALLS`; a missing input is None.

    UsageError or UnsupportedError if no kernel computes it.
    """
    row = NODE_CALLS[operator]
    if len(inputs) > row.inputs or any(x is None for x in [*inputs, *[None] * row.needed][: row.needed]):
        raise UsageError(
            f"{operator} has {len(inputs)} inputs; legal are {row.needed} to {row.inputs}", code="inputs"
        )
    every = [*inputs, *[None] * (row.inputs - len(inputs))]
    if not row.has_window:
        return row.call(*every)
    return row.call(*every, window(**{name: attributes.get(name, _DEFAULTS.get(name)) for name in _ATTRIBUTES}))


# -- parts
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
