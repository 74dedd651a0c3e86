"""ONNX models in f16 and bf16: values are stored in these types, and kernels compute in f32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnxruntime as runtime
from click.testing import CliRunner
from exported import run, tool
from ml_dtypes import bfloat16
from onnx import TensorProto, helper, numpy_helper

import convsmith as cs
from convsmith.cli.main import main
from convsmith.onnx.graph import read_graph
from convsmith.onnx.network import export_for

_TYPES = {"f16": (TensorProto.FLOAT16, np.float16), "bf16": (TensorProto.BFLOAT16, bfloat16)}


def _model(kind: int, dtype: Any, casts: int) -> Any:
    """Return a model of two convolutions and a product, whose gate is computed in the type `casts`."""
    rng = np.random.default_rng(0)

    def held(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(rng.integers(-2, 3, shape).astype(dtype), name)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1] * 4),
        helper.make_node("MaxPool", ["y"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Cast", ["p"], ["wide"], to=casts),
        helper.make_node("Relu", ["wide"], ["gate"]),
        helper.make_node("Cast", ["gate"], ["small"], to=kind),
        helper.make_node("Sub", ["p", "small"], ["q"]),
        helper.make_node("Flatten", ["q"], ["f"]),
        helper.make_node("Gemm", ["f", "m", "n"], ["o"]),
    ]
    x, o = (helper.make_tensor_value_info(n, kind, s) for n, s in (("x", [2, 3, 6, 6]), ("o", [2, 5])))
    constants = [held("w", 4, 3, 3, 3), held("b", 4), held("m", 36, 5), held("n", 5)]
    graph = helper.make_graph(nodes, "small", [x], [o], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("name", _TYPES)
def test_whole_numbers_are_exact_in_small_types(name: str) -> None:
    """In f32 the same numbers have the same results, which are rounded where they are stored."""
    kind, dtype = _TYPES[name]
    net = cs.onnx.compile(_model(kind, dtype, TensorProto.FLOAT), threads=1)
    x = np.random.default_rng(1).integers(-1, 2, (2, 3, 6, 6)).astype(dtype)
    (found,) = net.run({"x": x}).values()
    wide = _model(TensorProto.FLOAT, np.float32, TensorProto.FLOAT).SerializeToString()
    (exact,) = runtime.InferenceSession(wide).run(None, {"x": x.astype(np.float32)})
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, exact.astype(dtype))


def test_outputs_have_the_types_of_the_model() -> None:
    kind, dtype = _TYPES["f16"]
    model = _model(kind, dtype, TensorProto.FLOAT)
    del model.graph.output[:]
    model.graph.output.extend(
        helper.make_tensor_value_info(n, t, None) for n, t in (("q", kind), ("gate", TensorProto.FLOAT), ("b2", kind))
    )
    model.graph.node.append(helper.make_node("Identity", ["b"], ["b2"]))
    x = np.ones((2, 3, 6, 6), dtype)
    found = cs.onnx.compile(model, threads=1).run({"x": x})
    expected = runtime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    for name, y in zip(("q", "gate", "b2"), expected):
        assert found[name].dtype == y.dtype, name
        np.testing.assert_array_equal(found[name], y)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", _TYPES)
def test_examples_read_and_write_bits(name: str, tmp_path: Path) -> None:
    library = cs.onnx.compile(_model(*_TYPES[name], TensorProto.FLOAT), threads=1).export(tmp_path, "half_net")
    flags = ("-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    for compiler, source in (("gcc", "example.c"), ("g++", "example.cpp")):
        run(tool(compiler), *flags, tmp_path / source, library.library, "-lm", "-o", tmp_path / "example")
        assert "half_net: right" in run(tmp_path / "example")
    options = ("--edition=2021", "-D", "warnings", "-L", tmp_path, "-l", "static=half_net")
    run(tool("rustc"), *options, tmp_path / "example.rs", "-o", tmp_path / "example")
    assert "half_net: right" in run(tmp_path / "example")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", _TYPES)
def test_modules_of_webassembly_take_bits(name: str, tmp_path: Path) -> None:
    graph = read_graph(_model(*_TYPES[name], TensorProto.FLOAT).SerializeToString())
    export_for(graph, tmp_path, "half_net", "wasm32")
    run(tool("node"), "--test", tmp_path / "half_net.test.mjs")


@pytest.mark.parametrize("name", _TYPES)
def test_network_verify_allows_roundings(name: str, tmp_path: Path) -> None:
    (tmp_path / "small.onnx").write_bytes(_model(*_TYPES[name], TensorProto.FLOAT).SerializeToString())
    done = CliRunner().invoke(main, ["network", "verify", str(tmp_path / "small.onnx"), "--threads", "1"])
    assert done.exit_code == 0 and "right: o" in done.output
