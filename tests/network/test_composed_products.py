"""Products of products become one product where it has fewer multiply-adds."""

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
from convsmith.network.reference import reference_outputs
from convsmith.network.rewrites.composed_products import with_composed_products
from convsmith.network.rewrites.fold import folded
from convsmith.onnx.graph import read_graph
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul

Build = Callable[[NetworkBuilder], str]


def _conv(b: NetworkBuilder, x: str, channels: int, results: int, k: int = 1, bias: bool = True) -> str:
    held = (b.weights(results, channels, k, k), *([b.weights(results)] if bias else []))
    return str(b.op("Conv", x, *held, kernel_shape=[k, k]))


def _projected(b: NetworkBuilder, perm: tuple[int, ...] = (0, 2, 1), bias: bool = True, inner: int = 32) -> str:
    """The rows of two images, each projected to `inner` channels, as images of these channels."""
    rows = b.op("MatMul", b.input("x", 2, 12, 4), b.weights(4, inner))
    rows = b.op("Add", rows, b.weights(inner)) if bias else rows
    return str(b.op("Reshape", b.op("Transpose", rows, perm=perm), b.held(np.int64([2, inner, 4, 3]))))


COMPOSED: dict[str, Build] = {
    "rows": lambda b: _conv(b, _projected(b), 32, 16),
    "rows without biases": lambda b: _conv(b, _projected(b, bias=False), 32, 16, bias=False),
    "a step and a sum": lambda b: b.op(
        "Add", b.input("y", 2, 16, 4, 3), b.op("Relu", _conv(b, _projected(b), 32, 16))
    ),
    "an image": lambda b: _conv(b, _conv(b, b.input("x", 2, 4, 6, 5), 4, 32), 32, 16),
}  # fmt: skip

APART: dict[str, Build] = {
    "a function between": lambda b: _conv(b, b.op("Relu", _projected(b)), 32, 16),
    "rows that are not pixels": lambda b: _conv(
        b, b.op("Reshape", _projected(b), b.held(np.int64([2, 64, 6, 1]))), 64, 16
    ),
    "several taps": lambda b: _conv(b, _projected(b), 32, 16, 3),
    "read twice": lambda b: b.op("Concat", _conv(b, y := _projected(b), 32, 16), b.op("Abs", y), axis=1),
    "fewer channels between": lambda b: _conv(b, _conv(b, b.input("x", 2, 64, 14, 14), 64, 4), 4, 64),
}  # fmt: skip


def _made(b: NetworkBuilder, y: str) -> tuple[Graph, Graph]:
    graph = folded(read_graph(b.model(y)))
    return graph, with_composed_products(graph, registry.target("avx2"))


def _products(graph: Graph) -> int:
    return sum(isinstance(node.work, Conv | Matmul) for node in graph.nodes)


@pytest.mark.parametrize("name", COMPOSED)
def test_two_products_are_one(name: str) -> None:
    b = NetworkBuilder(5)
    y = COMPOSED[name](b)
    graph, made = _made(b, y)
    assert (_products(graph), _products(made)) == (2, 1)
    rng = np.random.default_rng(2)
    arrays: dict[str, Any] = {x.name: rng.integers(-4, 5, x.shape).astype(np.float32) for x in graph.inputs}
    (expected,), (found,) = (reference_outputs(x, arrays).values() for x in (graph, made))
    np.testing.assert_array_equal(found, expected)
    exact_network(b.model(y))


@pytest.mark.parametrize("name", APART)
def test_other_products_stay(name: str) -> None:
    b = NetworkBuilder(5)
    graph, made = _made(b, APART[name](b))
    assert made is graph and _products(graph) == 2
