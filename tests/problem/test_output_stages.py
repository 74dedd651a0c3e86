"""gemmlowp's output stages on its own known answers, and what is not legal about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convsmith.diag.errors import UsageError
from convsmith.problem.output_stages import STAGES, result_type, stage_steps, staged

PRODUCTS = np.load(Path(__file__).parents[1] / "data" / "gemmlowp_products.npz")
SHAPE = (2, 3)


@pytest.mark.parametrize("name", ["small", "rows", "network"])
def test_known_answers(name: str) -> None:
    given = {key.partition(".")[2]: PRODUCTS[key] for key in PRODUCTS if key.startswith(name + ".")}
    rows = {key: np.atleast_1d(given[key])[:, None] for key in ("lhs_offset", "result_offset", "result_mult_int")}
    acc = (given["lhs"] + rows["lhs_offset"].astype(np.int64)) @ (given["rhs"] + given["rhs_offset"].astype(np.int64))
    assert np.array_equal(acc, given["acc_int32"])
    scale = ("scale", rows["result_offset"], rows["result_mult_int"], int(given["result_shift"]))
    result = staged(acc, [scale, ("saturate_u8",)])
    assert result.dtype == np.uint8
    assert np.array_equal(result, given["expected"])


def test_casts() -> None:
    acc = np.array([[-(2**31), -40000, -129], [127, 300, 2**31 - 1]])
    assert staged(acc, [("saturate_u8",)]).tolist() == [[0, 0, 0], [127, 255, 255]]
    assert staged(acc, [("saturate_s8",)]).tolist() == [[-128, -128, -128], [127, 127, 127]]
    assert staged(acc, [("saturate_s16",)]).tolist() == [[-32768, -32768, -129], [127, 300, 32767]]
    assert staged(acc, [("truncate_u8",)]).tolist() == [[0, 192, 127], [127, 44, 255]]
    assert staged(acc, []).tolist() == acc.tolist()
    types = {name: result_type([("bias", 1), (name,)]) for name in STAGES if "_" in name and "fixed" not in name}
    assert types == {"saturate_u8": "u8", "saturate_s8": "s8", "saturate_s16": "s16", "truncate_u8": "u8"}


def test_rows_and_columns() -> None:
    acc = np.arange(6).reshape(SHAPE)
    assert staged(acc, [("bias", np.array([[10], [20]]))]).tolist() == [[10, 11, 12], [23, 24, 25]]
    assert staged(acc, [("bias", np.array([10, 20, 30]))]).tolist() == [[10, 21, 32], [13, 24, 35]]
    assert staged(acc, [("clamp", 2, np.array([[9, 3, 3]]))]).tolist() == [[2, 2, 2], [3, 3, 3]]


def test_fixed_point_for_each_row() -> None:
    acc = np.array([[1000, -1001, 5], [-1000, 1001, 2**30]])
    mult = np.array([[1 << 30], [3 << 29]])
    found = staged(acc, [("fixed_point_exponent", mult, np.array([[1], [-2]]), 7)])
    one = staged(acc[:1], [("fixed_point_exponent", 1 << 30, 1, 7)])
    two = staged(acc[1:], [("fixed_point", 3 << 29, 2, 7)])
    assert np.array_equal(found, np.concatenate([one, two]))


def test_steps_that_change_nothing_are_left_out() -> None:
    steps = stage_steps([("scale", 0, 1, 3), ("fixed_point", 5, 0, 0), ("bias", 0)], SHAPE)
    assert [step.alg for step in steps] == ["s32_rshift", "s32_mulh"]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([("scale", 1, 2)], r"output stage scale has 2 numbers; expected \('scale', offset, mult, shift\)"),
        ([("fixed_point", 1)], r"expected \('fixed_point', mult, shift, \[offset\]\)"),
        ([("scale", 1, 2, 32)], "output stage scale: shift is 32; legal is 0 to 31"),
        ([("fixed_point_exponent", 1, -32)], "exponent is -32; legal is -31 to 31"),
        ([("scale", 2**31, 2, 3)], "offset is 2147483648; legal is -2147483648 to 2147483647"),
        ([("scale", 0.5, 2, 3)], "offset is 0.5; expected a whole number, or an array of them"),
        ([("bias", np.zeros(2, int))], r"values has shape \(2,\); legal are one number, \(2, 1\) for rows and \(3,\)"),
        ([("clamp", 3, 2)], "low 3 is above high 2; legal is low <= high"),
        ([("tanh", 0, 0)], "amplitude is 0; legal is 1 to 134217728"),
        ([("tanh", 2**31 - 1, 8)], "8 amplitudes from zero lie beyond 32 bits; legal is an amplitude up to 0"),
        ([("tanh", np.zeros(3, int), 8)], "legal are single numbers for zero and amplitude"),
        ([("saturate_u8",), ("bias", 1)], "output stage saturate_u8: legal is a cast at the end of the stages only"),
        ([("round",)], r"output stage \('round',\) is unknown; legal are \('scale', offset, mult, shift\)"),
        ([7], "output stage 7 is unknown"),
    ],
)
def test_errors(stages: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        stage_steps(stages, SHAPE)
    assert error.value.code == "bad-output-stage"
