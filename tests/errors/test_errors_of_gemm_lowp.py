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
        ({"bits": (0, 8)}, "bits", r"bits=\(0, 8\) is not legal: expected the bits of lhs and of rhs, each 1 to 8"),
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
        ({"output_stages": np.int64(1)}, "bad-output-stage", "output_stages=.*1.* is not legal: expected a list"),
        ({"output_stages": iter([("bias", 1)])}, "bad-output-stage", "is not legal: expected a list of stages"),
        ({"output_stages": [("bias", [1, [2]])]}, "bad-output-stage", "output stage bias: values is .* a whole number"),
        ({"rounding": np.array([1, 2])}, "rounding", r"rounding=array\(\[1, 2\]\) is not legal"),
        ({"order": np.array(["row", "column"])}, "order", "order=array.* is not legal"),
        ({"seed": -1}, "seed", "seed=-1 is not legal: expected a whole number of at least 0"),
        ({"lhs_offset": [1, [2]]}, "value", r"lhs_offset=\[1, \[2\]\] is not legal: expected a number"),
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


class _Odd:
    pass


ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1.0, float("nan"), 1j, "x", b"x", (), (1, 2), [1], [1, [2]], [None], {}, {"a": 1}, set(),
    object(), _Odd, _Odd(), iter([1]), range(3), len, np.int64(1), np.float32(1), np.array([1, 2]), np.array(["a"]),
    np.array(None), np.zeros(0), np.zeros((4, 6), np.int32), np.zeros((4, 5), object), np.zeros((4, 6), ">i4"),
    np.ma.masked, np.datetime64("2020"), [("bias",)], [("bias", None)], [("clamp", np.array([[1, 2]]), 3)],
    [("tanh", np.zeros(0), 1)], [(np.array(["scale"]),)], [({},)], "clamp", (np.int64(8), 8),
)  # fmt: skip
FEW_BITS: dict[str, Any] = {"rounding": "probabilistic", "bits": (7, 7)}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", [{}, FEW_BITS], ids=["nearest", "probabilistic"])
@pytest.mark.parametrize("odd", ODD, ids=lambda x: type(x).__name__)
def test_no_argument_raises_another_error(odd: Any, options: dict[str, Any]) -> None:
    """Whatever is given for whichever argument, it is taken or a UsageError says what is wrong."""
    shared = ["lhs_offset", "rhs_offset", "output_stages", "bits", "rounding", "seed", "order", "threads"]
    calls = {cs.gemm_lowp: (["lhs", "rhs", "out", *shared], {"lhs": LHS, "rhs": RHS}),
             cs.pack_lowp: (["rows", "rhs", "lhs_type", *shared], {"rows": 4, "rhs": RHS})}  # fmt: skip
    for call, (names, arguments) in calls.items():
        for name in names:
            try:
                call(**(arguments | options | {name: odd}))
            except cs.UsageError as error:
                assert "Traceback" not in str(error)


def test_equal_arguments_of_another_type_are_refused_whatever_was_called_before() -> None:
    cs.gemm_lowp(LHS, RHS, seed=1, threads=1)
    for changes in ({"seed": True}, {"seed": 1.0}, {"threads": 1.0}, {"order": b"row"}):
        with pytest.raises(cs.UsageError):
            cs.gemm_lowp(LHS, RHS, **{"seed": 1, "threads": 1, **changes})
