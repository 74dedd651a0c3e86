"""The numpy reference: the right numbers of a problem, in oneDNN's order.

    sums = sum (src - src zero point) * (wei - weights' zero point)      over taps inside the image
    v    = sums * src scale * weights' scale + bias, then the post-ops
    dst  = v / dst scale + dst zero point                                rounded to nearest even, saturated

Sums of integers have 32 bits and wrap; they become floating-point numbers before the first step that needs one, so
that an s32 destination without scale, bias, post-op and zero point of its own stays exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.problem import products
from convsmith.problem.attributes import SCALES, ZERO_POINTS, Kind
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import Binary, Depthwise, Eltwise, Prelu, Sum
from convsmith.problem.problem import Problem
from convsmith.problem.types import TYPES, convert

__all__ = ["conv_reference", "reference"]

Array = np.ndarray[Any, Any]


def reference(
    problem: Problem, arrays: Mapping[str, Array], dtype: Any = np.float64, raw: bool = False
) -> dict[str, Array]:
    """The outputs, by name, from arrays of the shapes that `problem.inputs` state; defaults may be left out.

    `dtype` (float64 or float32) holds sums of floating-point numbers, and every step after the sums is rounded to it.
    `raw` leaves out the conversion to the outputs' types. UsageError: an array is missing, in excess, or of another
    shape.
    """
    run = _Run(problem, _checked(problem, arrays), np.dtype(dtype))
    if problem.forward:
        values = {"dst": run.destination()}
    else:
        assert isinstance(problem, Conv)
        values = run.source_gradient() if problem.dir == "BWD_D" else run.weight_gradients()
    return values if raw else {tensor.name: convert(values[tensor.name], tensor.dtype) for tensor in problem.outputs}


def conv_reference(problem: Conv, src: Array, wei: Array, bias: Array | None = None, dtype: Any = np.float64) -> Array:
    """The destination of a forward problem without other arrays, before its conversion to the destination's type."""
    arrays = {"src": src, "wei": wei} | ({} if bias is None else {"bia": bias})
    return reference(problem, arrays, dtype, raw=True)["dst"]


