"""The products that gemmlowp's own suite runs: its shapes, offsets, scales and storage orders, against numpy."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.problem.output_stages import staged

DATA: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "gemmlowp_products.json").read_text())
USUAL = "CFF"
"""Storage orders of lhs, rhs and result in most of its tests."""


def cases() -> Iterator[Any]:
    for m, k, n, params, orders in [*DATA["kernel"], *DATA["gemm"], *DATA["gemv"]]:
        yield pytest.param(m, k, n, params, orders, id=f"{m}x{k}x{n}-{params}-{orders}")


def in_order(x: np.ndarray, order: str) -> np.ndarray:
    return np.asarray(x, order=order)  # type: ignore[call-overload, no-any-return]


def shift_for(acc: np.ndarray, offset: int, mult: int) -> int:
    """So far down that the median lies well within 8 bits, and some entries saturate."""
    middle = abs(int(np.median(acc)) + offset) * mult
    return next((e for e in range(32) if middle >> e < 224), 31)


@pytest.mark.sampled(20, "params", "orders")
@pytest.mark.parametrize(("m", "k", "n", "params", "orders"), list(cases()))
def test_products(m: int, k: int, n: int, params: str, orders: str) -> None:
    rng = np.random.default_rng(m * k + n)
    lhs, rhs = rng.integers(0, 256, (m, k), np.uint8), rng.integers(0, 256, (k, n), np.uint8)
    settings = [*(DATA["params"]["All"] if params == "All" else DATA["params"]["OnlyGenericCase"])]
    layouts = ["".join(o) for o in itertools.product("CF", repeat=3)] if orders == "All" else [USUAL]
    runs = [(s, USUAL) for s in settings] + [(settings[-1], o) for o in layouts if o != USUAL]
    for (lhs_offset, rhs_offset, result_offset, mult), (left, right, result) in runs:
        acc = ((lhs + np.float64(lhs_offset)) @ (rhs + np.float64(rhs_offset))).astype(np.int64)
        stages = [("scale", result_offset, mult, shift_for(acc, result_offset, mult)), ("saturate_u8",)]
        out = np.zeros((m, n), np.uint8, order=result)  # type: ignore[call-overload]
        factors = in_order(lhs, left), in_order(rhs, right)
        cs.gemm_lowp(*factors, lhs_offset, rhs_offset, output_stages=stages, out=out)
        assert np.array_equal(out, staged(acc, stages))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("stage", [0, 1])
def test_output_stage_runs(stage: int, order: str) -> None:
    runs = DATA["output_stage_runs"]
    rows, depth, columns, offset, mult, shift = runs["rows"][0]
    rng = np.random.default_rng(0)
    lhs, rhs = rng.integers(0, 256, (rows, depth), np.uint8), rng.integers(0, 256, (depth, columns), np.uint8)
    offsets = runs["lhs_offset"], runs["rhs_offset"]
    acc = (lhs.astype(np.int64) + offsets[0]) @ (rhs.astype(np.int64) + offsets[1])
    bias = rng.integers(-100_000, 100_000, (rows, 1) if stage else columns)
    pipelines: list[list[tuple[Any, ...]]] = [
        [("bias", bias), ("scale", offset, mult, shift), ("saturate_u8",)],
        [("scale", offset, mult, shift), ("clamp", 50, 200), ("truncate_u8",)],
        *([("fixed_point_exponent", 1 << 30, e - 8, offset), ("saturate_s16",)] for e in runs["exponents"]),
        [("fixed_point", 1518500250, shift - 2, offset), ("tanh", 3, 60), ("saturate_s8",)],
    ]
    for stages in pipelines:
        result = cs.gemm_lowp(lhs, rhs, *offsets, output_stages=stages, order={"C": "row", "F": "column"}[order])
        expected = staged(acc, stages)
        assert np.array_equal(result, expected)
        assert np.unique(expected).size > 10
