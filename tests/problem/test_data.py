"""Random arrays suit their problems, and the reference computes every kind of problem of oneDNN's lists on them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from convsmith.diag.errors import UsageError
from convsmith.problem import Conv, parse_problem, reference
from convsmith.problem.data import random_arrays
from convsmith.problem.types import TYPES

DATA = json.loads((Path(__file__).parents[1] / "data" / "oneDNN_attr_cases.json").read_text())
LINES = [row[0] for row in DATA["rows"] if row[-1] <= 400_000]


def test_most_lines_are_small() -> None:
    assert len(LINES) >= 150
    for text in ("--deconv", "BWD_D", "BWD_WB", "sum", "prelu", "per_tensor", "s8:s8:f16", "dst:per_dim_1"):
        assert any(text in line for line in LINES), text


@pytest.mark.sampled(6)
@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:100])
def test_lines(line: str) -> None:
    problem = parse_problem(line)
    arrays = random_arrays(problem, 3)
    assert list(arrays) == [tensor.name for tensor in problem.inputs]
    for tensor in problem.inputs:
        array = arrays[tensor.name]
        assert (array.shape, array.dtype) == (tensor.shape, TYPES[tensor.dtype].numpy)
    results = reference(problem, arrays, np.float32)
    assert list(results) == [tensor.name for tensor in problem.outputs]
    wide = reference(problem, arrays, raw=True)
    narrow = reference(problem, arrays, np.float32, raw=True)
    for tensor in problem.outputs:
        result = results[tensor.name]
        assert (result.shape, result.dtype) == (tensor.shape, TYPES[tensor.dtype].numpy)
        finite = np.isfinite(narrow[tensor.name])  # exp overflows
        np.testing.assert_allclose(narrow[tensor.name][finite], wide[tensor.name][finite], rtol=1e-4, atol=1e-4)
        if isinstance(problem, Conv) and problem.flops_real and "log" not in line and "dst:common:42949" not in line:
            assert len(np.unique(result)) > 1, "the data shows nothing"


def test_sums_that_may_be_held_in_f16_are_exact_there() -> None:
    for line in ("mb1ic64iw5oc8kw3", "mb1ic2000iw1oc2kw1", "--dir=BWD_W mb4ic2iw9oc3kw3"):
        problem = parse_problem(line.replace("mb", "--dt=f16 --attr-acc-mode=f16 mb"))
        arrays = {name: np.abs(x.astype(np.float64)) for name, x in random_arrays(problem).items()}
        (largest,) = reference(problem, arrays, raw=True).values()
        assert 4 < largest.max() <= 2**11


def test_seeds() -> None:
    problem = parse_problem("--dir=FWD_B --attr-scales=wei:per_oc mb1ic4ih5oc8kh3")
    one, same, other = (random_arrays(problem, seed) for seed in (1, 1, 2))
    for name in one:
        np.testing.assert_array_equal(one[name], same[name])
        assert (one[name] != other[name]).any()
    assert {float(np.log2(scale)) % 1 for scale in one["scales_wei"]} == {0}


def test_defaults_of_the_line_may_be_left_out() -> None:
    problem = parse_problem("--attr-scales=src:common:0.5 mb1ic1iw2oc1kw1")
    ones = {"src": np.ones((1, 1, 2)), "wei": np.ones((1, 1, 1))}
    np.testing.assert_array_equal(reference(problem, ones)["dst"], [[[0.5, 0.5]]])
    given = reference(problem, ones | {"scales_src": np.array([4.0])})["dst"]
    np.testing.assert_array_equal(given, [[[4, 4]]])


@pytest.mark.parametrize("seed", [-1, 1.5, "x", True, np.array([1, 2])])
def test_a_seed_is_a_whole_number(seed: object) -> None:
    with pytest.raises(UsageError, match="expected a whole number of at least 0"):
        random_arrays(Conv.parse("ic2iw3oc2kw1"), seed)  # type: ignore[arg-type]
