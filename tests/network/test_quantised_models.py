"""`cs.onnx.quantize`: ranges from samples, weights by channel, conversions that other runtimes read, and losses."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_sums import skip_unless_exact

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx_networks import NetworkBuilder, mobile_net, residual_net, u_net

import convsmith as cs
from convsmith.network.rewrites.fold import folded
from convsmith.onnx.calibration import METHODS, ValueRange
from convsmith.onnx.graph import read_graph
from convsmith.problem.problem import Problem

runtime: Any = import_module("onnxruntime")
NETWORKS: dict[str, Callable[..., Any]] = {"residual": residual_net, "mobile": mobile_net, "u_net": u_net}
Array = np.ndarray[Any, Any]


def _samples(model: Any, count: int = 3) -> list[Array]:
    rng = np.random.default_rng(5)
    (shape,) = (value.shape for value in read_graph(model).inputs)
    return [rng.standard_normal(shape).astype(np.float32) for _ in range(count)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_keep_their_results_within_the_losses(name: str) -> None:
    model = NETWORKS[name](real=True)
    samples = _samples(model)
    made = cs.onnx.quantize(model, samples)
    onnx.checker.check_model(made.model)
    before, after = cs.onnx.compile(model, threads=1), cs.onnx.compile(made.model, threads=1)
    signal, noise = dict.fromkeys(before.outputs, 0.0), dict.fromkeys(before.outputs, 0.0)
    for x in samples:
        plain, found = before.run({"x": x}), after.run({"x": x})
        for output, y in plain.items():
            signal[output] += float(np.square(y.astype(np.float64)).sum())
            noise[output] += float(np.square(y.astype(np.float64) - found[output]).sum())
    losses = {row.value: row.decibels for row in made.losses}
    for output in before.outputs:
        assert losses[output] == pytest.approx(10 * np.log10(signal[output] / noise[output]), abs=0.1)
    assert min(losses.values()) > 25
    products = [node.work for node in folded(read_graph(made.model)).nodes if isinstance(node.work, Problem)]
    assert {p.dt[:2] for p in products} == {("u8", "s8")}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_onnx_runtime_computes_nearly_the_same(name: str) -> None:
    skip_unless_exact()
    model = NETWORKS[name](real=True)
    samples = _samples(model)
    made = cs.onnx.quantize(model, samples)
    after = cs.onnx.compile(made.model, threads=1)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    theirs = runtime.InferenceSession(made.model.SerializeToString(), options).run(None, {"x": samples[0]})
    ours = after.run({"x": samples[0]})
    for y, own in zip(theirs, ours.values()):
        # Sums of two values are rounded in another order there: few elements are one step off.
        assert np.square(y - own).sum() <= np.square(y).sum() * 10**-2.5


def test_numbers_that_bytes_hold_are_exact() -> None:
    b = NetworkBuilder(2)
    w = np.random.default_rng(1).integers(-127, 128, (8, 4, 3, 3)).astype(np.float32)
    w[:, 0, 0, 0] = 127
    scale = np.float32([1, 2, 0.5, 0.25, 1, 4, 1, 1])
    bias = np.random.default_rng(2).integers(-9, 9, 8).astype(np.float32) * scale
    x = b.input("x", 1, 4, 6, 6)
    y = b.op("Conv", x, b.held(w * scale.reshape(-1, 1, 1, 1)), b.held(bias), pads=[1] * 4)
    model = b.model(y)
    samples = [np.random.default_rng(n).integers(-128, 128, (1, 4, 6, 6)).astype(np.float32) for n in range(2)]
    samples[0][0, 0, 0, :2] = -128, 127
    made = cs.onnx.quantize(model, samples)
    before, after = cs.onnx.compile(model, threads=1), cs.onnx.compile(made.model, threads=1)
    for sample in samples:
        np.testing.assert_array_equal(before(sample), after(sample))
    assert {row.decibels for row in made.losses} == {np.inf}


def test_scales_of_weights_belong_to_channels_and_norms_are_part_of_them() -> None:
    b = NetworkBuilder(3, real=True)
    x = b.norm(b.conv(b.input("x", 1, 4, 8, 8), 4, 6, 3), 6)
    y = b.op("Gemm", b.op("Flatten", b.op("GlobalAveragePool", b.op("Relu", x))), b.weights(5, 6), transB=1)
    model = b.model(b.op("MatMul", y, b.weights(5, 7)))
    made = cs.onnx.quantize(model, _samples(model)).model
    assert [n.op_type for n in made.graph.node if n.op_type == "BatchNormalization"] == []
    held = {t.name: onnx.numpy_helper.to_array(t) for t in made.graph.initializer}
    weights = [n for n in made.graph.node if n.op_type == "DequantizeLinear" and held.get(n.input[0]) is not None]
    shapes = [(held[n.input[0]].shape, held[n.input[1]].shape) for n in weights if held[n.input[0]].dtype == np.int8]
    assert shapes == [((6, 4, 3, 3), (6,)), ((5, 6), (5,)), ((5, 7), (7,))]


def test_methods_choose_ranges() -> None:
    x = np.concatenate([np.random.default_rng(0).standard_normal(100_000), [40.0]]).astype(np.float32)
    held = ValueRange()
    held.widen("x", x)
    held.count(x)
    codes = {method: held.code(method, 99.9) for method in METHODS}
    assert codes["min-max"].scale == pytest.approx((40 - x.min()) / 255, rel=1e-6)
    assert codes["percentile"].scale == pytest.approx(6.6 / 255, rel=0.05)

    def error(method: str) -> float:
        scale, point = codes[method]
        steps = np.clip(np.rint(x / scale) + point, 0, 255)
        return float(np.square((steps - point) * scale - x).sum())

    assert error("mean-square") < min(error("min-max"), error("percentile"))
    positive = ValueRange()
    positive.widen("y", np.float32([2, 4]))
    assert positive.code("min-max", 100) == (np.float32(4 / 255), 0)


def test_a_gate_stays_inside_of_the_convolution() -> None:
    b = NetworkBuilder(4, real=True)
    y = b.conv(b.input("x", 1, 4, 6, 6), 4, 8, 3)
    y = b.conv(b.op("Mul", y, b.op("Sigmoid", y)), 8, 4, 1)
    model = b.model(b.op("HardSwish", y))
    made = cs.onnx.quantize(model, _samples(model))
    lines = [step.work for step in cs.onnx.compile(made.model, threads=1).image.steps]
    assert sum("swish" in line and "--dt=u8:s8:u8" in line for line in lines) == 1
    assert sum("hardswish" in line and "--dt=u8:s8:f32" in line for line in lines) == 1


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    b = NetworkBuilder(5)
    model = b.model(b.conv(b.input("x", 1, 4, 6, 6), 4, 4, 1))
    x = np.ones((1, 4, 6, 6), np.float32)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"samples": []}, "samples: there are none; legal is at least one"),
        ({"samples": [{"z": x}]}, "samples: one has z; legal are the inputs x"),
        ({"samples": [x * np.inf]}, "samples: x holds numbers that are not finite"),
        ({"samples": [x], "method": "median"}, "min-max"),
        ({"samples": [x], "method": "percentile", "percentile": 10}, "percentile=10 is not legal: expected 50 to 100"),
    ]
    for arguments, message in wrong:
        with pytest.raises(cs.UsageError, match=message):
            cs.onnx.quantize(model, **arguments)
    b = NetworkBuilder(6)
    with pytest.raises(cs.UsageError, match="no node with constant weights; legal are Conv, Gemm, MatMul"):
        cs.onnx.quantize(b.model(b.op("Relu", b.input("x", 2, 3))), [np.ones((2, 3), np.float32)])
    model.opset_import[0].version = 11
    with pytest.raises(cs.UsageError, match="operator set 11; legal are 13 and later"):
        cs.onnx.quantize(model, [x])
    with pytest.raises(cs.UsageError, match="cannot be written"):
        cs.onnx.QuantizedModel(model, ()).save(tmp_path / "no" / "file.onnx")
