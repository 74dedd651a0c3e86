"""Errors of `gemm_lowp`: class, code and text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import convsmith as cs

LHS, RHS = np.zeros((4, 5), np.uint8), np.zeros((5, 6), np.uint8)


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"lhs": [[1]]}, "not-an-array", "lhs: expected an array, got list"),
        ({"lhs": np.zeros(5, np.uint8)}, "rank", r"lhs: rank is 1, shape \(5,\); legal is 2"),
        ({"rhs": np.zeros((5, 6))}, "dtype", "rhs: type is float64; legal are uint8 and int8"),
        (
            {"rhs": np.zeros((4, 6), np.int8)},
            "shape",
            "lhs of shape .* has depth 5, rhs of shape .* has depth 4; legal",
        ),
        ({"bits": (0, 8)}, "bits", r"bits=\(0, 8\) is not legal: expected those of lhs and of rhs, each 1 to 8"),
        ({"bits": (8, 9)}, "bits", r"bits=\(8, 9\) is not legal"),
        ({"bits": 8}, "bits", "bits=8 is not legal"),
        ({"bits": (7.0, 8)}, "bits", "is not legal"),
        ({"rounding": "up"}, "rounding", "rounding='up' is not legal: expected nearest or probabilistic"),
        ({"order": "C"}, "order", "order='C' is not legal: expected row or column"),
        ({"lhs_offset": 0.5}, "offset", r"lhs_offset: float64 of shape \(\); legal are a whole number, and \(4,\)"),
        ({"rhs_offset": np.zeros(5, int)}, "offset", r"and \(6,\) of them, one for each column of rhs"),
        ({"rhs_offset": 2**31}, "offset", "rhs_offset=2147483648 is not legal: expected -2147483647 to 2147483647"),
        (
            {"lhs_offset": 200_000, "rhs_offset": -2500},
            "overflow",
            r"lhs_offset=200000 and rhs_offset=-2500 at depth 5: sums may reach 5 \* 200255 \* 2500 = 2503187500, "
            "beyond 32 bits; legal is up to 2147483647, such as a depth of 4",
        ),
        ({"lhs_offset": np.array([0, 7, 1, 2**31 - 1])}, "overflow", r"lhs_offset=0\.\.2147483647 and rhs_offset=0"),
        ({"out": np.zeros((4, 5), np.int32)}, "shape", r"out: expected an array of shape \(4, 6\), got \(4, 5\)"),
        ({"output_stages": [("scale", 1)]}, "bad-output-stage", "output stage scale has 1 numbers"),
    ],
)
def test_errors(changes: dict[str, Any], code: str, message: str) -> None:
    arguments = {"lhs": LHS, "rhs": RHS, **changes}
    with pytest.raises(cs.UsageError, match=message) as error:
        cs.gemm_lowp(**arguments)
    assert error.value.code == code


def test_depth_that_8_bits_alone_overflow() -> None:
    deep = np.zeros((1, 33026), np.uint8)
    with pytest.raises(cs.UsageError, match=r"33026 \* 255 \* 255 = 2147515650, beyond 32 bits; .* a depth of 33025"):
        cs.gemm_lowp(deep, deep.T)
    signed = deep.view(np.int8)
    assert cs.gemm_lowp(signed, signed.T).tolist() == [[0]]
    with pytest.raises(cs.UsageError, match="beyond 32 bits"):
        cs.gemm_lowp(signed, signed.T, bits=(7, 7))


def test_out_of_another_type() -> None:
    with pytest.raises(cs.UsageError, match="out: dtype is int64"):
        cs.gemm_lowp(LHS, RHS, out=np.zeros((4, 6), np.int64))
