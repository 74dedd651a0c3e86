"""Transposes that keep the order of elements share the memory of their source, and others move elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from beside_onnx_runtime import exact_network
from onnx_networks import NetworkBuilder

from convsmith.network.operators.move import Transpose


@pytest.mark.parametrize(
    ("shape", "axes", "tags", "keeps"),
    [
        ((2, 3, 4, 5), (0, 2, 3, 1), ("axb", "abx"), True),
        ((2, 4, 5, 3), (0, 3, 1, 2), ("abx", "axb"), True),
        ((2, 3, 4, 5), (0, 2, 3, 1), ("abx", "abx"), False),
        ((2, 3, 4, 5), (0, 3, 2, 1), ("axb", "abx"), False),
        ((2, 3, 4, 4), (0, 1, 3, 2), ("axb", "axb"), False),
        ((1, 3, 1, 5), (2, 0, 1, 3), ("any", "any"), True),
        ((2, 3, 4), (0, 1, 2), ("any", "any"), True),
    ],
)
def test_order_of_elements(shape: tuple[int, ...], axes: tuple[int, ...], tags: tuple[str, str], keeps: bool) -> None:
    op = Transpose("f32", shape, axes, tags)
    assert op.keeps_order is keeps
    x = np.arange(np.prod(shape), dtype=np.float32)
    stored = np.lib.stride_tricks.as_strided(x, shape, [4 * s for s in op.inputs[0].layout.strides])
    given = np.lib.stride_tricks.as_strided(x, op.result.shape, [4 * s for s in op.result.layout.strides])
    assert np.array_equal(given, stored.transpose(axes)) is keeps


def _checked(model: Any) -> list[str]:
    """Return the operators of a network's steps that move elements, if its results are right."""
    return [step.work for step in exact_network(model).image.steps if step.work.startswith("Transpose")]


def test_rows_of_channels_between_convolutions_are_not_moved() -> None:
    """Products of the channels of each pixel read what a convolution wrote, and a convolution what they wrote."""
    b = NetworkBuilder(1)
    x = b.op("Relu", b.conv(b.input("x", 2, 32, 6, 5), 32, 16, 3))
    rows = b.op("MatMul", b.op("Transpose", x, perm=[0, 2, 3, 1]), b.weights(16, 16))
    y = b.op("Add", x, b.op("Transpose", rows, perm=[0, 3, 1, 2]))
    assert _checked(b.model(b.conv(y, 16, 8, 3))) == []


def test_a_source_that_is_read_later_stays() -> None:
    """An addend that shares memory with a value that a later node reads is not overwritten."""
    b = NetworkBuilder(2)
    x = b.op("Relu", b.conv(b.input("x", 1, 32, 6, 5), 32, 16, 1))
    rows = b.op("Transpose", x, perm=[0, 2, 3, 1])
    y = b.op("Add", b.op("MatMul", rows, b.weights(16, 16)), rows)
    z = b.op("Add", b.op("Transpose", y, perm=[0, 3, 1, 2]), x)
    assert _checked(b.model(b.conv(z, 16, 8, 3))) == []


def test_an_input_that_is_transposed_to_an_output_is_copied() -> None:
    b = NetworkBuilder(3)
    x = b.input("x", 1, 1, 6, 5)
    assert len(_checked(b.model(b.op("Transpose", x, perm=[1, 0, 2, 3])))) == 1


def test_other_transposes_move_elements() -> None:
    b = NetworkBuilder(4)
    x = b.conv(b.input("x", 2, 32, 6, 6), 32, 16, 3)
    y = b.op("Relu", b.op("Transpose", x, perm=[0, 1, 3, 2]))
    assert sum("axes=(0, 1, 3, 2)" in work for work in _checked(b.model(b.conv(y, 16, 8, 3)))) == 1
