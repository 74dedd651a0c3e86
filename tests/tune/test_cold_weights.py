"""Choices for weights that come from main memory in each call: they follow the price of a byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import convsmith as cs
from convsmith.frontend.kernel import CompiledKernel
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES, named
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.winograd import winograd_of
from convsmith.tune.candidates import candidates, default_config
from convsmith.tune.compile import is_ready
from convsmith.tune.costs.expected import expected_terms
from convsmith.tune.vector_width import machine_of
from convsmith.tune.winograd import MIN_GAIN

LAYER = "--stag=axb --dtag=axb mb1ic256ih14oc256kh3ph1"


def _server() -> Machine:
    """The level of 512 bits with the costs of an Intel server."""
    server = next(row for row in MICRO_ARCHITECTURES if row.name == "intel-server")
    return server.of(next(t for t in LEVELS if t.name == "avx512"))


def _with_price(machine: Machine, price: float) -> Machine:
    return replace(machine, costs=replace(machine.costs, weights_byte=price))


def _weights(problem: Problem, config: Config, machine: Machine) -> tuple[int, float]:
    """Return the bytes of the weights of a kernel, and the factor of all its cycles: a transform with a larger error
    has to gain more.
    """
    if not config.tiles_at("winograd"):
        return int(np.prod(problem.wei_shape)) * dtype(problem.dt[1]).bytes, 1.0
    made = winograd_of(problem, config, machine, dynamic=False)
    nbytes = int(made.product.b.layout.size) * dtype(made.product.b.dtype).bytes
    return nbytes, MIN_GAIN if made.error > 1 else 1.0


@pytest.mark.parametrize("line", [LAYER, "--stag=axb --dtag=axb mb1ic512ih7oc512kh3ph1"])
def test_weights_shrink_as_their_price_rises(line: str) -> None:
    problem, machine = parse_problem(line), _server()
    sizes = []
    for price in (0.0, 0.05, 0.2, 0.8, 50.0):
        level = _with_price(machine, price)
        sizes.append(_weights(problem, default_config(problem, level), level)[0])
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] >= 16 / 9 * sizes[-1] and sizes[-1] == np.prod(problem.wei_shape) * 4


@pytest.mark.sampled(2, "line")
@pytest.mark.parametrize(
    "line",
    [
        LAYER,
        f"--accuracy=strict {LAYER}",
        "--stag=axb --dtag=axb g64mb1ic64ih28oc64kh3ph1",
        "--dt=bf16 --stag=axb --dtag=axb mb1ic64ih14oc64kh1ph0",
        "--matmul --stag=ab --wtag=ab --dtag=ab 8x256:256x512",
    ],
)
def test_each_byte_of_the_weights_has_the_price_once(line: str) -> None:
    problem, machine = parse_problem(line), _server()
    for config in (choice.config for choice in candidates(problem, machine, 1)):
        cold, warm = (expected_terms(problem, config, m) for m in (machine.with_cold_weights, machine))
        nbytes, factor = _weights(problem, config, machine)
        assert cold.pop("cold weights") == pytest.approx(machine.prices["streamed_byte"] * nbytes * factor)
        assert cold == pytest.approx(warm)


@pytest.mark.parametrize("line", [LAYER, "--stag=axb --dtag=axb mb2ic256ih28oc256kh3ph1"])
def test_each_pass_reads_from_memory_what_the_last_cache_does_not_keep(line: str) -> None:
    problem, server, near, price = parse_problem(line), _server(), 1 << 20, 0.25
    machine = replace(server, costs=replace(server.costs, weights_near=near, memory_weight=price))
    seen = set()
    for config in (choice.config for choice in candidates(problem, server, 1, 1000)):
        nbytes, factor = _weights(problem, config, machine)
        passes = 1
        if config.tiles_at("winograd"):
            passes = winograd_of(problem, config, machine, dynamic=False).tasks
        found, warm = expected_terms(problem, config, machine), expected_terms(problem, config, server)
        assert found.pop("cold weights") == pytest.approx(price * passes * (nbytes - near) * factor)
        assert found == pytest.approx(warm) and "cold weights" not in warm
        seen.add(passes)
    assert len(seen) > 2


@pytest.mark.parametrize(
    "name, level, line",
    [
        ("znver5", "avx512", "--stag=axb --dtag=axb mb1ic512ih7oc512kh3ph1"),
        ("znver3", "avx2", "--deconv --stag=abx --dtag=abx mb1ic512ih7oc512oh7kh3ph1"),
        ("znver3", "avx2", "--stag=axb --dtag=axb mb1ic256ih7oc512kh3ph1"),
    ],
)
def test_weights_in_memory_shrink(name: str, level: str, line: str) -> None:
    cold = named(name).of(next(t for t in LEVELS if t.name == level))
    near = replace(cold, costs=replace(cold.costs, memory_weight=0.0))
    problem = parse_problem(line)
    sizes = [_weights(problem, default_config(problem, machine), machine)[0] for machine in (cold, near)]
    assert sizes[0] <= 16 << 20 < sizes[1]


def test_operands_of_a_call_have_no_such_price() -> None:
    problem, machine = parse_problem("--dir=BWD_W --stag=axb --dtag=axb mb1ic16ih14oc16kh3ph1"), _server()
    config = default_config(problem, machine)
    assert default_config(problem, machine.with_cold_weights) == config
    assert "cold weights" not in expected_terms(problem, config, machine.with_cold_weights)


def test_the_cache_tells_both_kernels_apart(tmp_path: Path) -> None:
    problem = parse_problem("--stag=axb --dtag=axb mb1ic8ih6oc16kh3ph1")
    machine = machine_of(problem)
    with cs.settings.scope(cache=tmp_path):
        kernel = CompiledKernel(problem, machine.with_cold_weights, threads=1)
        assert is_ready(problem, machine.with_cold_weights, 1) and not is_ready(problem, machine, 1)
    x, w = np.ones((1, 8, 6, 6), np.float32), np.ones((16, 8, 3, 3), np.float32)
    np.testing.assert_array_equal(kernel(x, w), cs.compile(str(problem), threads=1)(x, w))
