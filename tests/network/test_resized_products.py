"""Convolutions without taps before resizes: the same results, of fewer products, where the model says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from beside_onnx_runtime import exact_network
from onnx_networks import NetworkBuilder

from convsmith.machine import registry
from convsmith.network.graph import Graph
from convsmith.network.operators.resize import Resize
from convsmith.network.reference import reference_outputs
from convsmith.network.rewrites import resized_products
from convsmith.network.rewrites.fold import folded
from convsmith.network.rewrites.resized_products import with_resized_products
from convsmith.onnx.graph import read_graph
from convsmith.problem.conv import Conv

Build = Callable[[NetworkBuilder], str]


def _resized(b: NetworkBuilder, x: str, times: int, mode: str = "linear", channels: int = 1) -> str:
    how = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    how |= {"nearest_mode": "floor"} if mode == "nearest" else {}
    return str(b.op("Resize", x, "", b.held(np.float32([1, channels, times, times])), **how))


def _convolved(b: NetworkBuilder, x: str, channels: int, k: int = 1, bias: bool = True, **options: Any) -> str:
    held = (b.weights(6, channels, k, k), *([b.weights(6)] if bias else []))
    return str(b.op("Conv", x, *held, kernel_shape=[k, k], **options))


def _decoder(b: NetworkBuilder) -> str:
    """Images of three sizes, of which one has the size of the result."""
    whole, half, quarter = (b.input(name, 2, n, 12 // n, 8 // n) for name, n in (("x", 1), ("y", 2), ("z", 4)))
    parts = _resized(b, quarter, 4), whole, _resized(b, half, 2)
    return str(b.op("Relu", _convolved(b, b.op("Concat", *parts, axis=1), 7)))


def _two_whole(b: NetworkBuilder) -> str:
    x, y = b.input("x", 2, 3, 4, 6), b.input("y", 2, 4, 4, 6)
    whole = b.op("Concat", x, _resized(b, b.input("z", 2, 2, 2, 3), 2, "nearest"), y, axis=1)
    return str(b.op("Add", _convolved(b, whole, 9, bias=False), b.input("w", 2, 6, 4, 6)))


MOVED: dict[str, tuple[Build, int]] = {
    "a decoder": (_decoder, 2), "two whole images": (_two_whole, 1),
    "alone": (lambda b: _convolved(b, _resized(b, b.input("x", 2, 3, 4, 5), 2), 3), 1),
    "nearest, without a bias": (
        lambda b: _convolved(b, _resized(b, b.input("x", 1, 3, 4, 5), 3, "nearest"), 3, bias=False), 1
    ),
}  # fmt: skip


def _made(b: NetworkBuilder, y: str) -> tuple[Graph, Graph]:
    graph = folded(read_graph(b.model(y)))
    return graph, with_resized_products(graph, registry.target("avx2"))


def _places(graph: Graph) -> int:
    """The number of convolutions that compute the source of a resize."""
    convolved = {node.output for node in graph.nodes if isinstance(node.work, Conv)}
    return sum(isinstance(node.work, Resize) and node.arguments["src"] in convolved for node in graph.nodes)


@pytest.mark.parametrize("name", MOVED)
def test_convolutions_come_before_resizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resized_products, "_pays", lambda *_: True)
    build, count = MOVED[name]
    b = NetworkBuilder(3)
    y = build(b)
    graph, made = _made(b, y)
    assert _places(graph) == 0 and _places(made) == count
    rng = np.random.default_rng(1)
    arrays = {x.name: rng.integers(-4, 5, x.shape).astype(np.float32) for x in graph.inputs}
    (expected,), (found,) = (reference_outputs(x, arrays).values() for x in (graph, made))
    np.testing.assert_array_equal(found, expected)  # places of a linear resize are quarters of a pixel
    exact_network(b.model(y))


STAYS: dict[str, Build] = {
    "several taps": lambda b: _convolved(b, _resized(b, b.input("x", 1, 3, 4, 5), 2), 3, 3),
    "a stride": lambda b: _convolved(b, _resized(b, b.input("x", 1, 3, 4, 5), 2), 3, strides=[2, 2]),
    "pads": lambda b: _convolved(b, _resized(b, b.input("x", 1, 3, 4, 5), 2), 3, pads=[1, 1, 1, 1]),
    "resized channels": lambda b: _convolved(b, _resized(b, b.input("x", 1, 3, 4, 5), 2, channels=2), 6),
    "a function between": lambda b: _convolved(b, b.op("Relu", _resized(b, b.input("x", 1, 3, 4, 5), 2)), 3),
    "read twice": lambda b: b.op(
        "Add", _convolved(b, y := _resized(b, b.input("x", 1, 6, 4, 5), 2), 6), b.op("Abs", y)
    ),
    "groups": lambda b: _convolved(b, _resized(b, b.input("x", 1, 6, 4, 5), 2), 3, group=2),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_other_convolutions_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resized_products, "_pays", lambda *_: True)
    b = NetworkBuilder(3)
    graph, made = _made(b, STAYS[name](b))
    assert made is graph


@pytest.mark.parametrize(("channels", "count"), [(64, 1), (2, 0)])
def test_the_model_chooses(channels: int, count: int) -> None:
    """A convolution that computes more channels than it reads comes after the resize."""
    b = NetworkBuilder(3)
    x = _resized(b, b.input("x", 1, channels, 14, 14), 4)
    y = b.op("Conv", x, b.weights(64, channels, 1, 1), kernel_shape=[1, 1])
    assert _places(_made(b, y)[1]) == count
