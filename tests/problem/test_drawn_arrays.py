"""The contents of random arrays: the operands of each kind of post-op, integers within limits, and unwritten memory."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.problem import parse_problem
from convsmith.problem.data import is_limited, keep_within, random_arrays, unwritten
from convsmith.problem.integer_steps import INTEGER_STEPS

LAYER = "mb2ic64ih6oc64kh3ph1"


def test_integers_keep_within_limits() -> None:
    kinds = {"a": np.int8, "b": np.uint8, "c": np.int32, "d": np.float32, "e": np.int8}
    arrays = {name: np.array([-128, -5, 0, 5, 127]).astype(np.int8).astype(t) for name, t in kinds.items()}
    before = {name: x.copy() for name, x in arrays.items()}
    keep_within({"a": 4, "b": 4, "c": 100, "d": 1, "e": 127, "absent": 3}, arrays)
    assert arrays["a"].tolist() == [-4, -4, 0, 4, 4] and arrays["b"].tolist() == [4, 4, 0, 4, 4]
    assert arrays["c"].tolist() == [-100, -5, 0, 5, 100]
    for name in "de":
        assert np.array_equal(arrays[name], before[name])
    for dtype, largest in ((np.int8, 127), (np.uint8, 255)):
        assert is_limited(np.dtype(dtype), largest - 1) and not is_limited(np.dtype(dtype), largest)
    assert not is_limited(np.dtype(np.float32), 0)


def test_arrays_of_a_problem_keep_within_limits() -> None:
    problem = parse_problem(f"--dt=u8:s8:s32 {LAYER}")
    assert np.abs(random_arrays(problem)["wei"].astype(int)).max() > 64
    limited = random_arrays(problem, limits={"wei": 64})["wei"]
    assert np.abs(limited.astype(int)).max() == 64


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.float32, np.float64, np.float16])
def test_unwritten_memory(dtype: type) -> None:
    x = unwritten((2, 3), np.dtype(dtype))
    assert x.shape == (2, 3) and x.dtype == dtype
    if np.dtype(dtype).kind == "f":
        assert np.isnan(x).all()
    else:
        assert set(x.tobytes()) == {0xA5}


@pytest.mark.parametrize("alg", ["s32_add", "s32_mul", "s32_mulh", "s32_rshift", "s32_shl"])
def test_operands_of_integer_steps_lie_within_their_limits(alg: str) -> None:
    found = random_arrays(parse_problem(f"--dt=u8:s8:s32 --attr-post-ops={alg}:per_oc {LAYER}"))
    (operand,) = (x for name, x in found.items() if name.startswith("post_op"))
    low, high = map(int, INTEGER_STEPS[alg].limits[0])
    assert operand.dtype == np.int32 and low <= operand.min() < operand.max() <= high
    assert int(operand.max()) - int(operand.min()) > (high - low) // 2


def test_divisors_are_powers_of_two() -> None:
    found = random_arrays(parse_problem(f"--attr-post-ops=div:f32:per_oc {LAYER}"))
    (operand,) = (x for name, x in found.items() if name.startswith("post_op"))
    assert set(operand.ravel().tolist()) == {1.0, 2.0, 4.0}


def test_scales_are_powers_of_two() -> None:
    found = random_arrays(parse_problem(f"--attr-scales=wei:per_oc {LAYER}"))
    (scales,) = (x for name, x in found.items() if name not in ("src", "wei"))
    assert set(scales.ravel().tolist()) == {0.25, 0.5, 1.0, 2.0}
