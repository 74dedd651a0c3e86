"""Operators whose meaning, or whose attributes, a later version of ONNX's operator set has changed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper

import convsmith as cs

runtime: Any = import_module("onnxruntime")
X = np.random.default_rng(0).standard_normal((2, 4, 3, 5)).astype(np.float32)


def _model(version: int, operator: str, held: Any = (), given: bool = True, **attributes: Any) -> Any:
    """Return a model of one node on `X`, which is an input or, if it is not ``given``, a constant."""
    names = {f"c{n}": x for n, x in enumerate(held)}
    nodes = [helper.make_node(operator, ["x", *names], ["y"], **attributes), helper.make_node("Neg", ["y"], ["z"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)]
    output = helper.make_tensor_value_info("z" if given else "s", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(x, name) for name, x in names.items()]
    if not given:
        nodes[:1] = [nodes[0], helper.make_node("Add", ["y", "t"], ["s"])]
        inputs, constants = (
            [helper.make_tensor_value_info("t", 1, X.shape)],
            [*constants, numpy_helper.from_array(X, "x")],
        )
        nodes.pop()
    graph = helper.make_graph(nodes, "older", inputs, [output], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=4)


def _check(model: Any) -> None:
    (name,) = (x.name for x in model.graph.input)
    (y,) = runtime.InferenceSession(model.SerializeToString()).run(None, {name: X})
    (found,) = cs.onnx.compile(model, threads=1).run({name: X}).values()
    np.testing.assert_allclose(found, y, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_a_softmax_was_over_all_axes_from_one_on(operator: str) -> None:
    """The axis was the first by default, and may be the last since version 13."""
    for version in (9, 11, 12, 13):
        for axis in (None, 0, 1, 2, 3, *((-1, -2, -4) if version > 9 else ())):
            _check(_model(version, operator, **({} if axis is None else {"axis": axis})))


def test_a_softmax_of_constants_was_over_all_axes_from_one_on() -> None:
    _check(_model(11, "Softmax", given=False))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_factors_were_an_attribute_and_then_the_second_input(mode: str) -> None:
    factors = (1.0, 1.0, 2.0, 3.0)
    _check(_model(7, "Upsample", mode=mode, scales=factors))
    _check(_model(9, "Upsample", [np.float32(factors)], mode=mode))
    for scales in (factors, (1.0, 1.0, 0.5, 1.5), (1.0, 1.0, 0.7, 0.6), (1.0, 1.0, 0.4, 0.9)):
        _check(_model(10, "Resize", [np.float32(scales)], mode=mode))


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "PRelu"])
def test_operands_had_the_axes_from_an_attribute_on(operator: str) -> None:
    """Newer versions align the last axes; ONNX Runtime does not run the older ones."""
    channels = np.float32([0.5, 2, 3, 4])
    more = {} if operator == "PRelu" else {"broadcast": 1, "axis": 1}
    (old,) = cs.onnx.compile(_model(6, operator, [channels], **more), threads=1).run({"x": X}).values()
    (new,) = cs.onnx.compile(_model(9, operator, [channels[:, None, None]]), threads=1).run({"x": X}).values()
    np.testing.assert_array_equal(old, new)
