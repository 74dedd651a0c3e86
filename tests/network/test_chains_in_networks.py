"""Convolutions of a network that become one kernel: results, which ones do, and which ones must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from beside_onnx_runtime import exact_network
from callcounts import counting
from onnx_networks import NetworkBuilder

from convsmith.machine import registry
from convsmith.network.placement.layout_choice import chosen_layouts
from convsmith.network.placement.layouts import with_layouts
from convsmith.network.rewrites.chaining import RowJoints, with_chains
from convsmith.network.rewrites.fold import folded
from convsmith.onnx.graph import read_graph
from convsmith.problem.chain import Chain
from convsmith.problem.post_ops import SOURCE, SumPostOp
from convsmith.tune.chains import joints
from convsmith.tune.stage_configs import StageConfigs

Build = Callable[[NetworkBuilder, str], Any]

_SIZE = 72
"""Pixels along an axis: 128 channels of them exceed 2 MiB, the largest second-level cache of a level."""
_WIDE = 128


def _built(build: Build) -> Any:
    b = NetworkBuilder(4)
    found = build(b, b.op("Relu", b.conv(b.input("x", 1, 8, _SIZE, _SIZE), 8, 16, 3)))
    return b.model(*(found if isinstance(found, tuple) else (found,)))


def _wide(b: NetworkBuilder, x: str) -> str:
    return str(b.op("Relu", b.conv(x, 16, _WIDE, 1)))


def _depthwise(b: NetworkBuilder, x: str, stride: int = 1) -> str:
    return str(b.op("Relu", b.conv(x, _WIDE, _WIDE, 3, stride, group=_WIDE)))


def _chains(model: Any) -> list[Chain]:
    """Return the chains of a model on one thread of this machine."""
    machine = registry.target("avx512", ("f32", "f32", "f32"))
    graph = folded(read_graph(model.SerializeToString()))
    found = with_chains(with_layouts(graph, chosen_layouts(graph, machine)), (), RowJoints(StageConfigs(machine)))
    return [node.work for node in found.nodes if isinstance(node.work, Chain)]


CHAINED: dict[str, Build] = {
    "a block": lambda b, x: b.conv(_depthwise(b, _wide(b, x)), _WIDE, 16, 1),
    "with its source": lambda b, x: b.op("Relu", b.op("Add", x, b.conv(_depthwise(b, _wide(b, x)), _WIDE, 16, 1))),
    "with another value": lambda b, x: b.op(
        "Add", b.conv(x, 16, 16, 1), b.conv(_depthwise(b, _wide(b, b.op("Abs", x))), _WIDE, 16, 1)
    ),
    "stride 2": lambda b, x: b.conv(_depthwise(b, _wide(b, x), 2), _WIDE, 16, 1),
    "two blocks": lambda b, x: b.conv(
        _depthwise(b, _wide(b, b.conv(_depthwise(b, _wide(b, x)), _WIDE, 16, 1))), _WIDE, 16, 1
    ),
    "part of a concatenation": lambda b, x: b.conv(
        b.op("Concat", b.conv(_depthwise(b, _wide(b, x)), _WIDE, 32, 1), b.conv(x, 16, 32, 1), axis=1), 64, 8, 1
    ),
}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CHAINED)
def test_layers_with_a_large_result_between_them_are_one_kernel(name: str) -> None:
    model = _built(CHAINED[name])
    assert any(len(chain.stages) >= 3 for chain in _chains(model))
    exact_network(model)


def test_a_chain_adds_its_own_source() -> None:
    def build(b: NetworkBuilder, x: str, y: str) -> str:
        added = b.op("Add", x, b.conv(_depthwise(b, _wide(b, y)), _WIDE, 16, 1))
        return b.conv(b.op("MaxPool", added, kernel_shape=[2, 2]), 16, 8, 1)

    models = [_built(lambda b, x: build(b, x, x)), _built(lambda b, x: build(b, b.conv(x, 16, 16, 1), x))]
    sums = [[op for op in _chains(m)[-1].stages[-1].post_ops if isinstance(op, SumPostOp)] for m in models]
    assert sums == [[SumPostOp(array=SOURCE)], []]
    for model in models:
        exact_network(model)


def _output(b: NetworkBuilder, x: str) -> Any:
    y = _wide(b, x)
    return b.conv(_depthwise(b, y), _WIDE, 16, 1), y


ALONE: dict[str, Build] = {
    "an output": _output,
    "read twice": lambda b, x: b.conv(b.op("Add", y := _wide(b, x), _depthwise(b, y)), _WIDE, 16, 1),
    "not by a convolution": lambda b, x: b.conv(b.op("MaxPool", _wide(b, x), kernel_shape=[2, 2]), _WIDE, 16, 1),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ALONE)
def test_a_value_that_others_need_stays(name: str) -> None:
    model = _built(ALONE[name])
    first = [
        chain for chain in _chains(model) if any(stage.ic == 16 and stage.oc == _WIDE for stage in chain.stages[:-1])
    ]
    assert not first
    exact_network(model)


def test_parts_of_others_stay() -> None:
    machine = registry.target("avx512", ("f32", "f32", "f32"))
    graph = folded(read_graph(_built(CHAINED["a block"]).SerializeToString()))
    laid = with_layouts(graph, chosen_layouts(graph, machine))
    held = {node.output for node in laid.nodes}
    found = with_chains(laid, held, RowJoints(StageConfigs(machine)))
    assert not [node for node in found.nodes if isinstance(node.work, Chain)]


def test_equal_blocks_are_chosen_once() -> None:
    machine, chosen = registry.target("avx512", ("f32", "f32", "f32")), []
    for blocks in (2, 4):  # the last one has another layout
        b = NetworkBuilder(1, True)
        x = b.op("Relu", b.conv(b.input("x", 1, 16, 12, 12), 16, 16, 1))
        for _ in range(blocks):
            x = b.op("Relu", b.op("Add", b.conv(_depthwise(b, _wide(b, x)), _WIDE, 16, 1), x))
        graph = folded(read_graph(b.model(x).SerializeToString()))
        laid = with_layouts(graph, chosen_layouts(graph, machine))
        with counting(joints) as calls:
            with_chains(laid, (), RowJoints(StageConfigs(machine)))
        chosen.append(calls["joints"])
    assert chosen[0] == chosen[1] > 0
