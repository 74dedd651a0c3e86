"""Nodes that no exporter writes: each is refused by a message that names what is wrong, and what would be right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx_networks import NetworkBuilder

import convsmith as cs

_IMAGE = (1, 2, 6, 6)
_THREE, _W = np.ones(3, np.float32), np.ones((2, 2, 3, 3), np.float32)


def _whole(*numbers: int) -> Any:
    return np.int64(numbers)


_CASES: tuple[tuple[str, tuple[int, ...], tuple[Any, ...], dict[str, Any], str], ...] = (
    ("Conv", _IMAGE, (_W, _THREE), {}, r"has the shape \(3,\); legal are 2 elements"),
    ("ConvTranspose", _IMAGE, (_W, _THREE), {}, r"has the shape \(3,\); legal are 2 elements"),
    ("BatchNormalization", _IMAGE, (_THREE,) * 4, {}, r"has the shape \(3,\); legal are 2 elements"),
    ("BatchNormalization", (4,), (_THREE,) * 4, {}, "legal are 5, the first of"),
    ("BatchNormalization", _IMAGE, (_THREE,), {}, "it has 2 inputs, .* legal are 5"),
    ("MaxPool", _IMAGE, (), {"kernel_shape": [0, 2]}, "legal are sizes of at least 1"),
    ("Add", _IMAGE, (_THREE,), {}, "do not broadcast; legal are equal sizes, or 1"),
    ("Slice", (4,), (_whole(0), _whole(4), _whole(0), _whole(0)), {}, "steps are .*; legal are all numbers but 0"),
    ("Split", (4,), (_whole(-1, 5),), {"outputs": 2}, r"sizes are \(-1, 5\); legal are parts of 4 elements"),
    ("Pad", (4,), (_whole(-3, -3),), {}, r"pads leave \(-2,\) of \(4,\)"),
    ("ReduceLogSumExp", (4,), (_whole(9),), {}, "legal are -1 to 0"),
)


@pytest.mark.parametrize(("operator", "shape", "constants", "more", "message"), _CASES)
def test_a_node_is_refused(
    operator: str, shape: tuple[int, ...], constants: tuple[Any, ...], more: dict[str, Any], message: str
) -> None:
    b = NetworkBuilder()
    made = b.op(operator, b.input("x", *shape), *map(b.held, constants), **more)
    with pytest.raises(cs.ConvsmithError, match=message):
        cs.onnx.compile(b.model(made if isinstance(made, str) else made[0]), threads=1)


def test_a_bias_of_a_run_has_an_element_for_each_channel() -> None:
    b = NetworkBuilder()
    y = b.op("Conv", b.input("x", *_IMAGE), b.held(_W), b.input("bias", 3))
    with pytest.raises(cs.ConvsmithError, match=r"bias has the shape \(3,\); legal are 2 elements"):
        cs.onnx.compile(b.model(y), threads=1)


def test_scales_of_a_resize_are_positive() -> None:
    b = NetworkBuilder()
    y = b.op("Resize", b.input("x", *_IMAGE), "", b.held(np.float32([1, 1, -2, np.nan])))
    with pytest.raises(cs.ConvsmithError, match="legal are positive numbers"):
        cs.onnx.compile(b.model(y), threads=1)
