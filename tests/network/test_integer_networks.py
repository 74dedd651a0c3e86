"""Quantised ONNX models as functions on bytes: equal to ONNX Runtime's results, with bytes between layers."""

from __future__ import annotations

import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_sums import skip_unless_exact

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper
from quantised_networks import QuantisedBuilder, exact_net

import convsmith as cs
from convsmith.network.graph import Graph
from convsmith.network.operators.on_bytes import OnBytes
from convsmith.network.operators.quantise import Dequantise, Quantise
from convsmith.network.operators.table import ByteTable
from convsmith.network.reference import reference_outputs
from convsmith.network.rewrites.fold import folded
from convsmith.onnx.graph import read_graph
from convsmith.problem.problem import Problem

runtime: Any = import_module("onnxruntime")
Array = np.ndarray[Any, Any]


def _inputs(net: cs.Network, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-20, 21, shape).astype(np.float32) for name, shape in net.inputs.items()}


def _check(model: Any) -> cs.Network:
    """Compile a model, and compare all outputs with ONNX Runtime's, and with the graphs' in numpy."""
    net = cs.onnx.compile(model, threads=1)
    arrays = _inputs(net)
    results, graph = net.run(arrays), read_graph(model)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(model.SerializeToString(), options)
    expected = dict(zip(net.outputs, session.run(None, arrays)))
    for found in (results, reference_outputs(graph, arrays), reference_outputs(folded(graph), arrays)):
        for name, y in expected.items():
            np.testing.assert_array_equal(found[name], y, name)
            assert len(np.unique(y)) > 4, "the test would not notice faults"
    return net


def _on_bytes(model: Any) -> Graph:
    return folded(read_graph(model))


def _float_values(graph: Graph) -> list[str]:
    """Values of floats that are neither inputs nor outputs."""
    return [n.output for n in graph.nodes if graph.values[n.output].type == "f32" and n.output not in graph.outputs]


@pytest.mark.sampled(3, "operators", "by_channel", "types")
@pytest.mark.parametrize("operators", [False, True], ids=["QDQ", "QOperator"])
@pytest.mark.parametrize("by_channel", [False, True], ids=["one scale", "by channel"])
@pytest.mark.parametrize("types", ["u8:s8", "u8:u8", "s8:s8"])
def test_quantised_networks_equal_onnx_runtime(types: str, by_channel: bool, operators: bool) -> None:
    type_, weights = types.split(":")
    model = exact_net(type_, weights, by_channel, operators)
    _check(model)
    assert _float_values(_on_bytes(model)) == []


def test_all_products_are_of_bytes_and_steps_are_in_their_epilogues() -> None:
    graph = _on_bytes(exact_net("u8"))
    products = [node.work for node in graph.nodes if isinstance(node.work, Problem)]
    assert [p.dt for p in products] == [("u8", "s8", "u8")] * 4
    # The relu before the least byte saturates; the one before the middle stays.
    assert [str(p).count("relu") for p in products] == [0, 1, 0, 0]
    conversions = [node.work for node in graph.nodes if isinstance(node.work, Quantise | Dequantise)]
    assert len(conversions) == 4


@pytest.mark.parametrize("type_", ["u8", "s8"])
def test_operators_of_floats_convert_as_they_load_and_store(type_: str) -> None:
    b = QuantisedBuilder(type_)
    x = b.bytes(b.input("x", 1, 8, 6, 6), 0.25)
    y = b.around("Mul", x, b.around("LeakyRelu", x, scale=0.25, alpha=0.5), scale=4)
    y = b.around("AveragePool", y, scale=2, kernel_shape=[2, 2], strides=[2, 2])
    y = b.around("Sub", y, b.around("GlobalAveragePool", y, scale=2), scale=2)
    model = b.model(b.floats(y))
    _check(model)
    graph = _on_bytes(model)
    assert _float_values(graph) == []
    assert [type(node.work) for node in graph.nodes if not isinstance(node.work, Quantise | Dequantise)] == [
        ByteTable, OnBytes, OnBytes, OnBytes
    ]  # fmt: skip


