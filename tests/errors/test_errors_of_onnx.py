"""Bad input to ONNX's operators: code and text of each error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import convsmith as cs

X, W, T = (np.ones(shape, np.float32) for shape in ((1, 4, 6, 6), (6, 4, 3, 3), (4, 6, 3, 3)))
U, V = np.ones(X.shape, np.uint8), np.ones(W.shape, np.uint8)
A, C = np.ones((4, 5), np.uint8), np.ones((5, 3), np.int8)
ZERO = np.uint8(0)
QCONV = {"x": U, "x_scale": 0.5, "x_zero_point": ZERO, "w": V, "w_scale": 0.5, "w_zero_point": ZERO,
         "y_scale": 0.5, "y_zero_point": ZERO}  # fmt: skip
QMATMUL = {"a": A, "a_scale": 0.5, "a_zero_point": ZERO, "b": C, "b_scale": 0.5, "b_zero_point": np.int8(0),
           "y_scale": 0.5, "y_zero_point": ZERO}  # fmt: skip
CONV, TRANSPOSE, INTEGER = {"X": X, "W": W}, {"X": X, "W": T}, {"x": U, "w": V}
MATMUL = {"A": A, "B": C}


def refused(function: Any, code: str, texts: tuple[str, ...], arguments: dict[str, Any]) -> None:
    with pytest.raises(cs.ConvsmithError) as caught:
        function(**arguments)
    assert type(caught.value) is cs.UsageError
    assert caught.value.code == code
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    "arguments,code,texts",
    [
        ({"X": X[0, 0]}, "rank", ("X: rank is 2", "shape (6, 6)", "legal are 3 to 5")),
        ({"W": W[0]}, "rank", ("W: rank is 3", "legal is the rank of X, 4")),
        ({"X": X[:, :3]}, "shape", ("X has 3 channels", "W has 4 for each of 1 groups", "legal are 4 channels of X")),
        ({"group": 2}, "shape", ("X has 4 channels", "W has 4 for each of 2 groups", "legal are 8 channels of X")),
        ({"group": 3}, "bad-groups", ("group=3 does not divide the 4 channels of X",)),
        ({"W": W[:5, :2], "group": 2}, "bad-groups", ("group=2 does not divide the 5 output channels of W",)),
        ({"group": 0}, "bad-groups", ("group=0", "at least 1")),
        ({"group": 1.5}, "bad-dim", ("group=1.5 is not a whole number",)),
        (
            {"kernel_shape": [3, 2]},
            "shape",
            ("kernel_shape=(3, 2)", "that of W, shape (6, 4, 3, 3)", "legal is (3, 3)"),
        ),
        ({"auto_pad": "SAME"}, "bad-padding", ("auto_pad='SAME'", "NOTSET or SAME_UPPER or SAME_LOWER or VALID")),
        ({"auto_pad": "VALID", "pads": [0] * 4}, "bad-padding", ("auto_pad=VALID and pads are both given",)),
        ({"pads": [1, 1]}, "bad-dim", ("pads=(1, 1) has 2 entries; legal are 4",)),
        ({"pads": [1, 1, -1, 1]}, "bad-dim", ("pads=(1, 1, -1, 1)", "at least 0")),
        ({"strides": [1]}, "bad-dim", ("strides=(1,) has 1 entries; legal are 2",)),
        ({"strides": [0, 1]}, "bad-dim", ("strides=(0, 1)", "at least 1")),
        ({"strides": [1.5, 1]}, "bad-dim", ("strides=1.5 is not a whole number",)),
        ({"dilations": 2}, "bad-dim", ("dilations=2", "whole numbers in a list")),
        ({"dilations": [3, 1]}, "bad-output-size", ("axis 0: the kernel spans 7 elements", "only 6 (0 + 6 + 0)")),
        ({"X": X.tolist()}, "not-an-array", ("X: expected an array, got list",)),
        ({"X": U}, "dtype", ("X: dtype is uint8", "legal: float32, float64, float16, bfloat16")),
        ({"W": W.astype(np.float64)}, "dtype", ("W: dtype is float64; legal: float32", "never cast")),
        ({"B": np.ones(5, np.float32)}, "shape", ("B: shape is (5,); legal is (6,)",)),
        ({"B": np.ones(6)}, "dtype", ("B: dtype is float64; legal: float32",)),
    ],
)
def test_conv(arguments: dict[str, Any], code: str, texts: tuple[str, ...]) -> None:
    refused(cs.onnx.conv, code, texts, CONV | arguments)


@pytest.mark.parametrize(
    "arguments,code,texts",
    [
        ({"W": W}, "shape", ("X has 4 channels (dim 1), but W has 6 (dim 0)",)),
        ({"group": 3}, "bad-groups", ("group=3 does not divide the 4 channels of X",)),
        ({"output_shape": [8, 8], "pads": [0] * 4}, "bad-padding", ("output_shape and pads are both given",)),
        ({"output_shape": [9, 8]}, "bad-output-size", ("output_shape=(9, 8): 9 on axis 0", "legal are 1 to 8")),
        ({"output_shape": [8, 15], "strides": [1, 2]}, "bad-output-size", ("15 on axis 1", "legal are 1 to 14")),
        ({"output_shape": [8]}, "bad-dim", ("output_shape=(8,) has 1 entries; legal are 2",)),
        ({"output_shape": [0, 8]}, "bad-dim", ("output_shape=(0, 8)", "at least 1")),
        ({"output_padding": [1, 0]}, "bad-output-size", ("output_padding=(1, 0): 1 on axis 0", "legal are 0 to 0")),
        ({"pads": [4, 0, 4, 0]}, "bad-output-size", ("axis 0: pads 4 and 4 leave nothing of 8 elements",)),
    ],
)
def test_conv_transpose(arguments: dict[str, Any], code: str, texts: tuple[str, ...]) -> None:
    refused(cs.onnx.conv_transpose, code, texts, TRANSPOSE | arguments)


@pytest.mark.parametrize(
    "arguments,code,texts",
    [
        ({"x": X}, "dtype", ("x: dtype is float32; legal: uint8, int8",)),
        ({"x": U[0, 0]}, "rank", ("x: rank is 2",)),
        ({"x_zero_point": np.int8(1)}, "dtype", ("x_zero_point: dtype is int8; legal: uint8",)),
        ({"x_zero_point": [1, 2]}, "shape", ("x_zero_point: shape is (2,); legal is one number",)),
        ({"x_zero_point": 300}, "value", ("x_zero_point=300", "whole numbers from 0 to 255")),
        ({"x_zero_point": 1.5}, "value", ("x_zero_point=1.5", "whole numbers from 0 to 255")),
        ({"w_zero_point": [1, 2]}, "shape", ("w_zero_point: shape is (2,)", "one number, or 6")),
        ({"w_zero_point": np.zeros((6, 1), np.uint8)}, "shape", ("w_zero_point: shape is (6, 1)",)),
    ],
)
def test_conv_integer(arguments: dict[str, Any], code: str, texts: tuple[str, ...]) -> None:
    refused(cs.onnx.conv_integer, code, texts, INTEGER | arguments)


@pytest.mark.parametrize(
    "arguments,code,texts",
    [
        ({"y_zero_point": 0}, "not-an-array", ("y_zero_point: expected an array, got int",)),
        ({"y_zero_point": np.int32(0)}, "dtype", ("y_zero_point: dtype is int32; legal: uint8, int8",)),
        ({"x_scale": 0}, "value", ("x_scale=0", "finite numbers other than 0")),
        ({"y_scale": float("nan")}, "value", ("y_scale=nan", "finite numbers other than 0")),
        ({"x_scale": np.array(0.5)}, "dtype", ("x_scale: dtype is float64; legal: float32, float16, bfloat16",)),
        ({"w_scale": [0.5] * 5}, "shape", ("w_scale: shape is (5,); legal is one number, or 6",)),
        ({"y_scale": [0.5] * 6}, "shape", ("y_scale: shape is (6,); legal is one number",)),
        ({"B": np.zeros(6, np.float32)}, "dtype", ("B: dtype is float32; legal: int32",)),
    ],
)
def test_qlinear_conv(arguments: dict[str, Any], code: str, texts: tuple[str, ...]) -> None:
    refused(cs.onnx.qlinear_conv, code, texts, QCONV | arguments)


@pytest.mark.parametrize(
    "arguments,code,texts",
    [
        ({"B": C.T}, "shape", ("A of shape (4, 5) and B of shape (3, 5)", "A has K=5, B has K=3")),
        ({"A": A[0, 0]}, "rank", ("A: rank is 0", "legal are 1 to 6")),
        ({"A": A.reshape(2, 2, 5), "B": C[None].repeat(3, 0)}, "shape", ("batch dims 2 and 3 do not meet",)),
        ({"a_zero_point": np.ones(5, np.uint8)}, "shape", ("a_zero_point: shape is (5,)", "(4,), and (4, 1)")),
        ({"b_zero_point": np.ones((5, 3), np.int8)}, "shape", ("b_zero_point: shape is (5, 3)", "(3,), and (1, 3)")),
        ({"b_zero_point": np.ones((1, 1, 3), np.int8)}, "shape", ("b_zero_point: shape is (1, 1, 3)",)),
        ({"b_zero_point": np.uint8(3)}, "dtype", ("b_zero_point: dtype is uint8; legal: int8",)),
    ],
)
def test_matmul_integer(arguments: dict[str, Any], code: str, texts: tuple[str, ...]) -> None:
    refused(cs.onnx.matmul_integer, code, texts, MATMUL | arguments)


@pytest.mark.parametrize(
    "arguments,code,texts",
    [
        ({"b_scale": [1, 2]}, "shape", ("b_scale: shape is (2,)", "one number, (3,), and (1, 3)")),
        ({"y_scale": [1, 2, 3]}, "shape", ("y_scale: shape is (3,); legal is one number",)),
        ({"a_scale": "x"}, "value", ("a_scale='x'", "finite numbers other than 0")),
        ({"a_scale": 1e-60}, "value", ("a_scale=1e-60", "finite numbers other than 0")),
        ({"b": C.astype(np.int16)}, "dtype", ("b: dtype is int16; legal: uint8, int8",)),
    ],
)
def test_qlinear_matmul(arguments: dict[str, Any], code: str, texts: tuple[str, ...]) -> None:
    refused(cs.onnx.qlinear_matmul, code, texts, QMATMUL | arguments)