class _Run:
    """One evaluation: the problem, its arrays, and the type of floating-point numbers."""

    def __init__(self, problem: Problem, arrays: Mapping[str, Array], dtype: np.dtype[Any]) -> None:
        self._problem = problem
        self._arrays = arrays
        self._dtype = dtype

    def destination(self) -> Array:
        """Forward, unconverted."""
        problem = self._problem
        src = self._factor("src", self._source_points())
        wei = self._factor("wei", self._weight_points())
        if isinstance(problem, Matmul):
            sums = products.matrix_product(src, wei)
        else:
            assert isinstance(problem, Conv)
            sums = products.forward(problem, src, wei)
        sums = _wrapped(sums)
        steps = problem.scales or problem.post_ops or problem.bias or problem.quantity(ZERO_POINTS, "dst")
        if problem.dt[2] == "s32" and not steps:
            return sums
        v = self._scaled(sums, "src", "wei")
        if problem.bias:
            bias = self._arrays["bia"].astype(self._dtype)
            v = v + (bias if isinstance(problem, Matmul) else self._channels(bias))
        with np.errstate(all="ignore"):
            return self._post_ops(v)

    def source_gradient(self) -> dict[str, Array]:
        """`diff_src`, unconverted."""
        assert isinstance(self._problem, Conv)
        sums = products.source_gradient(self._problem, self._factor("wei"), self._factor("diff_dst"))
        return {"diff_src": self._quantised(self._scaled(_wrapped(sums), "wei", "dst"), "src")}

    def weight_gradients(self) -> dict[str, Array]:
        """`diff_wei`, and `diff_bia` where it is asked for, unconverted."""
        assert isinstance(self._problem, Conv)
        src, diff_dst = self._factor("src"), self._factor("diff_dst")
        gradients = {"diff_wei": products.weight_gradient(self._problem, src, diff_dst)}
        if self._problem.dir == "BWD_WB":
            gradients["diff_bia"] = products.bias_gradient(diff_dst)
        return gradients

    # -- steps ------------------------------------------------------------------------------------------------------

    def _post_ops(self, v: Array) -> Array:
        result = "dst"
        for n, op in enumerate(self._problem.post_ops):
            operand = self._arrays.get(f"post_op_{n}")
            if isinstance(op, Eltwise):
                v = op.apply(v)
            elif isinstance(op, Sum):
                old = np.ascontiguousarray(convert(self._arrays["dst"], self._problem.dst_type))
                v = op.apply(v, old if op.dtype is None else old.view(TYPES[op.dtype].numpy))
            elif isinstance(op, Depthwise):
                assert operand is not None
                v = self._depthwise(v, operand)
                result = "attr_post_op_dw_dst"
            else:
                assert isinstance(op, Binary | Prelu) and operand is not None
                v = op.apply(v, operand)
        return self._quantised(v, result)

    def _depthwise(self, v: Array, wei: Array) -> Array:
        """The fused convolution of `v`, once that has become what the destination of the first would hold."""
        assert isinstance(self._problem, Conv)
        fused = self._problem.fused
        middle = convert(self._quantised(v, "dst"), fused.dt[0])
        point = self._quantity(ZERO_POINTS, "dst")
        sums_type = np.int64 if fused.acc == "s32" else self._dtype
        shifted = middle.astype(sums_type)
        if point is not None:
            shifted = shifted - self._channels(point).astype(sums_type)
        scale = self._quantity(SCALES, "dst")
        sums = _wrapped(products.forward(fused, shifted, wei.astype(sums_type))).astype(self._dtype)
        if scale is not None:
            sums = sums * self._channels(scale.astype(self._dtype))
        return self._scaled(sums, "attr_post_op_dw_wei")

    def _quantised(self, v: Array, argument: str) -> Array:
        """What the array of `argument` holds for the real values `v`, unrounded."""
        scale, point = self._quantity(SCALES, argument), self._quantity(ZERO_POINTS, argument)
        if scale is not None:
            v = v / self._channels(scale.astype(self._dtype))
        return v if point is None else v + self._channels(point.astype(self._dtype))

    def _scaled(self, sums: Array, *arguments: str) -> Array:
        """Sums, times the scales of the arguments, one after the other."""
        v = sums.astype(self._dtype)
        for argument in arguments:
            scale = self._quantity(SCALES, argument)
            if scale is not None:
                v = v * self._channels(scale.astype(self._dtype))
        return v

    # -- arrays -----------------------------------------------------------------------------------------------------

    def _factor(self, name: str, points: Array | None = None) -> Array:
        """One factor of the products: whole numbers where both are, less its zero points."""
        x = self._arrays[name].astype(np.int64 if self._problem.acc == "s32" else self._dtype)
        return x if points is None else x - points

    def _source_points(self) -> Array | None:
        points = self._quantity(ZERO_POINTS, "src")
        return None if points is None else self._channels(points).astype(np.int64)

    def _weight_points(self) -> Array | None:
        points = self._quantity(ZERO_POINTS, "wei")
        if points is None or points.size == 1 or isinstance(self._problem, Matmul):
            return points
        assert isinstance(self._problem, Conv)
        outer = self._problem.wei_shape[: 2 if self._problem.has_groups else 1]
        each = points.reshape(-1, *(1,) * (len(outer) - 1)) if points.size < np.prod(outer) else points.reshape(outer)
        return each.reshape(*each.shape, *(1,) * (len(self._problem.wei_shape) - len(outer)))

    def _quantity(self, kind: Kind, argument: str) -> Array | None:
        """Values of the scale or zero point of `argument`: one, or one for each channel; None where it has none."""
        if self._problem.quantity(kind, argument) is None:
            return None
        values = self._arrays[self._problem.attribute_name(kind, argument)]
        p = self._problem
        if kind is SCALES and argument == "wei" and isinstance(p, Conv) and values.size == p.g > 1:
            values = np.repeat(values, p.oc // p.g)  # one for each group
        return values.astype(np.int64) if kind is ZERO_POINTS else values

    def _channels(self, values: Array) -> Array:
        """One value, or one for each channel, against the result."""
        axis, rank = self._problem.channels, len(self._problem.product_shape)
        return values.reshape(-1, *[1] * (rank - 1 - axis))


def _wrapped(sums: Array) -> Array:
    """Sums of integers modulo 2**32, as 32-bit accumulators hold them; others as they are."""
    return sums.astype(np.int32).astype(np.int64) if np.issubdtype(sums.dtype, np.integer) else sums


def _checked(problem: Problem, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs by name, with the defaults of those that are not given."""
    tensors = {tensor.name: tensor for tensor in problem.inputs}
    for name in arrays:
        if name not in tensors:
            raise UsageError(f"{name} is no input of {problem}; its inputs are {', '.join(tensors)}", code="bad-array")
    checked = {}
    for name, tensor in tensors.items():
        if name in arrays:
            array = np.asarray(arrays[name])
        elif tensor.default is not None:
            array = np.broadcast_to(convert(np.asarray(tensor.default, np.float64), tensor.dtype), tensor.shape)
        else:
            raise UsageError(f"{name} is missing; {problem} takes it, of shape {tensor.shape}", code="bad-array")
        if array.shape != tensor.shape:
            raise UsageError(f"{name} has shape {array.shape}; {problem} expects {tensor.shape}", code="bad-shape")
        checked[name] = array
    return checked
