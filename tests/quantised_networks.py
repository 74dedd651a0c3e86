"""Small quantised ONNX networks, as nodes between conversions (QDQ) or as operators on bytes.

Scales are powers of two, so that every step is exact in single precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

__all__ = ["QuantisedBuilder", "exact_net"]

_TYPES = {"u8": np.uint8, "s8": np.int8}
Array = np.ndarray[Any, Any]


class QuantisedBuilder:
    """Builds a model whose values have bytes of `type`; methods take and return names of values of floats or bytes."""

    def __init__(self, type_: str = "u8", weights: str = "s8", seed: int = 0, by_channel: bool = True) -> None:
        self.type, self.weight_type, self.by_channel = type_, weights, by_channel
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.inputs: dict[str, list[int]] = {}
        self.codes: dict[str, tuple[str, str]] = {}

    def input(self, name: str, *shape: int) -> str:
        """Add an input of floats."""
        self.inputs[name] = list(shape)
        return name

    def held(self, array: Any) -> str:
        """Add a constant."""
        self.constants[name := f"c{len(self.constants)}"] = np.asarray(array)
        return name

    def op(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], f"{operator}_{name}", domain=domain, **attributes))
        return name

    def code(self, scale: float, point: int | None = None) -> tuple[str, str]:
        """Add a scale and a zero point; the default is near the middle of the bytes."""
        middle = {"u8": 120, "s8": -8}[self.type] if point is None else point
        return self.held(np.float32(scale)), self.held(_TYPES[self.type](middle))

    def bytes(self, x: str, scale: float = 1, point: int | None = None) -> str:
        """Add the conversion of floats to bytes."""
        code = self.code(scale, point)
        y = self.op("QuantizeLinear", x, *code)
        self.codes[y] = code
        return y

    def floats(self, x: str) -> str:
        """Add the conversion of bytes to floats."""
        return self.op("DequantizeLinear", x, *self.codes[x])

    def around(self, operator: str, *inputs: str, scale: float, point: int | None = None, **attributes: Any) -> str:
        """Add an operator of floats between conversions of bytes."""
        y = self.op(operator, *map(self.floats, inputs), **attributes)
        return self.bytes(y, scale, point)

    def weights(self, *shape: int, axis: int = 0) -> tuple[str, str, str]:
        """Add small weights as bytes, their scales and their zero points."""
        dtype: Any = _TYPES[self.weight_type]
        middle = 0 if self.weight_type == "s8" else 128
        values = (self.rng.integers(-3, 4, shape) + middle).astype(dtype)
        scale = self.rng.choice(np.float32([0.5, 1.0, 0.25]), shape[axis]) if self.by_channel else np.float32(0.5)
        points = np.full_like(scale, middle, dtype) if self.by_channel else dtype(middle)
        return self.held(values), self.held(scale), self.held(points)

    def bias_scale(self, x: str, scales: str) -> str:
        """Add the scales of a bias, which is in units of the sums."""
        return self.held(self.constants[self.codes[x][0]] * self.constants[scales])

    def conv(
        self, x: str, ic: int, oc: int, k: int, stride: int = 1, group: int = 1, *, scale: float = 32,
        point: int | None = None, steps: tuple[str, ...] = (), operators: bool = False,
    ) -> str:  # fmt: skip
        """Add a convolution of bytes, with `steps` after it, as QDQ or as an operator on bytes."""
        w, ws, wz = self.weights(oc, ic // group, k, k)
        b = self.held(self.rng.integers(-40, 41, oc).astype(np.int32))
        window = {"pads": [k // 2] * 4, "strides": [stride] * 2, "group": group, "kernel_shape": [k, k]}
        if operators:
            code = self.code(scale, point)
            y = self.op("QLinearConv", x, *self.codes[x], w, ws, wz, *code, b, **window)
            self.codes[y] = code
            return y
        bias = self.op("DequantizeLinear", b, self.bias_scale(x, ws), axis=0)
        y = self.op("Conv", self.floats(x), self.op("DequantizeLinear", w, ws, wz, axis=0), bias, **window)
        for step in steps:
            more = (self.held(np.float32(0)), self.held(np.float32(scale * 100))) if step == "Clip" else ()
            y = self.op(step, y, *more)
        return self.bytes(y, scale, point)

    def model(self, *outputs: str, types: tuple[int, ...] = ()) -> Any:
        """Return the model with these outputs."""
        kinds = types or (TensorProto.FLOAT,) * len(outputs)
        graph = helper.make_graph(
            self.nodes, "network",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in self.inputs.items()],
            [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(outputs, kinds)],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        made = helper.make_model(graph, opset_imports=opsets)
        made.ir_version = 9
        return made


def exact_net(type_: str, weights: str = "s8", by_channel: bool = True, operators: bool = False) -> Any:
    """A small network: convolutions with and without steps, groups, a residual, pools, a concatenation, a product."""
    b = QuantisedBuilder(type_, weights, 3, by_channel)
    least = {"u8": 0, "s8": -128}[type_]
    x = b.bytes(b.input("x", 1, 3, 16, 16), 1)
    one = b.conv(x, 3, 16, 3, 2, scale=1, point=least, steps=("Relu",), operators=operators)
    two = b.conv(one, 16, 16, 3, group=16, scale=32, steps=() if operators else ("Relu",), operators=operators)
    three = b.conv(two, 16, 16, 1, scale=64, operators=operators)
    x = b.around("Add", three, one, scale=64)
    x = b.around("Concat", x, three, axis=1, scale=128)
    pooled = b.op("MaxPool", b.floats(x), kernel_shape=[2, 2], strides=[2, 2])
    y = b.op("QuantizeLinear", pooled, *b.codes[x])
    b.codes[y] = b.codes[x]
    y = b.around("GlobalAveragePool", y, scale=16)
    flat = b.op("QuantizeLinear", b.op("Flatten", b.floats(y)), *b.codes[y])
    b.codes[flat] = b.codes[y]
    w, ws, wz = b.weights(10, 32)
    c = b.op("DequantizeLinear", b.held(b.rng.integers(-40, 41, 10).astype(np.int32)), b.bias_scale(flat, ws), axis=0)
    given = (b.floats(flat), b.op("DequantizeLinear", w, ws, wz, axis=0), c)
    y = b.bytes(b.op("Gemm", *given, transB=1), 64)
    return b.model(b.floats(y), b.floats(three), b.op("Identity", b.floats(x)))
