"""Convolutions and products of bytes, with the epilogue that converts their sums to floats or to bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from convsmith.diag.record import record
from convsmith.network.graph import IntegerConstant, NetworkNode
from convsmith.network.quantised.codes import Code
from convsmith.problem.attributes import Quantity
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import BinaryPostOp, Eltwise, PostOp
from convsmith.runtime.arrays import Array

__all__ = ["IntegerProduct", "integer_product", "scaled", "zero_points"]

_LARGEST = 2**31 - 1
_ROUNDED = 2.0**-22
"""The largest relative error of a whole number times a scale in f32, whose factors are rounded too."""


@record(frozen=True)
class IntegerProduct:
    """A product of bytes: its problem, its `constants` by array, and the arrays that are values: the `bytes` of a value
    of the product of floats, or its `floats`, by the name of the array there.
    """

    work: Conv | Matmul
    constants: Mapping[str, Array] = field(repr=False)
    bytes: Mapping[str, str]
    floats: Mapping[str, str]


def integer_product(
    node: NetworkNode, codes: Mapping[str, Code], result: Code | None, constants: Mapping[str, Array],
    integers: Mapping[str, IntegerConstant],
) -> IntegerProduct | None:  # fmt: skip
    """Return the product of bytes that computes `node`, a product of floats, some of whose arrays have `codes`; None if
    there is none. A `result` is converted to bytes of that code.

    The factors are bytes, the weights constants with one scale for each output channel, or one.
    """
    assert isinstance(node.work, Conv | Matmul)
    source, weights = codes.get("src"), _weights(node, codes, integers)
    if source is None or weights is None or node.work.dt != ("f32",) * 3 or node.work.scales or node.work.zero_points:
        return None
    return _ProductOnBytes(node, node.work, source, weights, codes, result, constants).made()


@record(frozen=True)
class _WeightBytes:
    """Weights of `type` with one scale and one zero point, or one for each output channel; `values` if they are known.
    """

    type: str
    scale: Array
    point: Array
    values: Array | None


def _weights(
    node: NetworkNode, codes: Mapping[str, Code], integers: Mapping[str, IntegerConstant]
) -> _WeightBytes | None:
    """Return the weights as bytes, signed ones if they are constants; None if they are floats, or scales differ within
    a channel.
    """
    code = codes.get("wei")
    if code is not None:
        return _WeightBytes(code.type, np.array([code.scale], np.float32), np.array([code.point], np.int32), None)
    held = integers.get(node.arguments["wei"])
    if held is None or held.values.dtype not in (np.int8, np.uint8) or held.scale.dtype != np.float32:
        return None
    scale, point = (_by_channel(node.work, x) for x in (held.scale, held.point))
    if scale is None or point is None:
        return None
    values = held.values
    if values.dtype == np.uint8:
        values, point = (values.astype(np.int32) - 128).astype(np.int8), point - 128
    return _WeightBytes("s8", scale, point.astype(np.int32), values)


def _by_channel(work: Any, x: Array) -> Array | None:
    """Return one number, or one for each output channel, of an array of the weights' shape; None if they differ."""
    if isinstance(work, Conv):
        rows: Any = x.reshape(work.oc, -1)
    else:
        rows = np.moveaxis(x, -1, 0).reshape(x.shape[-1], -1)
    if (rows != rows[:, :1]).any():
        return None
    found = np.ascontiguousarray(rows[:, 0])
    return found[:1] if (found == found[0]).all() else found


