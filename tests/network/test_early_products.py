"""Products that make a large value small run before the other readers of the value, if fewer bytes are then alive."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from beside_onnx_runtime import exact_network
from onnx_networks import NetworkBuilder

from convsmith.network.graph import Graph
from convsmith.network.rewrites.early_products import with_early_products
from convsmith.network.rewrites.fold import folded
from convsmith.onnx.graph import read_graph


def _block(b: NetworkBuilder, x: str, channels: int, stride: int = 1) -> str:
    """A residual block whose shortcut is listed behind the layers beside it."""
    y = b.conv(x, 64, 32, 3, stride)
    y = b.conv(b.op("Relu", b.conv(b.op("Relu", y), 32, 32, 3)), 32, channels, 3)
    return str(b.op("Relu", b.op("Add", b.conv(x, 64, channels, 1, stride), y)))


def _graph(channels: int, stride: int = 1) -> tuple[NetworkBuilder, Graph]:
    b = NetworkBuilder(2)
    x = b.conv(b.input("x", 1, 8, 12, 12), 8, 64, 3)
    b.op("Identity", y := b.conv(_block(b, x, channels, stride), channels, 8, 1))
    return b, read_graph(b.model(y))


def _places(graph: Graph) -> list[int]:
    """The places of the convolutions with one tap, among those that read the first value of 64 channels."""
    works = [node.work for node in graph.nodes if node.arguments.get("src") == "v0"]
    return [n for n, work in enumerate(works) if work.k == (1, 1)]  # type: ignore[union-attr]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("channels", "stride", "place"), [(32, 1, 0), (96, 1, 1), (128, 2, 0)])
def test_a_shortcut_runs_early_if_its_result_is_smaller(channels: int, stride: int, place: int) -> None:
    b, graph = _graph(channels, stride)
    assert _places(graph) == [1]
    assert _places(with_early_products(graph)) == [place] == _places(folded(graph))
    exact_network(b.model(graph.outputs[0]))


def test_a_shortcut_adds_nothing_where_its_source_stays_alive() -> None:
    b = NetworkBuilder(2)
    x = b.conv(b.input("x", 1, 8, 12, 12), 8, 64, 3)
    y = _block(b, x, 32)
    graph = read_graph(b.model(b.op("Add", b.conv(y, 32, 64, 1), x)))
    assert with_early_products(graph) is graph


def test_an_early_product_takes_another_along() -> None:
    b = NetworkBuilder(2)
    x = b.conv(b.input("x", 1, 8, 12, 12), 8, 64, 3)
    z = b.op("Relu", b.conv(b.op("Relu", b.conv(x, 64, 64, 1)), 64, 16, 1))
    short = b.conv(b.conv(x, 64, 32, 1), 32, 16, 1)
    graph = read_graph(b.model(b.op("Add", short, z)))
    order = [node.name for node in with_early_products(graph).nodes]
    assert order[:3] == ["Conv_0", "Conv_5", "Conv_6"] and sorted(order) == sorted(node.name for node in graph.nodes)
    exact_network(b.model(*graph.outputs))
