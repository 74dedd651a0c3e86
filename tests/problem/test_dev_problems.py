"""The 175 convolutions of tests/data/oneDNN_problems.json: descriptors mean what the file says they mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from convsmith.problem import Conv

DATA = json.loads((Path(__file__).parents[1] / "data" / "oneDNN_problems.json").read_text())
PROBLEMS: list[dict[str, Any]] = [dict(zip(DATA["columns"], row, strict=True)) for row in DATA["rows"]]


def fields(problem: Conv) -> dict[str, object]:
    """The columns of the file, from a problem."""
    out: dict[str, object] = {
        "name": problem.name, "has_groups": problem.has_groups, "nd": problem.rank, "G": problem.g, "MB": problem.mb,
        "IC": problem.ic, "OC": problem.oc, "macs": problem.flops_real // 2,
    }  # fmt: skip
    for column, sizes, absent in (
        ("I", problem.i, 1), ("O", problem.o, 1), ("K", problem.k, 1), ("S", problem.s, 1), ("D", problem.d, 0),
        ("P", problem.p, 0), ("PR", problem.pr, 0),
    ):  # fmt: skip
        for axis, size in zip("DHW", (absent,) * (3 - problem.rank) + sizes, strict=True):
            out[column + axis] = size
    return out


def test_there_are_175() -> None:
    assert len(PROBLEMS) == 175


@pytest.mark.parametrize("expected", PROBLEMS, ids=lambda problem: problem["desc"][:60])
def test_descriptor(expected: dict[str, Any]) -> None:
    problem = Conv.parse(expected["desc"])
    assert fields(problem) == {column: value for column, value in expected.items() if column != "desc"}
    assert Conv.parse(str(problem)) == problem
