"""Problems taken from oneDNN's lists (tests/data): descriptors and lines mean what the files say they mean."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from convsmith.problem import Conv, parse_problem


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a file, by column."""
    data = json.loads((Path(__file__).parents[1] / "data" / name).read_text())
    return [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]


CONVOLUTIONS = rows("oneDNN_problems.json")
DECONVOLUTIONS = rows("oneDNN_deconvolutions.json")
CASES = rows("oneDNN_attr_cases.json")


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


def test_none_is_missing() -> None:
    assert (len(CONVOLUTIONS), len(DECONVOLUTIONS), len(CASES)) == (175, 25, 300)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("expected", CONVOLUTIONS, ids=lambda problem: problem["desc"][:60])
def test_convolutions(expected: dict[str, Any]) -> None:
    problem = Conv.parse(expected["desc"])
    assert fields(problem) == {column: value for column, value in expected.items() if column != "desc"}
    assert Conv.parse(str(problem)) == problem


@pytest.mark.parametrize("expected", DECONVOLUTIONS, ids=lambda problem: problem["desc"][:60])
def test_deconvolutions(expected: dict[str, Any]) -> None:
    problem = Conv.parse(f"--deconv {expected['desc']}")
    assert problem.deconv
    assert fields(problem) == {column: value for column, value in expected.items() if column != "desc"}
    assert Conv.parse(str(problem)) == problem


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["line"][:100])
def test_lines_with_options(case: dict[str, Any]) -> None:
    line = case["line"]
    problem = parse_problem(line)
    assert isinstance(problem, Conv)
    assert parse_problem(str(problem)) == problem
    canonical = problem.canonical()
    assert parse_problem(str(canonical)) == canonical == canonical.canonical()
    shapes = tuple(map(tuple, (case["src"], case["wei"], case["dst"])))
    assert (problem.src_shape, problem.wei_shape, problem.product_shape) == shapes
    unfused = replace(problem, post_ops=(), scales=())
    assert unfused.flops_real == 2 * case["macs"]
    options = dict(word[2:].split("=", 1) for word in line.split(" ")[:-1] if "=" in word)
    types = options.get("dt", "f32").split(":")
    assert problem.dt == tuple(types * 3 if len(types) == 1 else types)
    assert (problem.dir, problem.deconv) == (options["dir"], line.startswith("--deconv "))
    for option, entries in (("scales", problem.scales), ("zero-points", problem.zero_points)):
        text = options.get(f"attr-{option}", "")
        named = sorted(item.split(":")[0] for item in text.split("+") if item)
        assert sorted(entry.argument for entry in entries) == named
    words = options["attr-post-ops"].split("+") if "attr-post-ops" in options else []
    assert len(problem.post_ops) == len(words)
    for word, post_op in zip(words, problem.post_ops, strict=True):
        assert str(post_op).split(":")[0] == word.removeprefix("eltwise_").split(":")[0]
