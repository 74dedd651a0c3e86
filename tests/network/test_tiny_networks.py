"""Networks of MLPerf Tiny's shapes with random weights, exported for microcontrollers: equal to numpy on the boards."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from emulated import skip_without_emulator

pytest.importorskip("onnx")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from tiny_networks import NETWORKS, layers_of, model_of

from convsmith.exporter.emulated_call import counting_emulator, emulated_call
from convsmith.machine.arm32.levels import LEVELS
from convsmith.machine.base import Machine
from convsmith.network.compile import program_of
from convsmith.network.files.export import interface_of_network, members_of
from convsmith.network.reference import reference_outputs
from convsmith.onnx.graph import read_graph
from convsmith.onnx.network import export_for

PRODUCTS = {"kws": 2_656_768, "vww": 7_489_664, "ic": 12_501_632, "ad": 264_192}
"""Multiply-adds of each network, those with padding included."""
MOST = {"armv8.1m+mve": 0.6, "armv7em": 3.5}
"""Instructions for a multiply-add that no network exceeds, by the level."""


OFTEN = {("kws", "armv8.1m+mve"), ("ad", "armv7em")}
"""The small networks, once each, run in every test run."""
CASES = [
    pytest.param(n, m, id=f"{n}-{m.name}", marks=() if (n, m.name) in OFTEN else pytest.mark.wide)
    for n in NETWORKS for m in LEVELS
]  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("name", "machine"), CASES)
def test_networks_are_exact_on_the_boards(name: str, machine: Machine) -> None:
    skip_without_emulator(machine)
    emulator = counting_emulator(machine)
    if emulator is None:
        pytest.skip("qemu-system-arm counts instructions, and PATH does not have it")
    graph = read_graph(model_of(NETWORKS[name]), {})
    program = program_of(graph, 1, machine)
    own = interface_of_network(program, name)
    members = members_of(program, own)
    assert not any("pack" in symbol for _, _, symbols in members for symbol in symbols)  # weights lie packed in it
    codes = [code for _, code, _ in members]
    (x,) = graph.inputs
    rng = np.random.default_rng(1)
    for given in (rng.integers(0, 256, x.shape).astype(np.uint8), np.full(x.shape, 255, np.uint8)):
        found = emulated_call(own.interface, codes, machine, emulator, {x.name: given})
        ((_, right),) = reference_outputs(graph, {x.name: given}).items()
        ((_, y),) = found.outputs.items()
        np.testing.assert_array_equal(y, right)
        assert len(np.unique(right)) > 1 and found.instructions is not None
        assert found.instructions < PRODUCTS[name] * MOST[machine.name]


def test_products_of_the_networks() -> None:
    for name, network in NETWORKS.items():
        layers, total = layers_of(network), 0
        for layer in layers:
            c = (network.size if layer.source < 0 else layers[layer.source].shape)[2]
            terms = {"conv": c, "depthwise": 1, "dense": c}.get(layer.kind, 0)
            total += int(np.prod(layer.shape)) * terms * int(np.prod(layer.kernel))
        assert total == PRODUCTS[name]


def test_exports_count_instructions(tmp_path: Path) -> None:
    """The count is that of a call on the example's inputs; there is none for processors that no emulator counts."""
    from onnx_networks import NetworkBuilder

    machine = LEVELS[0]
    skip_without_emulator(machine)
    if counting_emulator(machine) is None:
        pytest.skip("qemu-system-arm counts instructions, and PATH does not have it")

    def counted(channels: int, level: str) -> int | None:
        b = NetworkBuilder(0, real=True)
        graph = read_graph(b.model(b.conv(b.input("x", 1, 4, 4, 4), 4, channels, 1)))
        return export_for(graph, tmp_path / f"{channels}-{level}", "net", level, 1).instructions

    few, many = counted(4, machine.name), counted(32, machine.name)
    assert few is not None and many is not None and 100 < few < many < 20_000
    assert counted(4, "generic") is None
