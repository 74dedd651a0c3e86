"""Operators of ONNX, and of ONNX Runtime, that others express: results beside ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper, numpy_helper

import convsmith as cs

runtime: Any = import_module("onnxruntime")
MICROSOFT = "com.microsoft"
_RNG = np.random.default_rng(0)


def f(*shape: int) -> Any:
    """Return normal numbers."""
    return _RNG.standard_normal(shape).astype(np.float32)


def model(
    operator: str, inputs: Mapping[str, Any], constants: Mapping[str, Any], opset: int, outputs: int = 1,
    domain: str = "", order: str = "", **attributes: Any,
) -> Any:  # fmt: skip
    """Return the model of a node whose inputs are `inputs` and then `constants`, or in an `order` of their names."""
    names = order.split(",") if order else [*inputs, *constants]
    made = [f"y{n}" for n in range(outputs)]
    node = helper.make_node(operator, names, made, domain=domain, **attributes)
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in inputs.items()
    ]
    held = [numpy_helper.from_array(np.asarray(x), name) for name, x in constants.items()]
    graph = helper.make_graph([node], "net", values, [helper.make_empty_tensor_value_info(x) for x in made], held)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def name_of(x: Any) -> str:
    """Return the word of a case: an operator, or names of inputs and attributes."""
    return x if isinstance(x, str) else ",".join(x)


def check(
    operator: str, inputs: Any, constants: Any = None, opset: int = 18, tolerance: float = 3e-6, **more: Any
) -> None:  # fmt: skip
    """Compare one node with ONNX Runtime."""
    made = model(operator, inputs, constants or {}, opset, **more)
    expected = runtime.InferenceSession(made.SerializeToString()).run(None, dict(inputs))
    results = cs.onnx.compile(made, threads=1).run(inputs)
    for y, found in zip(expected, results.values(), strict=True):
        assert (found.dtype, found.shape) == (y.dtype, y.shape)
        most = np.abs(y[np.isfinite(y)]).max(initial=1e-9)
        np.testing.assert_allclose(found, y, rtol=0, atol=tolerance * most, err_msg=operator)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("equation", "shapes"), [
    ("ij,jk->ik", ((3, 5), (5, 7))), ("bqhd,bkhd->bhqk", ((2, 8, 3, 16), (2, 9, 3, 16))), ("ij->ji", ((3, 4),)),
    ("ij->", ((3, 4),)), ("i,j->ij", ((3,), (4,))), ("...ij,...jk->...ik", ((2, 3, 4), (2, 4, 5))),
    ("ij,ij->i", ((3, 4), (3, 4))), ("ab,bc,cd->ad", ((2, 3), (3, 4), (4, 5))), ("ij,jk", ((3, 5), (5, 7))),
    ("bchw,bc->bchw", ((2, 3, 4, 5), (2, 3))), ("i,i->", ((8,), (8,))), ("abi,cbi->acb", ((2, 3, 4), (5, 3, 4))),
])  # fmt: skip
def test_einsum(equation: str, shapes: Any) -> None:
    check("Einsum", {f"x{n}": f(*shape) for n, shape in enumerate(shapes)}, equation=equation)


@pytest.mark.parametrize(("equation", "shapes", "message"), [
    ("ii->i", ((3, 3),), "term ii of"), ("ij->ik", ((3, 3),), "legal results have labels of the terms"),
    ("ij,jk->ik", ((3, 3),), "2 terms for 1 inputs"), ("ij,jk->ik", ((3, 4), (5, 6)), "j has 4 and 5 elements"),
])  # fmt: skip
def test_illegal_equations(equation: str, shapes: Any, message: str) -> None:
    with pytest.raises(cs.ConvsmithError, match=message):
        made = model("Einsum", {f"x{n}": f(*shape) for n, shape in enumerate(shapes)}, {}, 18, equation=equation)
        cs.onnx.compile(made, threads=1)


Q, K, V = f(2, 4, 8, 16), f(2, 4, 10, 16), f(2, 4, 10, 16)
QKV = {"q": Q, "k": K, "v": V}


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("inputs", "more"), [
    (QKV, {}), (QKV, {"is_causal": 1}), ({**QKV, "m": f(8, 10)}, {"softcap": 2.0}),
    ({**QKV, "m": _RNG.random((2, 1, 8, 10)) < 0.7}, {}),
    ({**QKV, "p": f(2, 4, 3, 16), "r": f(2, 4, 3, 16)}, {"order": "q,k,v,,p,r", "outputs": 3}),
    ({"q": f(2, 8, 64), "k": f(2, 10, 32), "v": f(2, 10, 32)}, {"q_num_heads": 4, "kv_num_heads": 2}),
], ids=name_of)  # fmt: skip
def test_attention(inputs: Any, more: Any) -> None:
    check("Attention", inputs, opset=23, **more)


ROWS = f(2, 8, 64)
KEYS = np.array([[1] * 8, [1] * 5 + [0] * 3], np.int32)
PACKED = {"w": f(64, 192) / 8, "b": f(192)}


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("operator", "inputs", "constants", "more"), [
    ("FastGelu", {"q": ROWS}, {"b": f(64)}, {}), ("BiasGelu", {"q": ROWS}, {"b": f(64)}, {}),
    ("QuickGelu", {"q": ROWS}, {}, {}), ("Gelu", {"q": ROWS}, {}, {}),
    ("FusedMatMul", {"a": f(2, 5, 8), "b": f(2, 7, 5)}, {}, {"transA": 1, "transB": 1, "alpha": 0.5}),
    ("FusedConv", {"x": f(1, 4, 8, 8)}, {"w": f(6, 4, 3, 3), "b": f(6)}, {"activation": "Relu", "pads": [1] * 4}),
    ("SkipLayerNormalization", {"q": ROWS, "s": f(2, 8, 64)}, {"g": f(64), "b": f(64), "c": f(64)}, {}),
    ("SkipSimplifiedLayerNormalization", {"q": ROWS, "s": f(2, 8, 64)}, {"g": f(64)}, {"epsilon": 1e-5}),
    ("Attention", {"q": ROWS}, PACKED, {"num_heads": 4}),
    ("Attention", {"q": ROWS, "m": KEYS}, PACKED, {"num_heads": 4, "order": "q,w,b,m"}),
    ("Attention", {"q": ROWS}, PACKED, {"num_heads": 4, "unidirectional": 1}),
    ("MultiHeadAttention", {"q": ROWS, "k": f(2, 6, 64), "v": f(2, 6, 64), "m": KEYS[:, 2:], "a": f(2, 4, 8, 6)},
     {"b": f(192)}, {"num_heads": 4, "order": "q,k,v,b,m,a"}),
], ids=name_of)  # fmt: skip
def test_operators_of_onnx_runtime(operator: str, inputs: Any, constants: Any, more: Any) -> None:
    check(operator, inputs, constants, opset=17, domain=MICROSOFT, **more)


def test_tokens_with_positions_and_segments() -> None:
    inputs = {"i": np.array([[1, 8, 0], [2, 2, 5]], np.int32), "s": np.array([[0, 1, 1], [0, 0, 1]], np.int32)}
    constants = {"w": f(9, 16), "p": f(7, 16), "t": f(2, 16), "g": f(16), "b": f(16)}
    made = model("EmbedLayerNormalization", inputs, constants, 17, 2, MICROSOFT, epsilon=1e-12)
    expected = runtime.InferenceSession(made.SerializeToString()).run(["y0"], inputs)[0]
    del made.graph.output[1]
    np.testing.assert_allclose(cs.onnx.compile(made, threads=1).run(inputs)["y0"], expected, rtol=1e-5, atol=1e-5)


X = np.round(f(2, 4, 8, 16))


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("operator", "inputs", "constants", "more"), [
    ("ArgMax", {"x": X}, {}, {"axis": -1}), ("ArgMin", {"x": X}, {}, {"axis": 1, "keepdims": 0}),
    ("ArgMax", {"x": X}, {}, {"axis": 1, "select_last_index": 1}),
    ("TopK", {"x": X}, {"k": np.array([5])}, {"axis": -1, "outputs": 2}),
    ("TopK", {"x": X}, {"k": np.array([2])}, {"axis": 1, "largest": 0, "outputs": 2}),
    ("CumSum", {"x": X}, {"a": np.array(1)}, {}),
    ("CumSum", {"x": X}, {"a": np.array(-1)}, {"reverse": 1, "exclusive": 1}),
    ("CumSum", {"x": np.arange(12).reshape(3, 4)}, {"a": np.array(-1)}, {}),
    ("OneHot", {"x": np.array([[0, -5], [4, 2]])}, {"d": np.array(5), "v": np.array([0.5, 2], np.float32)},
     {"axis": 1}),
    ("Sign", {"x": X}, {}, {}), ("ReduceLogSumExp", {"x": X * 30}, {"a": np.array([1, -1])}, {"keepdims": 0}),
    ("ReduceLogSum", {"x": np.abs(X) + 1}, {"a": np.array([1, -1])}, {}), ("ReduceL1", {"x": X}, {}, {}),
    ("ScatterND", {"x": f(5, 6), "u": f(2, 6)}, {"i": np.array([[1], [3]])}, {"order": "x,i,u"}),
    ("ScatterND", {"x": f(5, 6), "u": f(3)}, {"i": np.array([[1, 2], [3, -1], [0, 0]])}, {"order": "x,i,u"}),
    ("ScatterElements", {"x": f(5, 6), "u": f(2, 3)}, {"i": np.array([[1, 2, 5], [3, -6, 4]])},
     {"axis": 1, "order": "x,i,u"}),
], ids=name_of)  # fmt: skip
def test_orders_and_places(operator: str, inputs: Any, constants: Any, more: Any) -> None:
    check(operator, inputs, constants, **more)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("operator", "constants", "more"), [
    ("RMSNormalization", {"w": f(16)}, {"opset": 23}), ("MeanVarianceNormalization", {}, {}),
    ("GroupNormalization", {"w": f(4), "b": f(4)}, {"num_groups": 2, "opset": 21}),
    ("LRN", {}, {"size": 3, "alpha": 1e-2}), ("LpNormalization", {}, {"axis": 1}),
    ("LpNormalization", {}, {"axis": 1, "p": 1}), ("Trilu", {}, {"upper": 0}), ("Selu", {}, {}), ("Softsign", {}, {}),
    ("Celu", {}, {"alpha": 2.0, "opset": 12}), ("Shrink", {}, {"lambd": 0.3, "bias": 0.1}), ("ThresholdedRelu", {}, {}),
    ("Swish", {}, {"opset": 24}), ("RotaryEmbedding", {"c": f(2, 8, 8), "s": f(2, 8, 8)}, {"opset": 23}),
], ids=name_of)  # fmt: skip
def test_norms_and_functions(operator: str, constants: Any, more: Any) -> None:
    check(operator, {"q": Q}, constants, **more)


@pytest.mark.parametrize("pad", ["zeros", "border"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grids_of_places(mode: str, pad: str) -> None:
    inputs = {"x": f(2, 3, 5, 7), "g": f(2, 4, 6, 2)}
    for corners in (0, 1):
        check("GridSample", inputs, opset=20, mode=mode, padding_mode=pad, align_corners=corners)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("sizes", [(2, 3, 9, 14), (2, 3, 4, 3)], ids=str)
def test_resizes_by_cubic_weights(way: str, sizes: tuple[int, ...]) -> None:
    more = {"constants": {"s": np.array(sizes)}, "order": "x,,,s", "coordinate_transformation_mode": way}
    for number in (0, 1):
        check("Resize", {"x": f(2, 3, 6, 7)}, mode="cubic", exclude_outside=number, **more)


@pytest.mark.parametrize("mode", ["cubic", "linear"])
def test_resizes_against_aliases(mode: str) -> None:
    more = {"constants": {"s": np.array((2, 3, 4, 3))}, "order": "x,,,s", "antialias": 1}
    check("Resize", {"x": f(2, 3, 6, 7)}, mode=mode, **more)


@pytest.mark.parametrize("operator", ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceMax", "ReduceLogSumExp"])
def test_reductions_of_no_axes_apply_their_functions(operator: str) -> None:
    """ONNX states this since version 1.17. ONNX Runtime returns its input."""
    x, functions = f(2, 3), {"ReduceL1": np.abs, "ReduceL2": np.abs, "ReduceSumSquare": np.square}
    made = model(operator, {"x": x}, {}, 18, noop_with_empty_axes=1)
    np.testing.assert_allclose(cs.onnx.compile(made, threads=1)(x), functions.get(operator, np.array)(x), rtol=1e-6)


@pytest.mark.parametrize(("operator", "constants", "more"), [
    ("Clip", {"low": np.float32(0)}, {}), ("Clip", {"high": np.float32(0)}, {"order": "x,,high"}),
    ("PRelu", {"slope": np.float32([[0.5]])}, {}), ("Pow", {"n": np.float32([[2]])}, {}), ("ReduceSum", {}, {}),
    ("ReduceLogSumExp", {}, {}), ("Transpose", {}, {}), ("QuantizeLinear", {"scale": np.float32(0.5)}, {}),
], ids=name_of)  # fmt: skip
def test_single_numbers(operator: str, constants: Any, more: Any) -> None:
    """The shape of a number is empty, or that to which it broadcasts."""
    check(operator, {"x": np.array(1.5, np.float32)}, constants, **more)


@pytest.mark.parametrize(("operator", "inputs", "more", "message"), [
    ("GridSample", {"x": f(2, 3, 5, 7), "g": f(2, 4, 6, 2)}, {"padding_mode": "reflection"}, "zeros and border"),
    ("LpNormalization", {"x": f(2, 3)}, {"p": 3}, "p=3; available are 1 and 2"),
    ("MultiHeadAttention", {"x": f(2, 3, 5, 4)}, {"domain": MICROSOFT}, "queries, keys and values of three axes"),
], ids=name_of)  # fmt: skip
def test_errors_name_what_is_available(operator: str, inputs: Any, more: Any, message: str) -> None:
    with pytest.raises(cs.UnsupportedError, match=message):
        cs.onnx.compile(model(operator, inputs, {}, 20, **more), threads=1)
