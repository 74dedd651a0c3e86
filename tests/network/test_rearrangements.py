"""Rows of moves between images: one operator reads the first image, and results are those of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from beside_onnx_runtime import exact_network, lines
from onnx_networks import NetworkBuilder

from convsmith.machine.registry import target
from convsmith.network.compile import program_of
from convsmith.network.operators.rearrange import Rearrange
from convsmith.onnx.graph import read_graph

Build = Callable[[NetworkBuilder, str], Any]


def _reshaped(b: NetworkBuilder, x: str, *sizes: int) -> str:
    return str(b.op("Reshape", x, b.held(np.int64(sizes))))


def _cut(b: NetworkBuilder, x: str, start: int, end: int, axis: int = 1) -> str:
    return str(b.op("Slice", x, *(b.held(np.int64([n])) for n in (start, end, axis, 1))))


def _shuffled(b: NetworkBuilder, x: str) -> str:
    """Channels of two halves in turn, of an array of 2 x 16 x 6 x 4."""
    y = b.op("Transpose", _reshaped(b, x, 2, 2, 8, 6, 4), perm=[0, 2, 1, 3, 4])
    return _reshaped(b, y, 2, 16, 6, 4)


def _unit(b: NetworkBuilder, x: str) -> str:
    """A unit of ShuffleNet."""
    y = _shuffled(b, x)
    return str(b.op("Concat", _cut(b, y, 0, 8), b.conv(_cut(b, y, 8, 16), 8, 8, 3), axis=1))


def _windows(b: NetworkBuilder, x: str) -> str:
    """The pixels of windows of 3 x 2 as rows for a product."""
    y = b.op("Transpose", _reshaped(b, x, 2, 16, 2, 3, 2, 2), perm=[0, 2, 4, 3, 5, 1])
    return str(b.op("MatMul", _reshaped(b, y, 8, 6, 16), b.weights(16, 8)))


def _image(b: NetworkBuilder, x: str) -> str:
    """Windows, and their image again."""
    y = _reshaped(b, b.op("Relu", _windows(b, x)), 2, 2, 2, 3, 2, 8)
    return b.conv(_reshaped(b, b.op("Transpose", y, perm=[0, 5, 1, 3, 2, 4]), 2, 8, 6, 4), 8, 4, 1)


ROWS: dict[str, tuple[int, Build]] = {
    "units": (4, lambda b, x: b.conv(_unit(b, _unit(b, x)), 16, 4, 1)),
    "an image for a convolution": (1, lambda b, x: b.conv(_shuffled(b, x), 16, 4, 3)),
    "windows": (1, _windows),
    "what is an output too": (1, lambda b, x: (b.conv(y := _shuffled(b, x), 16, 4, 3), y)),
    "a part of parts": (
        0, lambda b, x: b.conv(_cut(b, _reshaped(b, _cut(b, _shuffled(b, x), 3, 9), 2, 4, 6, 6), 1, 4), 3, 4, 1)
    ),
    "rows of channels": (0, lambda b, x: b.op("MatMul", b.op("Transpose", _reshaped(b, x, 2, 16, 24), perm=[0, 2, 1]),
                                              b.weights(16, 4))),
}  # fmt: skip
"""By name: the number of operators, and the network behind a convolution."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_moves_is_one_operator(name: str) -> None:
    b = NetworkBuilder(1)
    count, build = ROWS[name]
    found = build(b, b.conv(b.input("x", 2, 8, 6, 4), 8, 16, 3))
    works = lines(exact_network(b.model(*(found if isinstance(found, tuple) else (found,)))))
    assert sum(work.startswith("Rearrange") for work in works) == count or count == 0
    if count and name != "what is an output too":
        assert not any(work.startswith(("Transpose", "Slice")) and "16" in work for work in works)


def test_windows_and_back() -> None:
    b = NetworkBuilder(2)
    exact_network(b.model(_image(b, b.conv(b.input("x", 2, 8, 6, 4), 8, 16, 3))))


def test_values_of_bf16_are_rearranged_in_their_type() -> None:
    b = NetworkBuilder(3)
    model = b.model(b.conv(_unit(b, b.conv(b.input("x", 2, 8, 6, 4), 8, 16, 3)), 16, 4, 1))
    program = program_of(read_graph(model), machine=target("avx2"), dtype="bf16")
    works = [kernel.work for kernel in program.kernels]
    assert {work.type for work in works if isinstance(work, Rearrange)} == {"bf16"}
