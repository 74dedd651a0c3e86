"""Kernels of every kind run on a device of OpenCL, and give exactly what the reference gives."""

from __future__ import annotations

import random

import pytest
from chain_problems import random_chain
from devices import KINDS, random_group_config
from opencl_driver import require_opencl
from problems import random_problem
from traits import ALL, count_traits

from convsmith.diag.errors import ConfigError
from convsmith.frontend.kernel import CompiledKernel
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.measure.verification import verify_kernel
from convsmith.problem import Problem, parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.devices.device import device_config

HEAD = "--target=opencl --pack="


def check(problem: Problem, config: Config | None, seed: int) -> None:
    kernel = CompiledKernel(problem, target("opencl"), config)
    verdict = verify_kernel(kernel, seed)
    assert verdict.ok and kernel.artifact is not None, f"{problem} {kernel.config}: {verdict.detail}"
    assert {e.launch.kind for e in kernel.artifact.entries.values()} == {"grid"}


def check_random(seed: int) -> None:
    """One problem, under a random config or, every second time, under the default one."""
    require_opencl()
    rng = random.Random(seed)
    problem = random_problem(rng, 20_000)
    with interning():
        config = random_group_config(rng, problem, target("opencl")) if seed % 2 else None
    try:
        check(problem, config, seed)
    except ConfigError:
        if config is None:
            raise
        check(problem, None, seed)


@pytest.mark.parametrize("seeds", [range(26), pytest.param(range(26, 326), marks=pytest.mark.slow)], ids=len)
def test_the_random_problems_are_of_all_kinds(seeds: range) -> None:
    found = count_traits(random_problem(random.Random(seed), 20_000) for seed in seeds)
    assert {name for name, count in found.items() if count >= 2} == ALL


def test_parts_of_a_reduction_hold_whole_vectors() -> None:
    require_opencl()
    problem = parse_problem("--dir=BWD_W --dt=f16 --stag=aBc8b --dtag=aBc16b mb1ic31iw17oc32ow20kw1pw1")
    check(problem, device_config(problem, target("opencl")).changed(split=(("ow", 5),)), 0)


def check_kind(kind: str) -> None:
    require_opencl()
    line, config = KINDS[kind]
    check(parse_problem(line), Config.parse(f"{HEAD} {config}"), 0)


@pytest.mark.sampled(13)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: str) -> None:
    check_kind(kind)


def check_chain(seed: int) -> None:
    require_opencl()
    check(random_chain(random.Random(seed), macs=10_000), None, seed)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(5))
def test_random_chains(seed: int) -> None:
    """Each stage is a kernel; results in between stay in memory of the device."""
    check_chain(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5, 45))
def test_more_random_chains(seed: int) -> None:
    check_chain(seed)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("seed", range(26))
def test_random_problems(seed: int) -> None:
    check_random(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(26, 326))
def test_more_random_problems(seed: int) -> None:
    check_random(seed)
