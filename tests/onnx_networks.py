"""Small ONNX networks with random weights, made with the package `onnx`: whole-number weights make results exact."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

__all__ = ["NetworkBuilder", "mobile_net", "residual_net", "u_net"]


class NetworkBuilder:
    """Builds a model node by node: methods take names of values and return the name of a result.

    Weights are small whole numbers, or if `real`, normal numbers whose sums keep their magnitude.
    """

    def __init__(self, seed: int = 0, real: bool = False) -> None:
        self._rng, self._real = np.random.default_rng(seed), real
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.inputs: dict[str, tuple[int, list[Any]]] = {}

    def input(self, name: str, *shape: Any, type_: int = TensorProto.FLOAT) -> str:
        """Add an input."""
        self.inputs[name] = type_, list(shape)
        return name

    def held(self, array: Any) -> str:
        """Add a constant."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def weights(self, *shape: int) -> str:
        """Add random weights."""
        if self._real:
            scale = np.sqrt(2 / max(np.prod(shape[1:]), 1))
            return self.held((self._rng.standard_normal(shape) * scale).astype(np.float32))
        return self.held(self._rng.integers(-1, 2, shape).astype(np.float32))

    def op(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node."""
        number = len(self.nodes)
        names = [f"v{number}" if n == 0 else f"v{number}.{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, f"{operator}_{number}", **attributes))
        return names[0] if outputs == 1 else tuple(names)

    def conv(self, x: str, ic: int, oc: int, k: int, stride: int = 1, group: int = 1, bias: bool = True) -> str:
        """Add a convolution that keeps the size, or divides it by the stride."""
        given = [x, self.weights(oc, ic // group, k, k), *([self.weights(oc)] if bias else [])]
        return str(self.op("Conv", *given, pads=[k // 2] * 4, strides=[stride] * 2, group=group, kernel_shape=[k, k]))

    def norm(self, x: str, channels: int) -> str:
        """Add a batch norm whose factors are powers of two."""
        scale, variance = self._rng.choice([0.5, 1.0, 2.0], (2, channels)).astype(np.float32)
        shift, mean = self._rng.integers(-2, 3, (2, channels)).astype(np.float32)
        given = map(self.held, (scale, shift, mean, np.square(variance)))
        return str(self.op("BatchNormalization", x, *given, epsilon=0.0))

    def model(self, *outputs: str, opset: int = 18) -> Any:
        """Return the model with these outputs."""
        graph = helper.make_graph(
            self.nodes, "network",
            [helper.make_tensor_value_info(n, t, shape) for n, (t, shape) in self.inputs.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )  # fmt: skip
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        made.ir_version = 9
        return made


def residual_net(size: int = 32, real: bool = False) -> Any:
    """A small ResNet: norms, residuals with and without a projection, a bottleneck, pools, and a product."""
    b = NetworkBuilder(1, real)
    x = b.op("Relu", b.norm(b.conv(b.input("x", "N", 3, size, size), 3, 16, 7, 2, bias=False), 16))
    x = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    y = b.op("Relu", b.conv(x, 16, 16, 3))
    x = b.op("Relu", b.op("Add", b.conv(y, 16, 16, 3), x))
    y = b.op("Relu", b.norm(b.conv(x, 16, 8, 1, 2), 8))
    y = b.op("Clip", b.conv(y, 8, 8, 3), b.held(np.float32(0)), b.held(np.float32(600)))
    x = b.op("Relu", b.op("Add", b.conv(x, 16, 32, 1, 2), b.norm(b.conv(y, 8, 32, 1), 32)))
    x = b.op("Flatten", b.op("GlobalAveragePool", x))
    return b.model(b.op("Gemm", x, b.weights(10, 32), b.weights(10), transB=1))


def mobile_net(size: int = 32, real: bool = False) -> Any:
    """A small MobileNetV2: depthwise convolutions between expansions and projections, and linear bottlenecks."""
    b = NetworkBuilder(2, real)

    def capped(x: str) -> str:
        return str(b.op("Clip", x, b.held(np.float32(0)), b.held(np.float32(6))))

    x = capped(b.conv(b.input("x", 1, 3, size, size), 3, 8, 3, 2))
    channels = 8
    for out, stride in ((8, 1), (16, 2), (16, 1)):
        wide = capped(b.conv(x, channels, channels * 6, 1))
        wide = capped(b.norm(b.conv(wide, channels * 6, channels * 6, 3, stride, group=channels * 6), channels * 6))
        y = b.conv(wide, channels * 6, out, 1)
        x = str(b.op("Add", x, y)) if (out, stride) == (channels, 1) else y
        channels = out
    x = b.op("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    x = b.op("Reshape", b.op("ReduceMean", x, b.held(np.int64([2, 3]))), b.held(np.int64([0, -1])))
    return b.model(b.op("MatMul", x, b.weights(16, 10)))


def u_net(size: int = 16, real: bool = False) -> Any:
    """A small U-Net: values that are kept for later, nearest and linear resizes, and concatenations."""
    b = NetworkBuilder(3, real)
    x = b.input("x", 2, 4, size, size)
    one = b.op("Relu", b.conv(x, 4, 8, 3))
    two = b.op("Relu", b.conv(b.op("MaxPool", one, kernel_shape=[2, 2], strides=[2, 2]), 8, 16, 3))
    deep = b.op("Relu", b.conv(b.op("AveragePool", two, kernel_shape=[2, 2], strides=[2, 2]), 16, 16, 3))
    scales = b.held(np.float32([1, 1, 2, 2]))
    nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    up = b.op("Resize", deep, "", scales, **nearest)
    x = b.op("Relu", b.conv(b.op("Concat", up, two, axis=1), 32, 8, 3))
    up = b.op("Resize", x, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
    return b.model(b.conv(b.op("Concat", up, one, axis=1), 16, 2, 1), two)
