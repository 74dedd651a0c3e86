"""Networks of the shapes of MLPerf Tiny with random weights, as models of ONNX that compute with bytes.

A network is a list of layers, of which `microcontrollers.py` also writes calls of CMSIS-NN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["NETWORKS", "Layer", "TinyNetwork", "layers_of", "model_of"]

_RUNTIME = "com.microsoft"
"""The domain of ONNX Runtime's operators."""


@dataclass(frozen=True)
class Layer:
    """A layer: ``kind`` is conv, depthwise, add, mean or dense.

    It reads the result of the layer ``source`` (-1: the input), and an ``add`` also that of ``addend``. A convolution
    has taps of ``kernel`` (height, width), pads as TensorFlow's SAME, and a relu unless ``is_linear``.
    """

    kind: str
    source: int
    channels: int = 0
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    addend: int = -1
    is_linear: bool = False
    shape: tuple[int, int, int] = (0, 0, 0)
    """Height, width and channels of the result."""

    def pads(self, size: tuple[int, int, int]) -> tuple[int, int, int, int]:
        """Return the pads above, left, below and right for a source of height, width and channels ``size``."""
        whole = []
        for n, k, s in zip(size, self.kernel, self.stride):
            whole.append(max((-(-n // s) - 1) * s + k - n, 0))
        return whole[0] // 2, whole[1] // 2, whole[0] - whole[0] // 2, whole[1] - whole[1] // 2


@dataclass(frozen=True)
class TinyNetwork:
    """A network: the height, width and channels of its input, and its layers."""

    name: str
    size: tuple[int, int, int]
    layers: tuple[Layer, ...]


def layers_of(network: TinyNetwork) -> tuple[Layer, ...]:
    """Return the layers of a network with the shapes of their results."""
    done: list[Layer] = []
    for layer in network.layers:
        h, w, c = network.size if layer.source < 0 else done[layer.source].shape
        if layer.kind in ("conv", "depthwise"):
            h, w = (-(-n // s) for n, s in zip((h, w), layer.stride))
            c = layer.channels or c
        elif layer.kind == "mean":
            h, w = 1, 1
        elif layer.kind == "dense":
            h, w, c = 1, 1, layer.channels
        done.append(replace(layer, shape=(h, w, c)))
    return tuple(done)


def _separable(at: int, channels: int, stride: int = 1) -> tuple[Layer, Layer]:
    """Return a depthwise layer that reads the layer ``at``, and the 1x1 layer after it."""
    return Layer("depthwise", at, kernel=(3, 3), stride=(stride, stride)), Layer("conv", at + 1, channels)


def _keywords() -> TinyNetwork:
    layers = [Layer("conv", -1, 64, (10, 4), (2, 2))]
    for _ in range(4):
        layers += _separable(len(layers) - 1, 64)
    layers.append(Layer("mean", len(layers) - 1))
    layers.append(Layer("dense", len(layers) - 1, 12, is_linear=True))
    return TinyNetwork("keyword spotting, DS-CNN", (49, 10, 1), tuple(layers))


def _wake_words() -> TinyNetwork:
    layers = [Layer("conv", -1, 8, (3, 3), (2, 2))]
    steps = [(16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1)]
    for channels, stride in steps:
        layers += _separable(len(layers) - 1, channels, stride)
    layers.append(Layer("mean", len(layers) - 1))
    layers.append(Layer("dense", len(layers) - 1, 2, is_linear=True))
    return TinyNetwork("visual wake words, MobileNet 0.25", (96, 96, 3), tuple(layers))


def _images() -> TinyNetwork:
    layers, at = [Layer("conv", -1, 16, (3, 3))], 0
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        layers.append(Layer("conv", at, channels, (3, 3), (stride, stride)))
        layers.append(Layer("conv", len(layers) - 1, channels, (3, 3), is_linear=True))
        main, side = len(layers) - 1, at
        if stride > 1:
            layers.append(Layer("conv", at, channels, (1, 1), (stride, stride), is_linear=True))
            side = len(layers) - 1
        layers.append(Layer("add", main, addend=side))
        at = len(layers) - 1
    layers.append(Layer("mean", at))
    layers.append(Layer("dense", len(layers) - 1, 10, is_linear=True))
    return TinyNetwork("image classification, ResNet-8", (32, 32, 3), tuple(layers))


def _anomalies() -> TinyNetwork:
    widths = (128, 128, 128, 128, 8, 128, 128, 128, 128)
    layers = [Layer("dense", n - 1, width) for n, width in enumerate(widths)]
    layers.append(Layer("dense", len(layers) - 1, 640, is_linear=True))
    return TinyNetwork("anomaly detection, autoencoder", (1, 1, 640), tuple(layers))


NETWORKS = {"kws": _keywords(), "vww": _wake_words(), "ic": _images(), "ad": _anomalies()}


def model_of(network: TinyNetwork, seed: int = 0) -> onnx.ModelProto:
    """Return a model of bytes: weights are random s8 with a scale for each channel, values u8, whose zero point is 0
    after a relu and 128 elsewhere. Its input is channels first, or a row for dense layers alone.
    """
    builder = _Bytes(network, np.random.default_rng(seed))
    for n, layer in enumerate(builder.layers):
        builder.add(n, layer)
    h, w, c = network.size
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, [1, c] if builder.is_flat else [1, c, h, w])
    y = builder.values[len(builder.layers) - 1]
    outputs = [helper.make_tensor_value_info(y.name, TensorProto.UINT8, [1, builder.layers[-1].shape[2]])]
    graph = helper.make_graph(builder.nodes, "tiny", [x], outputs, builder.constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(_RUNTIME, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return model


@dataclass(frozen=True)
class _Value:
    """A value of bytes: ``spread`` is the standard deviation of the numbers that it stands for, before a relu."""

    name: str
    spread: float
    scale: float
    zero: int


class _Bytes:
    """The nodes and the constants of a model of bytes, layer by layer."""

    def __init__(self, network: TinyNetwork, rng: np.random.Generator) -> None:
        self.network, self.layers, self.rng = network, layers_of(network), rng
        self.is_flat = network.size[:2] == (1, 1)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.values = {-1: _Value("x", 1.0, 3 / 127, 128)}

    def add(self, n: int, layer: Layer) -> None:
        """Add the nodes of the layer ``n``."""
        x, name = self.values[layer.source], f"layer{n}"
        addend = self.values[layer.addend] if layer.kind == "add" else None
        spread = x.spread if addend is None else float(np.hypot(x.spread, addend.spread))
        y = _Value(name, spread, 3 * spread / (127 if layer.is_linear else 255), 128 * layer.is_linear)
        if layer.kind == "mean":
            y = replace(x, name=name)
        first, last = self._parts(f"{name}.x", x), self._parts(f"{name}.y", y)
        if addend is not None:
            self._node("QLinearAdd", [x.name, *first, addend.name, *self._parts(f"{name}.b", addend), *last], name)
        elif layer.kind == "mean":
            self._node("QLinearGlobalAveragePool", [x.name, *first, *last], name, channels_last=0)
        else:
            self._product(n, layer, x, first, last)
        self.values[n] = y

    def _product(self, n: int, layer: Layer, x: _Value, first: list[str], last: list[str]) -> None:
        """Add a layer with weights of -127 to 127, scaled so that the spread of its sums is that of its source."""
        name, outputs = f"layer{n}", layer.shape[2]
        size = self.network.size if layer.source < 0 else self.layers[layer.source].shape
        groups = size[2] if layer.kind == "depthwise" else 1
        shape = (size[2], outputs) if layer.kind == "dense" else (outputs, size[2] // groups, *layer.kernel)
        terms = size[2] if layer.kind == "dense" else int(np.prod(shape[1:]))
        scales = self.rng.uniform(0.7, 1.3, 1 if layer.kind == "dense" else outputs) / (73 * terms**0.5)
        bias = self.rng.standard_normal(outputs) * 0.1 * x.spread / (x.scale * scales)
        weights = [
            self._held(f"{name}.w", self.rng.integers(-127, 128, shape).astype(np.int8)),
            self._held(f"{name}.w.scale", scales.astype(np.float32).squeeze()),
            self._held(f"{name}.w.zero", np.zeros_like(scales, np.int8).squeeze()),
        ]
        added = self._held(f"{name}.bias", bias.astype(np.int32))
        if layer.kind == "dense":
            given = x.name
            if layer.source >= 0 and self.layers[layer.source].kind == "mean":
                given = f"{name}.flat"
                self.nodes.append(helper.make_node("Flatten", [x.name], [given], given))
            self._node("QGemm", [given, *first, *weights, added, *last], name)
            return
        top, left, below, right = layer.pads(size)
        self.nodes.append(helper.make_node(
            "QLinearConv", [x.name, *first, *weights, *last, added], [name], name, kernel_shape=layer.kernel,
            group=groups, strides=layer.stride, pads=[top, left, below, right],
        ))  # fmt: skip

    def _node(self, kind: str, given: list[str], name: str, **attributes: int) -> None:
        self.nodes.append(helper.make_node(kind, given, [name], name, domain=_RUNTIME, **attributes))

    def _parts(self, name: str, x: _Value) -> list[str]:
        """Return the names of the scale and the zero point of a value."""
        return [self._held(f"{name}.scale", np.float32(x.scale)), self._held(f"{name}.zero", np.uint8(x.zero))]

    def _held(self, name: str, array: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name
