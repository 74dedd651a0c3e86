"""Small ONNX models with every operator that is read, and every way in which a model holds its constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

__all__ = ["MODELS", "saved_model"]

FLOAT, BYTE = 1, 2
_W = np.ones((2, 4, 3, 3), np.int8)
_POINTS = {"zx": np.uint8(7), "zw": np.int8(0)}
_SCALES = {"s": np.float32(0.5), "t": np.float32(9)}


def saved_model(
    nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], outputs: list[str], functions: tuple[Any, ...] = (),
    **constants: Any,
) -> Any:  # fmt: skip
    """A model of ``nodes``."""
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info(n, t, shape) for n, (t, shape) in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    domains = {"": 19, "com.microsoft": 1, "own": 1}
    made = helper.make_model(
        graph, functions=list(functions), opset_imports=[helper.make_opsetid(*item) for item in domains.items()]
    )
    made.ir_version = 9
    return made


def _floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


def _conv() -> Any:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["one"], "stem", pads=[1] * 4, strides=[2, 2], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["one"], ["two"], "act"),
        helper.make_node("Conv", ["two", "v"], ["y"], "last", auto_pad="SAME_UPPER", dilations=[1, 1], group=1),
    ]
    return saved_model(
        nodes, {"x": (FLOAT, ["N", 3, 6, 6])}, ["y"], w=_floats(4, 3, 3, 3), b=_floats(4), v=_floats(2, 4, 1, 1)
    )


def _transposed() -> Any:
    node = helper.make_node("ConvTranspose", ["x", "t", "b"], ["y"], "up", strides=[2, 2], group=2)
    return saved_model([node], {"x": (FLOAT, [1, 4, 3, 3])}, ["y"], t=_floats(4, 3, 2, 2), b=_floats(6))


def _integer() -> Any:
    node = helper.make_node("ConvInteger", ["u", "w", "zx", "zw"], ["y"], "node", pads=[1] * 4)
    return saved_model([node], {"u": (BYTE, [1, 4, 3, 3])}, ["y"], w=_W, **_POINTS)


def _qlinear() -> Any:
    node = helper.make_node("QLinearConv", ["u", "s", "zx", "w", "s", "zw", "t", "zx", "i"], ["y"], "node")
    bias = np.arange(2, dtype=np.int32)
    return saved_model([node], {"u": (BYTE, [1, 4, 3, 3])}, ["y"], w=_W, i=bias, **_POINTS, **_SCALES)


def _products() -> Any:
    nodes = [
        helper.make_node("MatMulInteger", ["m", "v", "zx"], ["a"], "sums"),
        helper.make_node("QLinearMatMul", ["m", "s", "zx", "v", "s", "zw", "t", "zx"], ["b"], "bytes"),
    ]
    return saved_model(nodes, {"m": (BYTE, [3, 4])}, ["a", "b"], v=np.ones((4, 2), np.int8), **_POINTS, **_SCALES)


def _between_conversions() -> Any:
    held: dict[str, Any] = {"w": np.ones((2, 4, 1, 1), np.int8), "sx": np.float32(0.25), "bi": np.int32([5, -4])}
    made = {
        "sw": np.float32([0.5, 0.5]), "zx": np.uint8(3), "zw": np.zeros(2, np.int8), "sy": np.float32(8),
        "zy": np.uint8(0), "sb": np.float32([0.125, 0.125]),
    }  # fmt: skip
    tensors = {name: numpy_helper.from_array(np.asarray(array), name) for name, array in made.items()}
    nodes = [
        *(helper.make_node("Constant", [], [name], value=tensor) for name, tensor in tensors.items()),
        helper.make_node("DequantizeLinear", ["u", "sx", "zx"], ["x"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wf"], axis=0),
        helper.make_node("DequantizeLinear", ["bi", "sb"], ["bf"], axis=0),
        helper.make_node("Conv", ["x", "wf", "bf"], ["c"], "conv"), helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "sy", "zy"], ["y"]),
    ]  # fmt: skip
    return saved_model(nodes, {"u": (BYTE, [1, 4, 3, 3])}, ["y"], **held)


def _bodies() -> Any:
    inner = helper.make_empty_tensor_value_info("inner")
    body = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["inner"])], "body", [], [inner])
    twice = [helper.make_node("Conv", ["a", "k"], ["m"], "f"), helper.make_node("Conv", ["m", "k"], ["z"], "g")]
    function = helper.make_function("own", "Twice", ["a", "k"], ["z"], twice, [helper.make_opsetid("", 19)])
    nodes = [
        helper.make_node("If", ["is"], ["chosen"], then_branch=body, else_branch=body),
        helper.make_node("Twice", ["x", "w"], ["y"], "call", domain="own"),
    ]
    constants = {"w": _floats(2, 2, 1, 1), "is": np.asarray(True)}
    return saved_model(nodes, {"x": (FLOAT, [1, 2, 3, 3])}, ["y", "chosen"], (function,), **constants)


def _typed_fields() -> Any:
    made = _conv()
    for tensor in made.graph.initializer:
        values = numpy_helper.to_array(tensor).ravel().tolist()
        tensor.ClearField("raw_data")
        tensor.float_data.extend(values)
    return made


def _external() -> Any:
    made = _conv()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = tensor.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "432")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return made


MODELS: dict[str, Callable[[], Any]] = {
    "conv": _conv, "transposed": _transposed, "integer": _integer, "qlinear": _qlinear, "products": _products,
    "between conversions": _between_conversions, "bodies": _bodies, "typed fields": _typed_fields,
    "external": _external,
}  # fmt: skip
