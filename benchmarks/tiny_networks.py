"""Networks of the shapes of MLPerf Tiny with random weights, as models of ONNX that compute with bytes.

A network is a list of layers, of which `microcontrollers.py` also writes calls of CMSIS-NN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import convsmith as cs

__all__ = ["NETWORKS", "Layer", "TinyNetwork", "layers_of", "model_of", "quantised_model"]


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
    """Return a model of floats with random weights; its input is channels first, or a row for dense layers alone."""
    rng = np.random.default_rng(seed)
    layers, nodes, constants = layers_of(network), [], []
    is_flat = network.size[:2] == (1, 1)
    names = {-1: "x"}

    def constant(name: str, shape: tuple[int, ...], scale: float) -> str:
        array = (rng.standard_normal(shape) * scale).astype(np.float32)
        constants.append(numpy_helper.from_array(array, name))
        return name

    for n, layer in enumerate(layers):
        h, w, c = network.size if layer.source < 0 else layers[layer.source].shape
        x, name = names[layer.source], f"layer{n}"
        if layer.kind in ("conv", "depthwise"):
            groups = c if layer.kind == "depthwise" else 1
            shape = (layer.shape[2], c // groups, *layer.kernel)
            given = [x, constant(f"w{n}", shape, float(np.prod(shape[1:])) ** -0.5), constant(f"b{n}", shape[:1], 0.1)]
            top, left, below, right = layer.pads((h, w, c))
            nodes.append(helper.make_node("Conv", given, [name], name, kernel_shape=layer.kernel, group=groups,
                                          strides=layer.stride, pads=[top, left, below, right]))  # fmt: skip
        elif layer.kind == "add":
            nodes.append(helper.make_node("Add", [x, names[layer.addend]], [name], name))
        elif layer.kind == "mean":
            nodes.append(helper.make_node("GlobalAveragePool", [x], [name], name))
        else:
            if layer.source >= 0 and layers[layer.source].kind == "mean":
                nodes.append(helper.make_node("Flatten", [x], [f"{name}_flat"], f"{name}_flat"))
                x = f"{name}_flat"
            given = [x, constant(f"w{n}", (c, layer.channels), c**-0.5), constant(f"b{n}", (layer.channels,), 0.1)]
            nodes.append(helper.make_node("Gemm", given, [name], name))
        if not layer.is_linear and layer.kind != "mean":
            nodes.append(helper.make_node("Relu", [name], [f"{name}_relu"], f"{name}_relu"))
            name = f"{name}_relu"
        names[n] = name
    h, w, c = network.size
    shape = [1, c] if is_flat else [1, c, h, w]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info(names[len(layers) - 1], TensorProto.FLOAT, [1, layers[-1].shape[2]])
    graph = helper.make_graph(nodes, "tiny", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def quantised_model(network: TinyNetwork, seed: int = 0) -> onnx.ModelProto:
    """Return the model whose input, values and output are bytes, with ranges from random samples."""
    model = model_of(network, seed)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(seed + 1)
    samples = [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(4)]
    return _of_bytes(cs.onnx.quantize(model, samples).model)


def _of_bytes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without the conversion of its input to bytes, and with its output as bytes."""
    graph = model.graph
    x, y = graph.input[0], graph.output[0]
    first = next(n for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] == x.name)
    last = next((n for n in graph.node if n.op_type == "DequantizeLinear" and n.output[0] == y.name), None)
    x.name = first.output[0]
    graph.node.remove(first)
    x.type.tensor_type.elem_type = TensorProto.UINT8
    if last is not None:
        y.name = last.input[0]
        graph.node.remove(last)
        y.type.tensor_type.elem_type = TensorProto.UINT8
    onnx.checker.check_model(model)
    return model
