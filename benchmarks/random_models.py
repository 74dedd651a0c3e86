"""ONNX models of known networks with random weights, for the benchmarks that run whole models.

    model = NETWORKS["ResNet-50"]()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

_SIZE = 224


class RandomModel:
    """Builds a model with random weights, node by node; methods take and return names of values."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self.nodes: list[Any] = []
        self._held: list[Any] = []

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def held(self, array: Any) -> str:
        self._held.append(numpy_helper.from_array(np.asarray(array, np.float32), f"c{len(self._held)}"))
        return str(self._held[-1].name)

    def weights(self, *shape: int) -> str:
        return self.held(self._rng.standard_normal(shape) * np.sqrt(2 / max(np.prod(shape[1:]), 1)))

    def conv(self, x: str, ic: int, oc: int, k: int, stride: int = 1, group: int = 1) -> str:
        weights = self.weights(oc, ic // group, k, k)
        return self.node("Conv", x, weights, self.weights(oc), pads=[k // 2] * 4, strides=[stride] * 2, group=group)

    def classified(self, x: str, channels: int) -> Any:
        """The model, after the mean over pixels and a product."""
        flat = self.node("Flatten", self.node("GlobalAveragePool", x))
        y = self.node("Gemm", flat, self.weights(1000, channels), self.weights(1000), transB=1)
        return self.model(y, (1, 3, _SIZE, _SIZE))

    def model(self, y: str, shape: tuple[int, ...]) -> Any:
        """The model from an input ``x`` of a shape to ``y``."""
        shapes = (("x", shape), (y, None))
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes]
        graph = helper.make_graph(self.nodes, "network", ends[:1], ends[1:], self._held)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        model.ir_version = 9
        return model


def resnet50() -> Any:
    """ResNet-50, with norms folded into its convolutions."""
    m = RandomModel()
    x = m.node("Relu", m.conv("x", 3, 64, 7, 2))
    x, channels = m.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            stride = 1 if block else first
            y = m.node("Relu", m.conv(x, channels, width, 1))
            y = m.conv(m.node("Relu", m.conv(y, width, width, 3, stride)), width, 4 * width, 1)
            x = m.node("Relu", m.node("Add", y, x if block else m.conv(x, channels, 4 * width, 1, stride)))
            channels = 4 * width
    return m.classified(x, channels)


def mobilenet_v2() -> Any:
    """MobileNetV2, with norms folded into its convolutions."""
    m = RandomModel()
    low, high = m.held(0), m.held(6)

    def capped(x: str) -> str:
        return m.node("Clip", x, low, high)

    x, channels = capped(m.conv("x", 3, 32, 3, 2)), 32
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for factor, out, blocks, first in rows:
        for block in range(blocks):
            stride, wide = 1 if block else first, channels * factor
            y = x if factor == 1 else capped(m.conv(x, channels, wide, 1))
            y = m.conv(capped(m.conv(y, wide, wide, 3, stride, wide)), wide, out, 1)
            x = m.node("Add", x, y) if stride == 1 and channels == out else y
            channels = out
    return m.classified(capped(m.conv(x, channels, 1280, 1)), 1280)


def efficient_net() -> Any:
    """EfficientNet-B0, with norms folded into its convolutions."""
    m = RandomModel()

    def swish(x: str) -> str:
        return m.node("Mul", x, m.node("Sigmoid", x))

    x, channels = swish(m.conv("x", 3, 32, 3, 2)), 32
    rows = (
        (1, 16, 3, 1, 1), (6, 24, 3, 2, 2), (6, 40, 5, 2, 2), (6, 80, 3, 3, 2), (6, 112, 5, 3, 1), (6, 192, 5, 4, 2),
        (6, 320, 3, 1, 1),
    )  # fmt: skip
    for factor, out, k, blocks, first in rows:
        for block in range(blocks):
            stride, wide = 1 if block else first, channels * factor
            y = x if factor == 1 else swish(m.conv(x, channels, wide, 1))
            y = swish(m.conv(y, wide, wide, k, stride, wide))
            few = channels // 4
            gate = swish(m.conv(m.node("GlobalAveragePool", y), wide, few, 1))
            y = m.conv(m.node("Mul", y, m.node("Sigmoid", m.conv(gate, few, wide, 1))), wide, out, 1)
            x = m.node("Add", x, y) if stride == 1 and channels == out else y
            channels = out
    return m.classified(swish(m.conv(x, channels, 1280, 1)), 1280)


def hifi_gan() -> Any:
    """The generator of HiFi-GAN, version 2 with 256 channels: 32 frames of 80 bands become 8192 samples."""
    m = RandomModel()
    third = m.held(1 / 3)

    def along(x: str, ic: int, oc: int, k: int, dilation: int = 1) -> str:
        weights = m.weights(oc, ic, k)
        pads = [dilation * (k // 2)] * 2
        return m.node("Conv", x, weights, m.weights(oc), pads=pads, dilations=[dilation])

    def leaky(x: str) -> str:
        return m.node("LeakyRelu", x, alpha=0.1)

    x, channels = along("x", 80, 256, 7), 256
    for rate in (8, 8, 2, 2):
        weights = m.weights(channels, channels // 2, 2 * rate)
        channels //= 2
        pads = [rate // 2] * 2
        x = m.node("ConvTranspose", leaky(x), weights, m.weights(channels), strides=[rate], pads=pads)
        parts = []
        for k in (3, 7, 11):
            y = x
            for dilation in (1, 3, 5):
                z = along(leaky(y), channels, channels, k, dilation)
                y = m.node("Add", along(leaky(z), channels, channels, k), y)
            parts.append(y)
        x = m.node("Mul", m.node("Add", m.node("Add", *parts[:2]), parts[2]), third)
    return m.model(m.node("Tanh", along(leaky(x), channels, 1, 7)), (1, 80, 32))


NETWORKS: dict[str, Callable[[], Any]] = {
    "ResNet-50": resnet50, "MobileNetV2": mobilenet_v2, "EfficientNet-B0": efficient_net,
}  # fmt: skip
"""Functions that build a model of one image of 224x224 pixels, `x`, by the name of the network."""
VOCODERS: dict[str, Callable[[], Any]] = {"HiFi-GAN": hifi_gan}
"""Functions that build a model of the bands of a sound, `x`, by the name of the network."""
