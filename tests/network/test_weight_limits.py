"""Instructions with limits in networks: kernels have them unless weights are beyond the limit, or come in each call."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.network.compile import program_of
from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.image import NetworkValue
from convsmith.network.weight_limits import KernelMachines
from convsmith.problem.conv import Conv
from convsmith.problem.lines import parse_problem

LEVEL = target("avx2")
LIMIT = 64


def product(oc: int = 16, types: str = "u8:s8:s32") -> Conv:
    work = parse_problem(f"--dt={types} --stag=axb --dtag=axb mb1ic32ih6oc{oc}oh6kh1")
    assert isinstance(work, Conv)
    return work


def node(work: Conv, weights: str = "w") -> NetworkNode:
    return NetworkNode(work, {"src": "x", "wei": weights}, f"y of {weights}", (weights,))


def weights(largest: int, oc: int = 16) -> np.ndarray:
    x = np.zeros((oc, 32, 1, 1), np.int8)
    x[3, 5] = largest
    return x


def has_limits(machine: Machine) -> bool:
    return any(row.limit for row in machine.instructions)


@pytest.mark.parametrize("largest", [LIMIT, -LIMIT, LIMIT + 1, -LIMIT - 1, 127, -128])
def test_weights_beyond_the_limit_rule_out_its_instructions(largest: int) -> None:
    machines = KernelMachines(LEVEL, {"w": weights(largest)})
    assert has_limits(LEVEL) and has_limits(machines(product()))
    machines.examine([node(product())])
    assert has_limits(machines(product())) == (abs(largest) <= LIMIT)
    assert has_limits(machines(product(24)))


def test_one_of_several_nodes_decides() -> None:
    machines = KernelMachines(LEVEL, {"a": weights(1), "b": weights(100), "c": weights(2)})
    machines.examine([node(product(), x) for x in "abc"])
    assert not has_limits(machines(product()))


def test_weights_of_a_call_rule_them_out() -> None:
    machines = KernelMachines(LEVEL, {})
    machines.examine([node(product())])
    assert not has_limits(machines(product()))


def test_floats_have_every_instruction() -> None:
    machines = KernelMachines(LEVEL, {"w": np.full((16, 32, 1, 1), 1000, np.float32)})
    machines.examine([node(product(types="f32"))])
    assert machines(product(types="f32")) == LEVEL.with_cold_weights


@pytest.mark.sampled(2)
@pytest.mark.parametrize("largest, name", [(LIMIT, "vpmaddubsw_256"), (LIMIT + 1, "vpmaddwd_256_u8")])
def test_kernels_have_the_instruction_that_weights_permit(largest: int, name: str) -> None:
    source = NetworkValue("x", (1, 32, 6, 6), "u8")
    made = node(product())
    values = {"x": source, made.output: NetworkValue(made.output, (1, 16, 6, 6), "s32")}
    graph = Graph("network", (source,), (made.output,), (made,), {"w": weights(largest)}, values)
    (kernel,) = (k for k in program_of(graph, 1, LEVEL).kernels if isinstance(k.work, Conv))
    assert f"--instruction={name} " in f"{kernel.artifact.config} "
