"""Graphs of bytes that computed wrong numbers, or none: each is one node between conversions, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto
from onnx_networks import NetworkBuilder

import convsmith as cs

runtime: Any = import_module("onnxruntime")


class _Builder(NetworkBuilder):
    """Builds a model whose inputs are bytes with scales that are powers of two."""

    def real(self, name: str, *shape: int, scale: float = 1.0, point: int = 0) -> str:
        """Add an input of bytes, and their conversion to floats."""
        x = self.input(name, *shape, type_=TensorProto.INT8)
        return str(self.op("DequantizeLinear", x, self.held(np.float32(scale)), self.held(np.int8(point))))

    def known(self, values: Any, scale: Any) -> str:
        """Add a constant of bytes, and its conversion to floats."""
        return str(self.op("DequantizeLinear", self.held(np.int8(values)), self.held(np.float32(scale)), axis=0))

    def converted(self, x: str, scale: float) -> str:
        """Add the conversion to bytes and back."""
        code = self.held(np.float32(scale)), self.held(np.int8(3))
        return str(self.op("DequantizeLinear", self.op("QuantizeLinear", x, *code), *code))


def _biased_by_bytes(b: _Builder) -> str:
    """The bias is no multiple of the scale of the sums."""
    w = b.known(np.arange(-8, 8).reshape(8, 2, 1, 1), np.float32([4, 1, 0.25] * 2 + [2, 8]))
    bias = b.known([9, 7, -5, 3, 1, -1, 0, 100], 0.125)
    return b.converted(str(b.op("Conv", b.real("x", 1, 2, 3, 3, scale=4), w, bias)), 2.0)


def _biased_by_values(b: _Builder) -> str:
    """A run computes the bias, from bytes."""
    return str(b.op("Conv", b.real("x", 2, 2, 3, 3), b.known(np.ones((4, 2, 1, 1)), 0.5), b.real("b", 4, point=1)))


def _with_two_addends(b: _Builder) -> str:
    """Both addends are bytes of other scales."""
    y = b.op("Conv", b.real("x", 1, 2, 3, 3), b.known(np.ones((4, 2, 1, 1)), 0.5))
    for n, scale in enumerate((2.0, 4.0)):
        y = b.op("Add", y, b.real(f"a{n}", 1, 4, 3, 3, scale=scale, point=n))
    return b.converted(y, 8.0)


def _times_bytes(b: _Builder) -> str:
    """A factor of each channel is bytes."""
    y = b.op("Conv", b.real("x", 1, 2, 3, 3), b.known(np.ones((4, 2, 1, 1)), 0.5))
    return b.converted(str(b.op("Mul", y, b.real("f", 1, 4, 1, 1, scale=0.25, point=2))), 1.0)


def _padded_by_a_number(b: _Builder) -> str:
    """No byte stands for the number."""
    return str(b.op("Pad", b.real("x", 2, 5, scale=4), b.held(np.int64([1, 1, 0, 2])), b.held(np.float32(1))))


def _joined_to_constants(b: _Builder) -> str:
    x = b.op("Concat", b.known(np.arange(6).reshape(2, 3), 0.5), b.real("x", 2, 4, scale=2), axis=1)
    return b.converted(x, 0.25)


def _unchanged(b: _Builder) -> str:
    """The function changes no number that a byte stands for, and its result is an output."""
    return str(b.op("Relu", b.real("x", 2, 5, point=-128)))


def _of_one_number(b: _Builder) -> str:
    return b.converted(str(b.op("ReduceSum", b.real("x", 2, 5), keepdims=0)), 2.0)


_CASES: tuple[Callable[[_Builder], str], ...] = (
    _biased_by_bytes, _biased_by_values, _with_two_addends, _times_bytes, _padded_by_a_number, _joined_to_constants,
    _unchanged, _of_one_number,
)  # fmt: skip


@pytest.mark.parametrize("build", _CASES, ids=lambda build: build.__name__[1:])
def test_results_are_exact(build: Callable[[_Builder], str]) -> None:
    b = _Builder()
    model = b.model(build(b))
    rng = np.random.default_rng(1)
    arrays = {name: rng.integers(-20, 21, shape).astype(np.int8) for name, (_, shape) in b.inputs.items()}
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (expected,) = runtime.InferenceSession(model.SerializeToString(), options).run(None, arrays)
    (result,) = cs.onnx.compile(model, threads=1).run(arrays).values()
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)
