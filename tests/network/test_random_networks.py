"""Random networks of all kinds of operators beside ONNX Runtime, in as much memory as is alive."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx_networks import NetworkBuilder

import convsmith as cs

runtime: Any = import_module("onnxruntime")

_LARGEST = 30_000
"""Most elements of a value."""


class _Drawn(NamedTuple):
    """A value, and its shape."""

    name: str
    shape: tuple[int, ...]


_Draw = Callable[[NetworkBuilder, Random, _Drawn, list[_Drawn]], _Drawn]


def _conv(b: NetworkBuilder, r: Random, x: _Drawn, _: list[_Drawn]) -> _Drawn:
    n, c, h, w = x.shape
    channels, k, stride = r.choice((4, 8, 19)), r.choice((1, 3)), r.choice((1, 1, 2))
    sizes = ((size + 2 * (k // 2) - k) // stride + 1 for size in (h, w))
    return _Drawn(b.conv(x.name, c, channels, k, stride, bias=r.random() < 0.5), (n, channels, *sizes))


def _depthwise(b: NetworkBuilder, _: Random, x: _Drawn, __: list[_Drawn]) -> _Drawn:
    return _Drawn(b.conv(x.name, x.shape[1], x.shape[1], 3, group=x.shape[1]), x.shape)


def _two(b: NetworkBuilder, r: Random, x: _Drawn, values: list[_Drawn]) -> _Drawn:
    other = r.choice([y for y in values if y.shape == x.shape])
    pair = r.choice(((x.name, other.name), (other.name, x.name)))
    return _Drawn(b.op(r.choice(("Add", "Add", "Mul", "Max")), *pair), x.shape)


def _number(b: NetworkBuilder, r: Random, x: _Drawn, _: list[_Drawn]) -> _Drawn:
    return _Drawn(b.op(r.choice(("Add", "Mul", "Sub")), x.name, b.held(np.float32(r.choice((2, 0.5))))), x.shape)


def _step(b: NetworkBuilder, r: Random, x: _Drawn, _: list[_Drawn]) -> _Drawn:
    kind = r.choice(("Relu", "Relu", "norm", "gate", "swish", "Clip"))
    if kind == "norm":
        return _Drawn(b.norm(x.name, x.shape[1]), x.shape)
    if kind == "gate":
        gate = b.op("Sigmoid", b.conv(b.op("GlobalAveragePool", x.name), x.shape[1], x.shape[1], 1))
        return _Drawn(b.op("Mul", x.name, gate), x.shape)
    if kind == "swish":
        return _Drawn(b.op("Mul", x.name, b.op("Sigmoid", x.name)), x.shape)
    bounds = (b.held(np.float32(-1)), b.held(np.float32(1.5))) if kind == "Clip" else ()
    return _Drawn(b.op(kind, x.name, *bounds), x.shape)


def _pool(b: NetworkBuilder, r: Random, x: _Drawn, _: list[_Drawn]) -> _Drawn:
    n, c, h, w = x.shape
    if r.random() < 0.3:
        return _Drawn(b.op("GlobalAveragePool", x.name), (n, c, 1, 1))
    kind = r.choice(("MaxPool", "AveragePool"))
    made = b.op(kind, x.name, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    return _Drawn(made, (n, c, (h - 1) // 2 + 1, (w - 1) // 2 + 1))


def _moved(b: NetworkBuilder, r: Random, x: _Drawn, values: list[_Drawn]) -> _Drawn:
    n, c, h, w = x.shape
    kind = r.choice(("Concat", "Concat", "Pad", "Slice", "Transpose", "Resize", "Softmax"))
    if kind == "Concat":
        other = r.choice([y for y in values if (y.shape[0], *y.shape[2:]) == (n, h, w)])
        return _Drawn(b.op("Concat", x.name, other.name, axis=1), (n, c + other.shape[1], h, w))
    if kind == "Pad":
        pads = b.held(np.int64([0, 0, 1, 0, 0, 0, 0, 1]))
        return _Drawn(b.op("Pad", x.name, pads, mode=r.choice(("constant", "edge"))), (n, c, h + 1, w + 1))
    if kind == "Slice" and c > 1:
        numbers = (b.held(np.int64([number])) for number in (1, 99, 1))
        return _Drawn(b.op("Slice", x.name, *numbers), (n, c - 1, h, w))
    if kind == "Resize":
        way = {"mode": r.choice(("nearest", "linear")), "nearest_mode": "floor"}
        scales = b.held(np.float32([1, 1, 2, 2]))
        return _Drawn(b.op("Resize", x.name, "", scales, **way), (n, c, 2 * h, 2 * w))
    if kind == "Softmax":
        return _Drawn(b.op("Softmax", x.name, axis=r.choice((1, 3))), x.shape)
    return _Drawn(b.op("Transpose", x.name, perm=[0, 1, 3, 2]), (n, c, w, h))


def _rows(b: NetworkBuilder, _: Random, x: _Drawn, __: list[_Drawn]) -> _Drawn:
    """A product of the rows of images, which takes row-major arrays only."""
    return _Drawn(b.op("MatMul", x.name, b.weights(x.shape[3], x.shape[3])), x.shape)


_KINDS: tuple[_Draw, ...] = (
    _conv, _conv, _depthwise, _two, _two, _two, _number, _step, _step, _pool, _moved, _moved, _rows,
)  # fmt: skip


def _drawn(seed: int) -> Any:
    """A random model of four to ten operators, some of which end in a product."""
    r, b = Random(seed), NetworkBuilder(seed, real=True)
    shape = (r.choice((1, 2)), r.choice((3, 5, 8, 17)), r.choice((6, 7, 9)), r.choice((6, 8, 11)))
    values = [_Drawn(b.input("x", *shape), shape)]
    for _ in range(r.randint(4, 10)):
        made = r.choice(_KINDS)(b, r, r.choice(values[-4:]), values)
        if np.prod(made.shape) <= _LARGEST:
            values.append(made)
    last = values[-1]
    if r.random() < 0.3:
        flat = b.op("Flatten", last.name)
        return b.model(b.op("Gemm", flat, b.weights(int(np.prod(last.shape[1:])), 7), b.weights(7)))
    outputs = [last.name, *([values[-2].name] if len(values) > 2 and r.random() < 0.4 else [])]
    return b.model(*outputs)


@pytest.mark.sampled(40)
@pytest.mark.parametrize("seed", range(80))
def test_random_networks_agree_with_onnx_runtime(seed: int) -> None:
    model = _drawn(seed)
    net = cs.onnx.compile(model, threads=1)
    x = np.random.default_rng(seed).standard_normal(net.inputs["x"]).astype(np.float32)
    expected = runtime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    results = net.run({"x": x})
    for name, y in zip(net.outputs, expected):
        assert np.abs(results[name] - y).max() <= 1e-5 * np.abs(y).max(), name
    assert net.workspace <= 1.05 * net.image.bound
