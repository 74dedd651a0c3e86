"""Sums of bytes in the epilogue of a product: results equal ONNX Runtime's, where scales are powers of two."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from quantised_networks import QuantisedBuilder

import convsmith as cs

runtime: Any = import_module("onnxruntime")
Build = Callable[[QuantisedBuilder, str], Any]


def _compiled(b: QuantisedBuilder, *outputs: str) -> cs.Network:
    """The network of values of bytes, which equals ONNX Runtime's."""
    model = b.model(*map(b.floats, outputs))
    net = cs.onnx.compile(model, threads=1)
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(-20, 21, shape).astype(np.float32) for name, shape in net.inputs.items()}
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(model.SerializeToString(), options)
    for (name, y), expected in zip(net.run(arrays).items(), session.run(None, arrays)):
        np.testing.assert_array_equal(y, expected, name)
        assert len(np.unique(y)) > 4, "the test would not notice faults"
    return net


def _sums(net: cs.Network) -> int:
    """The kernels of sums."""
    return sum("binary=add" in step.work for step in net.image.steps)


def _sum(b: QuantisedBuilder, x: str, y: str, scale: float, step: str = "", point: int | None = None) -> str:
    total = b.op("Add", b.floats(x), b.floats(y))
    return b.bytes(b.op(step, total) if step else total, scale, point)


def _conv(b: QuantisedBuilder, x: str, scale: float = 16, k: int = 3) -> str:
    return b.conv(x, 8, 8, k, scale=scale)


IN_EPILOGUES: dict[str, Build] = {
    "a residual": lambda b, x: _sum(b, _conv(b, _conv(b, x)), x, 32),
    "the other order": lambda b, x: _sum(b, x, _conv(b, x), 8),
    "a relu": lambda b, x: _sum(b, _conv(b, x), x, 16, "Relu"),
    "a relu that saturation does": lambda b, x: _sum(
        b, _conv(b, x), x, 16, "Relu", {"u8": 0, "s8": -128}[b.type]
    ),
    "two products": lambda b, x: _sum(b, _conv(b, x), _conv(b, x, 4, 1), 16),
    "saturated": lambda b, x: _sum(b, _conv(b, x, 0.5), x, 2),
    "a sum of a sum": lambda b, x: _sum(b, _sum(b, _conv(b, x), x, 16), b.around("Abs", x, scale=4), 64),
    "a value that is used again": lambda b, x: b.conv(
        b.around("Mul", _sum(b, _conv(b, x), y := b.around("Abs", x, scale=2), 16), y, scale=256), 8, 4, 1
    ),
}  # fmt: skip


@pytest.mark.sampled(16)
@pytest.mark.parametrize("type_", ["u8", "s8"])
@pytest.mark.parametrize("name", IN_EPILOGUES)
def test_sums_are_part_of_products(name: str, type_: str) -> None:
    b = QuantisedBuilder(type_)
    net = _compiled(b, IN_EPILOGUES[name](b, b.bytes(b.input("x", 2, 8, 6, 5), 1)))
    assert _sums(net) == 0


APART: dict[str, Build] = {
    "a product that another node reads": lambda b, x: b.around(
        "Mul", _sum(b, y := _conv(b, x), x, 16), y, scale=256
    ),
    "twice the product": lambda b, x: _sum(b, y := _conv(b, x), y, 64),
    "no product": lambda b, x: _sum(b, b.bytes(b.input("y", 2, 8, 6, 5), 2), x, 4),
    "a product of pixels and channels": lambda b, x: _sum(
        b, _conv(b, x), b.around("GlobalMaxPool", x, scale=1), 32
    ),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", APART)
def test_other_sums_are_kernels(name: str) -> None:
    b = QuantisedBuilder("u8")
    assert _sums(_compiled(b, APART[name](b, b.bytes(b.input("x", 2, 8, 6, 5), 1)))) == 1


def test_a_product_that_is_an_output_stays() -> None:
    b = QuantisedBuilder("s8")
    x = b.bytes(b.input("x", 1, 8, 6, 5), 1)
    y = _conv(b, x)
    assert _sums(_compiled(b, _sum(b, y, x, 32), y)) == 1


def test_sums_overwrite_an_addend_that_no_later_node_reads() -> None:
    b = QuantisedBuilder("u8")
    x = b.around("Abs", b.bytes(b.input("x", 1, 8, 6, 5), 1), scale=1)
    net = _compiled(b, _sum(b, _conv(b, _conv(b, x)), x, 32))
    assert sum("sum" in step.work for step in net.image.steps) == 1


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(12))
def test_random_residuals(seed: int) -> None:
    r = Random(seed)
    b = QuantisedBuilder(r.choice(("u8", "s8")), seed=seed, by_channel=r.random() < 0.5)
    values = [b.bytes(b.input("x", 1, 8, 5, 6), 1)]
    for _ in range(r.randint(3, 7)):
        x, y, scale = r.choice(values[-3:]), r.choice(values), r.choice((2.0, 8.0, 32.0))
        kind = r.choice(("conv", "conv", "Add", "Add", "Abs"))
        if kind == "conv":
            made = _conv(b, x, scale, r.choice((1, 3)))
        elif kind == "Add":
            made = _sum(b, x, y, scale, r.choice(("", "Relu")), r.choice((None, 3)))
        else:
            made = b.around(kind, x, scale=scale)
        values.append(made)
    _compiled(b, *dict.fromkeys([values[-1], r.choice(values[1:])]))