@pytest.mark.parametrize("type_", ["u8", "s8"])
def test_functions_of_one_byte_are_tables(type_: str) -> None:
    b = QuantisedBuilder(type_)
    x = b.bytes(b.input("x", 1, 8, 6, 6), 0.25)
    swish = b.around("Mul", x, b.around("HardSigmoid", x, scale=0.25, alpha=0.25), scale=0.5)
    capped = b.around("LeakyRelu", x, scale=0.5, alpha=0.25)
    model = b.model(b.floats(b.around("Add", swish, b.around("Abs", capped, scale=1), scale=2)))
    _check(model)
    works = [node.work for node in _on_bytes(model).nodes if not isinstance(node.work, Quantise | Dequantise)]
    assert works == [ByteTable(type_, type_, (1, 8, 6, 6))]


def test_moves_of_bytes_need_no_conversion() -> None:
    b = QuantisedBuilder("u8")
    x = b.bytes(b.input("x", 1, 4, 6, 6), 0.5, 0)
    y = b.op("Transpose", b.op("Pad", b.floats(x), b.held(np.int64([0, 0, 1, 0, 0, 0, 1, 2]))), perm=[0, 2, 3, 1])
    y = b.op("Slice", y, *(b.held(np.int64([n])) for n in (1, 6, 1)))
    y = b.op("Reshape", b.op("Relu", y), b.held(np.int64([5, -1])))
    z = b.op("QuantizeLinear", y, *b.codes[x])
    b.codes[z] = b.codes[x]
    model = b.model(b.floats(z), z, types=(TensorProto.FLOAT, TensorProto.UINT8))
    _check(model)
    assert _float_values(_on_bytes(model)) == []


def test_products_of_two_values_and_values_of_two_readers() -> None:
    b = QuantisedBuilder("u8")
    x, z = b.bytes(b.input("x", 2, 5, 8), 0.5), b.bytes(b.input("z", 2, 8, 7), 1, 3)
    y = b.around("MatMul", x, z, scale=16)
    w, ws, wz = b.weights(7, 6, axis=1)
    real = b.op("MatMul", b.floats(y), b.op("DequantizeLinear", w, ws, wz, axis=1))
    rounded = b.bytes(real, 32)
    again = b.op("QuantizeLinear", real, *b.codes[rounded])
    b.codes[again] = b.codes[rounded]
    net = _check(b.model(b.floats(rounded), b.floats(again), b.floats(y)))
    products = [step.work for step in net.image.steps if step.work.startswith("--matmul")]
    assert ["--dt=u8:s8:u8" in line for line in products] == [False, True]
    assert all("u8" in line for line in products)


def test_a_value_of_floats_stays_where_the_model_needs_it() -> None:
    b = QuantisedBuilder("u8")
    x = b.bytes(b.input("x", 1, 4, 6, 6), 1)
    w, ws, wz = b.weights(8, 4, 1, 1)
    real = b.op("Conv", b.floats(x), b.op("DequantizeLinear", w, ws, wz, axis=0), kernel_shape=[1, 1])
    y = b.bytes(real, 8)
    net = _check(b.model(real, b.floats(y)))
    assert any("--dt=u8:s8:f32" in step.work for step in net.image.steps)


