"""Bounds of values: numbers that need no comparison with the limits of an integer type, and no test for NaN."""

from __future__ import annotations

import re

import numpy as np
import pytest

import convsmith as cs
from convsmith.codegen.bounds import bounds_of
from convsmith.ir.buffer import make_buffer
from convsmith.ir.types import F32, S32, DType
from convsmith.ir.value import Binary, Cast, Fma, Load, Value, Where, const
from convsmith.measure.verification import verify_kernel


def loaded(type_: DType) -> Value:
    return Load(make_buffer("x", type_, (), "register"), (), None)


SUM = Cast(F32, loaded(S32))
"""A sum of products of bytes."""


def f32(x: float) -> Value:
    return const(F32, x)


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        (SUM, -(2.0**31), 2.0**31),
        (Binary("max", SUM, f32(0)), 0, 2.0**31),
        (Fma(Binary("max", SUM, f32(0)), f32(0.5), f32(0)), 0, 2.0**30),
        (Fma(SUM, f32(-1), f32(7)), 7 - 2.0**31, 7 + 2.0**31),
        (Binary("min", Binary("max", SUM, f32(-3)), f32(9)), -3, 9),
        (Where("lt", SUM, f32(0), f32(2), Binary("max", SUM, f32(5))), 2, 2.0**31),
    ],
)
def test_bounds_follow_from_those_of_integers(value: Value, low: float, high: float) -> None:
    found = bounds_of(value)
    assert found is not None
    assert found == pytest.approx((low, high), rel=1e-5)
    assert found[0] <= low
    assert found[1] >= high


@pytest.mark.parametrize(
    "value",
    [
        loaded(F32),  # any float
        Binary("max", loaded(F32), f32(0)),  # NaN stays NaN
        Binary("div", SUM, f32(0)),
        Binary("mul", Binary("mul", SUM, f32(1e30)), SUM),  # may be infinite
        Cast(F32, loaded(F32)),
        Binary("add", loaded(S32), loaded(S32)),  # wraps
        f32(float("inf")),
    ],
)
def test_other_values_have_no_bounds(value: Value) -> None:
    assert bounds_of(value) is None


@pytest.mark.parametrize(
    ("types", "steps", "comparisons"),
    [
        ("u8:s8:u8", "relu+linear:0.5", ["ogt"]),  # the relu
        ("u8:s8:u8", "linear:0.5", ["ogt"]),
        ("u8:s8:s8", "relu+linear:0.5", ["ogt"]),
        ("u8:s8:s8", "linear:0.5", ["ogt"]),
        ("f32:f32:u8", "linear:0.5", ["ogt"]),  # NaN is not above 0
        ("f32:f32:s8", "linear:0.5", ["ogt", "ord"]),
    ],
)
@pytest.mark.parametrize("level", ["avx2", "avx512"])
def test_results_are_compared_with_the_limits_that_they_may_exceed(
    level: str, types: str, steps: str, comparisons: list[str]
) -> None:
    """One limit is compared with: words that are rounded from f32 saturate at the other one."""
    kernel = cs.compile(f"--dt={types} --attr-post-ops={steps} mb1ic8iw1oc16ow1kw1", target=level, threads=1)
    assert sorted(set(re.findall(r"fcmp (\w+)", kernel.llvm()))) == comparisons


@pytest.mark.sampled(4)
@pytest.mark.parametrize("steps", ["relu+linear:0.5", "linear:-0.5:3", "relu+linear:0.0625:-7", "relu:0.25+linear:2:9"])
@pytest.mark.parametrize("type_", ["u8", "s8", "s32"])
def test_results_saturate(steps: str, type_: str) -> None:
    kernel = cs.compile(f"--dt=u8:s8:{type_} --attr-post-ops={steps} mb1ic8ih4oc16kh3ph1", threads=1)
    assert verify_kernel(kernel).ok


def test_a_nan_is_zero_in_bytes() -> None:
    kernel = cs.compile("--dt=f32:f32:u8 mb1ic1ih1oc16kh1", threads=1)
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 254.5, 255.5, -3] + [1.5] * 9, np.float32)
    found = kernel.run(src=np.ones((1, 1, 1, 1), np.float32), wei=values.reshape(16, 1, 1, 1))["dst"].ravel()
    assert found.tolist() == [0, 255, 0, 0, 254, 255, 0] + [2] * 9