class _ProductOnBytes:
    """Makes one product of bytes."""

    def __init__(
        self, node: NetworkNode, work: Conv | Matmul, source: Code, weights: _WeightBytes, codes: Mapping[str, Code],
        result: Code | None, constants: Mapping[str, Array],
    ) -> None:  # fmt: skip
        self._node, self._work, self._source, self._weights = node, work, source, weights
        self._codes, self._result, self._known = codes, result, constants
        self._constants: dict[str, Array] = {}
        self._shift: Any = None
        self._values = {"src": "src"}
        self._floats: dict[str, str] = {}
        self._post_ops: list[PostOp] = []

    def made(self) -> IntegerProduct | None:
        """Return the product; None if its bias is not constant."""
        options: dict[str, Any] = {}
        if "bia" in self._node.arguments:
            held = self._known.get(self._node.arguments["bia"])
            if held is None:
                return None
            options = self._bias(held)
        if self._weights.values is None:
            self._values["wei"] = "wei"
        else:
            self._constants["wei"] = self._weights.values
        self._steps()
        dt = (self._source.type, self._weights.type, "f32" if self._result is None else self._result.type)
        work = replace(
            self._work, dt=dt, zero_points=tuple(self._points()), post_ops=tuple(self._post_ops), **options
        )  # fmt: skip
        return IntegerProduct(work, self._constants, self._values, self._floats)

    @property
    def _scale(self) -> Any:
        """The numbers by which sums are multiplied."""
        weights: Any = self._weights.scale
        return np.float32(self._source.scale) * weights

    def _bias(self, held: Array) -> dict[str, Any]:
        """Return the fields of the bias `held`. Sums begin with it if it is whole numbers in their unit; if not, it is
        the first step after them.
        """
        bias, scale = held.reshape(-1).astype(np.float64), self._scale.astype(np.float64)
        with np.errstate(all="ignore"):
            wide = np.rint(bias / scale)
            is_whole = np.abs(wide * scale - bias) <= np.abs(bias) * _ROUNDED
        if (is_whole & (np.abs(wide) <= _LARGEST)).all():
            self._constants["bia"] = wide.astype(np.int32).reshape(held.shape)
            return {"bia_dt": "s32"}
        self._shift = held
        return {"bia_dt": "", **({"dir": "FWD_D"} if isinstance(self._work, Conv) else {"bia_mask": None})}

    def _points(self) -> list[Quantity]:
        """Return the zero points that are not zero."""
        found = []
        rows = [("src", np.array([self._source.point], np.int32)), ("wei", self._weights.point)]
        if self._result is not None:
            rows.append(("dst", np.array([self._result.point], np.int32)))
        for argument, point in rows:
            if point.any():
                found.append(zero_points(argument, point))
                self._constants[f"zero_points_{argument}"] = point
        return found

    # -- the epilogue
    def _steps(self) -> None:
        """Add the steps from sums to the result: sums are in units of `scale`, a result in units of its code."""
        steps: Sequence[PostOp] = self._work.post_ops
        unit = 1.0
        if self._result is not None:
            steps = self._result.without_saturation(steps)
            if all(scaled(step, 1) is not None or self._adds(n, step) for n, step in enumerate(steps)):
                unit = self._result.scale
        first = self._codes["post_op_0"].scale if steps and self._adds(0, steps[0]) else unit
        self._operand("mul", self._scale / np.float32(first))
        if self._shift is not None:
            self._operand("add", self._shift / np.float32(first))
        for n, step in enumerate(steps):
            if self._adds(n, step):
                self._add_bytes(n, first if n == 0 else unit, unit)
            elif isinstance(step, Eltwise):
                self._post_ops.append(scaled(step, unit) or step)
            else:
                assert isinstance(step, BinaryPostOp)
                self._floats[f"post_op_{len(self._post_ops)}"] = f"post_op_{n}"
                self._post_ops.append(step)
        if self._result is not None:
            if unit != self._result.scale:
                self._operand("mul", self._result.factor)
            self._post_ops.append(Eltwise("round"))

    def _adds(self, n: int, step: PostOp) -> bool:
        """Return whether a step adds a value of bytes."""
        return isinstance(step, BinaryPostOp) and step.alg == "add" and f"post_op_{n}" in self._codes

    def _add_bytes(self, n: int, unit: float, after: float) -> None:
        """Add the addition of a value of bytes, before which numbers are in one unit, and after which in another."""
        code, step = self._codes[f"post_op_{n}"], self._work.post_ops[n]
        assert isinstance(step, BinaryPostOp)
        if unit != code.scale:
            self._operand("mul", np.float32(unit) / np.float32(code.scale))
        self._values[f"post_op_{len(self._post_ops)}"] = f"post_op_{n}"
        self._post_ops.append(replace(step, dtype=code.type))
        if code.point:
            self._operand("sub", np.float32(code.point))
        self._operand("mul", np.float32(code.scale) / np.float32(after))

    def _operand(self, alg: str, number: Any) -> None:
        """Add a step with a number, or one for each output channel, that is an array of the call."""
        values = np.asarray(number, np.float32).reshape(-1)
        axis, rank = self._work.channels, len(self._work.product_shape)
        wide = values.size > 1
        self._constants[f"post_op_{len(self._post_ops)}"] = values.reshape(
            tuple(values.size if n == axis and wide else 1 for n in range(rank))
        )
        self._post_ops.append(BinaryPostOp(alg, "f32", 1 << axis if wide else 0))


def zero_points(argument: str, point: Array) -> Quantity:
    """Return the attribute of the zero points of an array: one, or one for each output channel."""
    policy = "common" if point.size == 1 else "per_oc"
    return Quantity(argument, policy, (0,) if point.size == 1 else (), "s32")


def scaled(step: PostOp, unit: float) -> PostOp | None:
    """Return a step on numbers in multiples of `unit`; None if it has no such form."""
    if not isinstance(step, Eltwise):
        return None
    if step.alg == "relu":
        return step
    if step.alg == "clip":
        low, high = (float(np.float32(x) / np.float32(unit)) for x in (step.alpha, step.beta))
        return replace(step, alpha=low, beta=high)
    return None
