"""100 problems of bytes and of f32 on the levels of Hexagon, emulated, under default configs: exact."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from itertools import count, islice

import pytest
from emulated import check_emulated, kinds_of, skip_without_emulator
from problems import exact, random_problem

from convsmith.compiler.driver import build_artifact
from convsmith.machine.hexagon.levels import LEVELS
from convsmith.problem import Problem
from convsmith.problem.data import random_arrays
from convsmith.tune.candidates import default_config

COUNT = 100
OFTEN = 14
"""The part of them that runs in every test run."""
MACS = 30_000
TYPES = {"f32", "s32", "s8", "u8"}
RUN = [t for t in LEVELS if "hvx-ieee-fp" not in t.needs]
"""Levels that qemu has: it computes no floating-point numbers in vectors."""


@cache
def problems() -> tuple[Problem, ...]:
    drawn = (random_problem(random.Random(seed), MACS) for seed in count())
    return tuple(islice((p for p in drawn if {*p.dt} <= TYPES), COUNT))


def case(n: int) -> object:
    return pytest.param(n, id=f"{n}-{RUN[n % len(RUN)].name}", marks=() if n < OFTEN else pytest.mark.slow)


def test_every_kind_is_among_them() -> None:
    """Each comes several times."""
    found = Counter(kind for problem in problems() for kind in kinds_of(problem))
    wanted = {
        "FWD_D", "FWD_B", "BWD_D", "BWD_W", "product", *TYPES, "zero points", "scales", "post-ops", "1D", "2D", "3D",
        "deconvolution", "depthwise", "groups", "strides", "dilations", "pads", "blocks",
    }  # fmt: skip
    assert not {kind for kind in wanted if found[kind] < 3}, found


@pytest.mark.parametrize("n", [case(n) for n in range(COUNT)])
def test_exact(n: int) -> None:
    target, problem = RUN[n % len(RUN)], problems()[n]
    skip_without_emulator(target)
    artifact = build_artifact(problem, default_config(exact(problem), target), target)
    check_emulated(problem, artifact, random_arrays(problem, n))
