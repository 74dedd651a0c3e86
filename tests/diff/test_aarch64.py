"""200 problems of all kinds and types on the levels of AArch64, emulated, under default configs: exact."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from emulated import check_emulated, kinds_of, known_fault, skip_without_emulator
from problems import exact, random_problem

from convsmith.compiler.driver import build_artifact
from convsmith.machine.aarch64.levels import LEVELS
from convsmith.problem import Problem
from convsmith.problem.data import random_arrays
from convsmith.tune.candidates import default_config

COUNT = 200
OFTEN = 40
"""The part of them that runs in every test run."""
MACS = 30_000


def problem_of(seed: int) -> Problem:
    return random_problem(random.Random(seed), MACS)


def case(seed: int) -> object:
    level = LEVELS[seed % len(LEVELS)]
    return pytest.param(seed, id=f"{seed}-{level.name}", marks=() if seed < OFTEN else pytest.mark.slow)


def test_every_kind_is_among_them() -> None:
    """Each comes several times, also in the part that runs in every test run."""
    for seeds, least in ((range(OFTEN), 1), (range(COUNT), 5)):
        found = Counter(kind for seed in seeds for kind in kinds_of(problem_of(seed)))
        wanted = {
            "FWD_D", "FWD_B", "BWD_D", "BWD_W", "product", "f32", "bf16", "f16", "s32", "s8", "u8", "zero points",
            "scales", "post-ops", "1D", "2D", "3D", "deconvolution", "groups", "strides", "dilations", "pads", "blocks",
        }  # fmt: skip
        assert not {kind for kind in wanted if found[kind] < least}, found


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", [case(seed) for seed in range(COUNT)])
def test_exact(seed: int) -> None:
    target = LEVELS[seed % len(LEVELS)]
    skip_without_emulator(target)
    problem = problem_of(seed)
    artifact = build_artifact(problem, default_config(exact(problem), target), target)
    if fault := known_fault(problem, artifact):
        pytest.skip(fault)
    check_emulated(problem, artifact, random_arrays(problem, seed))
