"""Concatenations that read earlier ones: which values they join, and what they compute."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from beside_onnx_runtime import exact_network
from onnx_networks import NetworkBuilder

from convsmith.network.operators.concat import Concat
from convsmith.network.rewrites.joined_concats import with_joined_concats
from convsmith.onnx.graph import read_graph

JOINED: dict[str, tuple[Callable[[NetworkBuilder, str, str, str], tuple[str, ...]], list[int]]] = {
    "at the start": (
        lambda b, x, y, z: (b.op("Concat", x, y, axis=1), b.op("Concat", x, y, z, axis=1)), [2, 2]
    ),
    "at the end": (lambda b, x, y, z: (b.op("Concat", x, y, axis=1), b.op("Concat", z, x, y, axis=1)), [2, 2]),
    "twice": (lambda b, x, y, z: (b.op("Concat", x, y, axis=1), b.op("Concat", x, y, x, y, axis=1)), [2, 2]),
    "the longest": (
        lambda b, x, y, z: tuple(b.op("Concat", *(x, y, z, x)[:n], axis=1) for n in (2, 3, 4)), [2, 2, 2]
    ),
    "another axis": (lambda b, x, y, z: (b.op("Concat", x, y, axis=1), b.op("Concat", x, y, z, axis=2)), [2, 3]),
    "another order": (lambda b, x, y, z: (b.op("Concat", x, y, axis=1), b.op("Concat", y, x, z, axis=1)), [2, 3]),
    "the same": (lambda b, x, y, z: (b.op("Concat", x, y, axis=1), b.op("Concat", x, y, axis=1)), [2, 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", JOINED)
def test_concatenations_read_earlier_ones(name: str) -> None:
    build, counts = JOINED[name]
    b = NetworkBuilder(1)
    x = b.input("x", 1, 4, 4, 3)
    outputs = build(b, *(b.op(op, x) for op in ("Abs", "Neg", "Relu")))
    model = b.model(*outputs)
    graph = with_joined_concats(read_graph(model.SerializeToString()))
    assert [len(node.arguments) for node in graph.nodes if isinstance(node.work, Concat)] == counts
    exact_network(model)
