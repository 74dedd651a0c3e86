"""Operators of ONNX on truth values, selections by constant numbers, broadcasts and angles, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx_networks import NetworkBuilder

import convsmith as cs
from convsmith.onnx.graph_gather import runs

runtime: Any = import_module("onnxruntime")
S = (2, 8, 4, 6)
Build = Callable[[NetworkBuilder], str]


def _x(b: NetworkBuilder, *shape: int) -> str:
    return b.input("x", *(shape or S))


def _held(b: NetworkBuilder, *numbers: Any) -> str:
    return b.held(np.int64(numbers))


def _as_float(b: NetworkBuilder, x: str) -> str:
    return str(b.op("Cast", x, to=1))


def _is_positive(b: NetworkBuilder, x: str) -> str:
    return str(b.op("Greater", x, b.held(np.float32(0))))


EXACT: dict[str, Build] = {
    **{
        op: lambda b, op=op: _as_float(b, b.op(op, x := _x(b), b.op("ReduceMax", x, _held(b, 1))))  # type: ignore[misc]
        for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    },
    **{
        op: lambda b, op=op: _as_float(  # type: ignore[misc]
            b, b.op(op, _is_positive(b, x := _x(b)), b.op("Less", x, b.held(np.float32(2))))
        )
        for op in ("And", "Or", "Xor")
    },
    "not": lambda b: _as_float(b, b.op("Not", _is_positive(b, _x(b)))),
    "choice": lambda b: b.op("Where", _is_positive(b, x := _x(b)), b.op("Neg", x), b.held(np.float32(9))),
    "choice by a constant": lambda b: b.op(
        "Where", b.held(np.tri(4, 6, dtype=bool)), _x(b), b.held(np.float32(-np.inf))
    ),
    "truth of a number": lambda b: _as_float(b, b.op("Cast", _x(b), to=9)),
    "whole numbers": lambda b: _as_float(b, b.op("Cast", b.op("Mul", _x(b), b.held(np.float32(0.75))), to=7)),
    "no number": lambda b: _as_float(b, b.op("IsNaN", b.op("Sqrt", _x(b)))),
    "expanded": lambda b: b.op("Expand", _x(b, 8, 1, 6), _held(b, 2, 1, 4, 1)),
    "expanded to itself": lambda b: b.op("Expand", _x(b), _held(b, 4, 6)),
    "tiled": lambda b: b.op("Tile", _x(b), _held(b, 1, 2, 1, 3)),
    "one row": lambda b: b.op("Gather", _x(b), b.held(np.int64(-1)), axis=2),
    "every second row": lambda b: b.op("Gather", _x(b), _held(b, 0, 2), axis=2),
    "rows in another order": lambda b: b.op("Gather", _x(b), _held(b, 5, 4, 0, 0, 3), axis=3),
    "a matrix of channels": lambda b: b.op("Gather", _x(b), b.held(np.int64([[1, 2], [7, -8]])), axis=1),
    "depth to space": lambda b: b.op("DepthToSpace", _x(b), blocksize=2),
    "columns first": lambda b: b.op("DepthToSpace", _x(b), blocksize=2, mode="CRD"),
    "space to depth": lambda b: b.op("SpaceToDepth", _x(b), blocksize=2),
    "seven axes turned": lambda b: b.op(
        "Flatten",
        b.op("Transpose", b.op("Reshape", _x(b), _held(b, 2, 2, 2, 2, 2, 2, 6)), perm=[0, 3, 4, 1, 2, 5, 6]),
    ),
    "slopes": lambda b: b.op("PRelu", _x(b), b.held(np.float32([0.5, 0.25, 2, 4, 1, 0, 0.5, 2]).reshape(8, 1, 1))),
    "sum of squares": lambda b: b.op("ReduceSumSquare", _x(b), _held(b, 1)),
    "floor": lambda b: b.op("Floor", b.op("Mul", _x(b), b.held(np.float32(0.375)))),
    "ceil": lambda b: b.op("Ceil", b.op("Mul", _x(b), b.held(np.float32(0.375)))),
}

CLOSE: dict[str, Build] = {
    "sine": lambda b: b.op("Sin", b.op("Mul", _x(b), b.held(np.float32(100)))),
    "cosine": lambda b: b.op("Cos", b.op("Mul", _x(b), b.held(np.float32(100)))),
    "length": lambda b: b.op("ReduceL2", _x(b), _held(b, 1), keepdims=0),
}


def _both(build: Build) -> tuple[Any, Any]:
    b = NetworkBuilder(21)
    model = b.model(build(b))
    net = cs.onnx.compile(model, threads=1)
    shape = net.inputs["x"]
    x = np.random.default_rng(3).integers(-3, 4, shape).astype(np.float32)
    (expected,) = runtime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    found = net(x)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    return found, expected


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", EXACT)
def test_exact(name: str) -> None:
    np.testing.assert_array_equal(*_both(EXACT[name]))


@pytest.mark.parametrize("name", CLOSE)
def test_close(name: str) -> None:
    found, expected = _both(CLOSE[name])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_whole_numbers_of_64_bits_are_computed_in_32() -> None:
    b = NetworkBuilder(22)
    step = b.op("Add", b.input("step", 3, type_=7), _held(b, 1, 2, 3))
    net = cs.onnx.compile(b.model(b.op("Cast", step, to=1)), threads=1)
    np.testing.assert_array_equal(net(np.int32([10, -20, 30])), np.float32([11, -18, 33]))
    b = NetworkBuilder(22)
    step = b.op("Add", b.input("step", 3, type_=7), _held(b, 1, 2, 1 << 40))
    with pytest.raises(cs.UnsupportedError, match="beyond 32 bits"):
        cs.onnx.compile(b.model(b.op("Cast", step, to=1)), threads=1)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda b: b.op("Gather", _x(b), _held(b, 6), axis=3), "number 6 of 6 elements"),
        (lambda b: b.op("Gather", _x(b), b.held(np.zeros(0, np.int64)), axis=1), "selects no element"),
        (lambda b: b.op("Cast", _x(b), to=14), "converts to ONNX's type 14"),
        (lambda b: b.op("DepthToSpace", _x(b), blocksize=3), "whole blocks of 3"),
    ],
)  # fmt: skip
def test_errors(build: Build, words: str) -> None:
    b = NetworkBuilder(23)
    with pytest.raises(cs.ConvsmithError, match=words):
        cs.onnx.compile(b.model(build(b)))


def test_numbers_consist_of_series() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        numbers = [int(x) for x in rng.integers(0, 5, rng.integers(1, 12))]
        assert [x for r in runs(numbers) for x in r] == numbers