def test_operators_on_bytes_of_onnx_runtime() -> None:
    for operator, places in (("QLinearAdd", 2), ("QLinearMul", 2), ("QLinearConcat", 2), ("QLinearSigmoid", 1)):
        b = QuantisedBuilder("u8")
        x = b.bytes(b.input("x", 1, 8, 6, 6), 0.5)
        values = [x, *([b.bytes(b.input("z", 1, 8, 6, 6), 1, 100)] if places == 2 else [])]
        scale, point = b.code(1 / 128, 0) if operator == "QLinearSigmoid" else b.code(2)
        flat = [name for value in values for name in (value, *b.codes[value])]
        order = [scale, point, *flat] if operator == "QLinearConcat" else [*flat, scale, point]
        y = b.op(operator, *order, domain="com.microsoft", **({"axis": 1} if "Concat" in operator else {}))
        b.codes[y] = scale, point
        _check(b.model(b.floats(y)))
    b = QuantisedBuilder("u8")
    x = b.bytes(b.input("x", 1, 8, 4, 4), 0.5)
    scale, point = b.code(0.25)
    y = b.op("QLinearGlobalAveragePool", x, *b.codes[x], scale, point, domain="com.microsoft", channels_last=0)
    b.codes[y] = scale, point
    w, ws, wz = b.weights(8, 5, axis=1)
    flat = b.op("Reshape", y, b.held(np.int64([1, 8])))
    bias = b.held(np.int32([3, -2, 40, 7, -9]))
    to = b.code(1)
    z = b.op("QGemm", flat, scale, point, w, ws, wz, bias, *to, domain="com.microsoft")
    b.codes[z] = to
    _check(b.model(b.floats(z)))
    b = QuantisedBuilder("u8", by_channel=False)
    x, (w, ws, wz), to = b.bytes(b.input("x", 4, 8), 0.5), b.weights(8, 5), b.code(1)
    y = b.op("QLinearMatMul", x, *b.codes[x], w, ws, wz, *to)
    b.codes[y] = to
    _check(b.model(b.floats(y)))


def test_weights_of_floats_stay_floats() -> None:
    skip_unless_exact()  # ONNX Runtime rounds the weights to bytes
    b = QuantisedBuilder("u8")
    x = b.bytes(b.input("x", 1, 4, 6, 6), 1)
    y = b.bytes(b.op("Conv", b.floats(x), b.held(np.ones((8, 4, 1, 1), np.float32))), 1)
    net = _check(b.model(b.floats(y)))
    assert not any("--dt=u8" in step.work for step in net.image.steps)


def test_layouts_of_operators_on_bytes_with_channels_last_are_refused() -> None:
    b = QuantisedBuilder("u8")
    x = b.bytes(b.input("x", 1, 8, 4, 4), 0.5)
    y = b.op("QLinearGlobalAveragePool", x, *b.codes[x], *b.code(1), domain="com.microsoft", channels_last=1)
    with pytest.raises(cs.UnsupportedError, match="channels_last=1; available are nodes with channels first"):
        cs.onnx.compile(b.model(y, types=(TensorProto.UINT8,)), threads=1)


def test_a_node_without_its_zero_points_is_named() -> None:
    b = QuantisedBuilder("u8")
    x = b.bytes(b.input("x", 1, 8, 4, 4), 0.5)
    y = b.op("QLinearAdd", x, *b.codes[x], x, domain="com.microsoft")
    with pytest.raises(cs.UnsupportedError, match=r"QLinearAdd_v1.*4 inputs; legal are values with scales"):
        cs.onnx.compile(b.model(y, types=(TensorProto.UINT8,)), threads=1)


# -- sums in 32 bits, and scales of a run -----------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("types", ["u8:s8", "s8:u8"])
def test_integer_operators_have_sums_in_32_bits(types: str) -> None:
    type_, weights = types.split(":")
    b = QuantisedBuilder(type_, weights)
    x = b.bytes(b.input("x", 2, 4, 6, 6), 0.25, 3)
    w, _, points = b.weights(8, 4, 3, 3)
    own = b.held(b.constants[points] + np.arange(8, dtype=np.uint8) if weights == "u8" else np.int8(3))
    y = b.op("ConvInteger", x, w, b.codes[x][1], own, pads=[1] * 4, strides=[2, 2])
    z = b.bytes(b.input("z", 3, 5, 7), 0.5)
    w, _, points = b.weights(7, 9, axis=1)
    products = b.op("MatMulInteger", z, w, b.codes[z][1], b.held(b.constants[points][0]))
    real = b.op("Mul", b.op("Cast", products, to=TensorProto.FLOAT), b.held(np.float32(0.5)))
    real = b.op("Relu", b.op("Add", real, b.held(np.arange(9).astype(np.float32))))
    model = b.model(y, real, types=(TensorProto.INT32, TensorProto.FLOAT))
    graph, net = read_graph(model), cs.onnx.compile(model, threads=1)
    arrays = _inputs(net)
    results = net.run(arrays)
    for found in (reference_outputs(graph, arrays), reference_outputs(folded(graph), arrays)):
        for name, value in results.items():
            np.testing.assert_array_equal(found[name], value)
    if weights == "s8":  # ONNX Runtime has no kernel for other bytes, nor for zero points of channels
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        session = runtime.InferenceSession(model.SerializeToString(), options)
        for value, expected in zip(results.values(), session.run(None, arrays)):
            np.testing.assert_array_equal(value, expected)
    steps = [step.work for step in net.image.steps if step.work.startswith("--matmul")]
    assert len(steps) == 1 and ":f32" in steps[0] and "mul:f32+add:f32:per_dim_1+relu" in steps[0]


