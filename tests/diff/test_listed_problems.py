"""The 175 convolutions that oneDNN tests itself with, forward in f32 under the default config, on every level."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from guarded import Compiled, check_result, expected
from problems import exact

from convsmith.compiler.driver import build_artifact
from convsmith.machine.registry import host_targets
from convsmith.problem import Conv
from convsmith.problem.data import random_arrays
from convsmith.problem.post_ops import parse_post_ops
from convsmith.tune.candidates import default_config

DATA = json.loads((Path(__file__).parents[1] / "data" / "oneDNN_problems.json").read_text())
LINES = [row[DATA["columns"].index("desc")] for row in DATA["rows"]]
TARGETS = {t.name: t for t in host_targets()}
BLOCKED = {1: "aBc16b", 2: "aBcd16b", 3: "aBcde16b"}


def variant(line: str, turn: int) -> Conv:
    """The problem in one of three layouts, every other time with bias and relu; sums of products are exact."""
    problem = Conv.parse(line)
    tag = ("abx", "axb", BLOCKED[problem.rank])[turn % 3]
    problem = replace(problem, stag=tag, dtag=tag, accuracy="strict")
    return replace(problem, dir="FWD_B", post_ops=parse_post_ops("relu")) if turn % 2 else problem


@pytest.mark.sampled(100, "isa", wide=2, every="number")
@pytest.mark.parametrize("isa", list(TARGETS))
@pytest.mark.parametrize("number", range(len(LINES)), ids=lambda n: LINES[n].partition("n")[0][:60])
def test_listed(number: int, isa: str) -> None:
    problem = variant(LINES[number], number + list(TARGETS).index(isa))
    config = default_config(exact(problem), TARGETS[isa], 1 + number % 2)
    arrays = random_arrays(problem, number)
    memory = Compiled(problem, build_artifact(problem, config, TARGETS[isa]))(arrays)
    check_result(problem, memory, expected(problem, arrays))
