"""Kernels of sub-groups for random problems of all kinds, run through OpenCL, give exactly what the reference gives."""

from __future__ import annotations

import random

import pytest
from devices import fragment_config
from opencl_driver import require_opencl
from problems import random_problem
from sub_groups import DEVICES, run_emulated
from traits import ALL, count_traits

from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.problem import Problem
from convsmith.schedule.config import Config


def random_case(seed: int) -> tuple[Problem, Machine, Config]:
    """A problem that a device computes by fragments, and a config."""
    rng = random.Random(seed)
    machine = target(list(DEVICES)[seed % len(DEVICES)])
    while True:
        problem = random_problem(rng, 20_000)
        config = fragment_config(problem, machine, rng)
        if config is not None:
            return problem, machine, config


def check_random(seed: int) -> None:
    require_opencl()
    problem, machine, config = random_case(seed)
    run_emulated(problem, machine, config, seed)


@pytest.mark.slow
def test_the_random_problems_are_of_all_kinds() -> None:
    """They are of all kinds that have fragments, and each device uses all of its instructions."""
    cases = [random_case(seed) for seed in range(120)]
    found = count_traits(problem for problem, *_ in cases)
    assert {name for name, count in found.items() if count >= 2} >= ALL - {"depthwise", "zero points"}
    used = {(machine.name, config.instruction.partition("_")[0]) for _, machine, config in cases}
    assert used == {(name, x) for name in ("xe_hpc", "xe_hpg") for x in ("dpas", "mad")} | {
        ("xe_lp", "dp4a"), ("xe_lp", "mad"),
    }  # fmt: skip


@pytest.mark.sampled(9)
@pytest.mark.parametrize("seed", range(9))
def test_random_problems(seed: int) -> None:
    check_random(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(9, 120))
def test_more_random_problems(seed: int) -> None:
    check_random(seed)
