"""Convolutions of images whose pixels a resize repeats are deconvolutions of the images."""

from __future__ import annotations

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
from convsmith.network.rewrites import repeated_pixels
from convsmith.network.rewrites.fold import folded
from convsmith.network.rewrites.repeated_pixels import with_deconvolutions
from convsmith.onnx.graph import read_graph
from convsmith.problem.conv import Conv

FLOOR = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}


def _network(b: NetworkBuilder, times: tuple[float, float], k: int, pads: list[int], group: int = 1,
             stride: int = 1, **how: Any) -> str:  # fmt: skip
    x = b.input("x", 2, 6, 5, 4)
    x = b.op("Resize", x, "", b.held(np.float32([1, 1, *times])), **(how or FLOOR))
    weights = b.weights(4, 6 // group, k, k), b.weights(4)
    y = b.op("Conv", x, *weights, pads=pads, strides=[stride] * 2, group=group, kernel_shape=[k, k])
    return str(b.op("Relu", y))


def _deconvolutions(graph: Graph) -> list[Conv]:
    return [node.work for node in graph.nodes if isinstance(node.work, Conv) and node.work.deconv]


SAME: dict[str, dict[str, Any]] = {
    "twice": {"times": (2, 2), "k": 3, "pads": [1] * 4},
    "from the middle of pixels": {
        "times": (2, 2), "k": 3, "pads": [1] * 4, "mode": "nearest", "nearest_mode": "round_prefer_floor",
    },
    "three times, five taps": {"times": (3, 3), "k": 5, "pads": [2, 1, 0, 4]},
    "along rows": {"times": (1, 2), "k": 3, "pads": [0, 1, 2, 1]},
    "one tap": {"times": (2, 2), "k": 1, "pads": [0] * 4},
    "groups": {"times": (2, 2), "k": 3, "pads": [1] * 4, "group": 2},
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_the_deconvolution_computes_the_same_sums(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_pixels, "_pays", lambda *_: True)
    b = NetworkBuilder(4)
    graph = folded(read_graph(b.model(_network(b, **SAME[name]))))
    made = with_deconvolutions(graph, registry.target("avx2"))
    (work,) = _deconvolutions(made)
    assert len(made.nodes) == 1 and work.s == SAME[name]["times"] and work.post_ops
    arrays = {"x": np.random.default_rng(0).integers(-3, 4, (2, 6, 5, 4)).astype(np.float32)}
    (expected,), (found,) = (reference_outputs(x, arrays).values() for x in (graph, made))
    np.testing.assert_array_equal(found, expected)


OTHERS: dict[str, dict[str, Any]] = {
    "means": {"times": (2, 2), "k": 3, "pads": [1] * 4, "mode": "linear"},
    "other places": {"times": (2, 2), "k": 3, "pads": [1] * 4, "mode": "nearest", "nearest_mode": "ceil"},
    "no multiple": {"times": (1.5, 2), "k": 3, "pads": [1] * 4},
    "a stride": {"times": (2, 2), "k": 3, "pads": [1] * 4, "stride": 2},
    "pads of a whole window": {"times": (2, 2), "k": 3, "pads": [3] * 4},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_convolutions_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_pixels, "_pays", lambda *_: True)
    b = NetworkBuilder(4)
    graph = folded(read_graph(b.model(_network(b, **OTHERS[name]))))
    assert not _deconvolutions(with_deconvolutions(graph, registry.target("avx2")))


def test_an_image_that_is_read_elsewhere_stays() -> None:
    b = NetworkBuilder(4)
    x = b.op("Resize", b.input("x", 1, 8, 6, 6), "", b.held(np.float32([1, 1, 2, 2])), **FLOOR)
    graph = folded(read_graph(b.model(b.op("Add", b.conv(x, 8, 8, 3), x))))
    assert not _deconvolutions(with_deconvolutions(graph, registry.target("avx2")))


def test_the_model_chooses_and_the_kernel_is_exact() -> None:
    b = NetworkBuilder(4)
    x = b.op("Resize", b.input("x", 1, 32, 7, 9), "", b.held(np.float32([1, 1, 2, 2])), **FLOOR)
    net = exact_network(b.model(b.op("Relu", b.conv(x, 32, 16, 3))))
    steps = [x.work for x in net.image.steps]
    assert any("--deconv" in x for x in steps) and not any(x.startswith("Resize") for x in steps)