def test_scales_and_zero_points_follow_from_the_values_of_a_run() -> None:
    b = QuantisedBuilder("u8")
    x = b.input("x", 2, 12, 16)
    b.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], ["bytes", "scale", "point"], "dynamic"))
    w, ws, wz = b.weights(16, 9, axis=1)
    sums = b.op("Cast", b.op("MatMulInteger", "bytes", w, "point", wz), to=TensorProto.FLOAT)
    y = b.op("Mul", sums, b.op("Mul", "scale", ws))
    model = b.model(y, "scale", "bytes", "point", types=(1, 1, TensorProto.UINT8, TensorProto.UINT8))
    net = cs.onnx.compile(model, threads=1)
    session = runtime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    values = [rng.integers(-100, 156, (2, 12, 16)), rng.integers(1, 9, (2, 12, 16)), rng.standard_normal((2, 12, 16))]
    values[0][0, 0, :2] = -100, 155  # 255 steps of 1
    for n, value in enumerate(values):
        arrays = {"x": value.astype(np.float32)}
        found = list(net.run(arrays).values())
        for y_, expected in zip(found, session.run(None, arrays)):
            if n == 0 or y_.dtype == np.uint8:
                np.testing.assert_array_equal(y_, expected)
            np.testing.assert_allclose(y_, expected, 1e-6, 1e-6)
    zeros = net.run({"x": np.zeros((2, 12, 16), np.float32)})
    assert not any(np.any(zeros[name]) for name in (y, "bytes", "point"))


def test_inner_bytes_have_the_type_without_a_zero_point() -> None:
    for type_, least, other in (("s8", -128, "u8"), ("u8", 128, "s8")):
        b = QuantisedBuilder(type_)
        x = b.bytes(b.input("x", 1, 4, 6, 6), 1, least + 1)
        y = b.conv(x, 4, 8, 3, scale=16, point=least)
        model = b.model(b.floats(b.conv(y, 8, 4, 1, scale=32, point=least + 1)))
        _check(model)
        first, second = (n.work for n in _on_bytes(model).nodes if isinstance(n.work, Problem))
        assert (first.dt, second.dt) == ((type_, "s8", other), (other, "s8", type_))
        points = [[q.argument for q in problem.zero_points] for problem in (first, second)]
        assert points == [["src"], ["dst"]]


def test_networks_of_bytes_are_saved_exported_and_run_by_threads(tmp_path: Path) -> None:
    model = exact_net("s8")
    net, two = (cs.onnx.compile(model, threads=n) for n in (1, 2))
    (x,) = _inputs(net).values()
    expected = net(x)
    net.save(tmp_path / "net.cs")
    for other in (two, cs.load(tmp_path / "net.cs")):
        for one, found in zip(expected, other(x)):
            np.testing.assert_array_equal(one, found)
    net.export(tmp_path, "own")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    command = [compiler, "-O2", "example.c", "libown.a", "-lm", "-o", "example"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "example"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("own: right"), done.stdout
