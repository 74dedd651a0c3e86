"""The kernels of every kind that the oracle interprets, as machine code."""

from __future__ import annotations

from dataclasses import replace

import pytest
from guarded import Compiled, check_result, expected
from kinds_of_kernels import KINDS

from convsmith.compiler.driver import build_artifact
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.schedule.config import Config

LEVEL = target("generic")
MACHINE = replace(LEVEL, vectors=replace(LEVEL.vectors, count=64))
"""Vectors of four lanes, as the oracle has them; what does not fit into registers is on the stack."""

HERE = [kind for kind, (_, words) in KINDS.items() if "--instruction=" not in words]
"""The kinds that name no instruction: the instructions that kinds name are those of the oracle, which no CPU has."""


@pytest.mark.wide
@pytest.mark.parametrize("kind", HERE)
def test_kind(kind: str) -> None:
    line, words = KINDS[kind]
    problem = parse_problem(line)
    artifact = build_artifact(problem, Config.parse(f"--target={MACHINE.name} {words}"), MACHINE)
    arrays = random_arrays(problem)
    check_result(problem, Compiled(problem, artifact)(arrays), expected(problem, arrays))
