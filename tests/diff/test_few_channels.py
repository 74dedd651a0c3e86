"""Default kernels where channels fill no vector, on every level: exact, and nothing else is written."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from guarded import Compiled, check_result, expected
from problems import exact, few_channels_a_group, gradient_of_few_channels

from convsmith.compiler.driver import build_artifact
from convsmith.machine.registry import host_targets
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.tune.candidates import default_config

TARGETS = {t.name: t for t in host_targets()}


def check(draw: Callable[[random.Random], str], seed: int, isa: str) -> None:
    line = draw(random.Random(f"{isa} {seed}"))
    problem, target = exact(parse_problem(line)), TARGETS[isa]
    config = default_config(problem, target)
    arrays = random_arrays(problem)
    found = Compiled(problem, build_artifact(problem, config, target))(arrays)
    check_result(problem, found, expected(problem, arrays))


@pytest.mark.sampled(4, "draw")
@pytest.mark.parametrize("isa", TARGETS)
@pytest.mark.parametrize("draw", [few_channels_a_group, gradient_of_few_channels])
def test_few_channels(draw: Callable[[random.Random], str], isa: str) -> None:
    for seed in range(3):
        check(draw, seed, isa)


@pytest.mark.parametrize("isa", TARGETS)
@pytest.mark.parametrize("draw", [few_channels_a_group, gradient_of_few_channels])
@pytest.mark.parametrize("seeds", [
    pytest.param(range(100, 120), marks=pytest.mark.wide, id="wide"),
    pytest.param(range(120, 160), marks=pytest.mark.slow, id="slow"),
])  # fmt: skip
def test_few_channels_at_length(seeds: range, draw: Callable[[random.Random], str], isa: str) -> None:
    for seed in seeds:
        check(draw, seed, isa)
