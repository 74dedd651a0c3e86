"""Branches whose conditions are constants: the nodes of the selected one are read in place of `If`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import helper, numpy_helper

import convsmith as cs

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def _branch(name: str, *nodes: Any, held: Any = ()) -> Any:
    return helper.make_graph(nodes, name, [], [helper.make_empty_tensor_value_info(nodes[-1].output[0])], held)


def _model(condition: Any, *before: Any) -> Any:
    two = numpy_helper.from_array(np.float32(2), "two")
    steps = helper.make_node("Mul", ["a", "two"], ["t"]), helper.make_node("Relu", ["t"], ["u"])
    then = _branch("then", *steps, held=[two])
    other = _branch("other", helper.make_node("Neg", ["a"], ["n"]))
    nodes = [
        *before, helper.make_node("Add", ["x", "x"], ["a"]),
        helper.make_node("If", ["c"], ["i"], "choice", then_branch=then, else_branch=other),
        helper.make_node("Add", ["i", "x"], ["y"]),
    ]  # fmt: skip
    x = helper.make_tensor_value_info("x", 1, X.shape)
    held = [] if condition is None else [numpy_helper.from_array(np.array(condition), "c")]
    inputs = [x] if before or held else [x, helper.make_tensor_value_info("c", 9, ())]
    return helper.make_model(helper.make_graph(nodes, "net", inputs, [helper.make_empty_tensor_value_info("y")], held))


@pytest.mark.parametrize("condition", [True, False])
def test_a_constant_condition_selects_a_branch(condition: bool) -> None:
    y = cs.onnx.compile(_model(condition), threads=1)(X)
    np.testing.assert_array_equal(y, 5 * X if condition else -X)


def test_a_condition_on_sizes() -> None:
    before = [
        helper.make_node("Shape", ["x"], ["s"]), helper.make_node("ReduceProd", ["s"], ["p"], keepdims=0),
        helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.array(12))),
        helper.make_node("Equal", ["p", "k"], ["c"]),
    ]  # fmt: skip
    np.testing.assert_array_equal(cs.onnx.compile(_model(None, *before), threads=1)(X), 5 * X)


def test_a_condition_of_a_run_is_refused() -> None:
    with pytest.raises(cs.UnsupportedError, match=r"choice \(If\): its condition is a value of a run; available are"):
        cs.onnx.compile(_model(None), threads=1)
