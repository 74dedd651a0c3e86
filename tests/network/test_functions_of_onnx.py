"""Functions, pools, whole numbers, bits and resizes of ONNX: beside double precision, and beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper
from test_composed_operators import MICROSOFT, check, f, model

import convsmith as cs

_RNG = np.random.default_rng(3)
_ENDS = np.array([0, 0.5, 1, 1e-30, 1e-5, np.inf, np.nan, 17, 88, 89, 1e10, 1e19, 3e38], np.float32)
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "Tan": (np.tan, -3, 3), "Asin": (np.arcsin, -1, 1), "Acos": (np.arccos, -1, 1), "Atan": (np.arctan, -50, 50),
    "Sinh": (np.sinh, -20, 20), "Cosh": (np.cosh, -20, 20), "Asinh": (np.arcsinh, -30, 30),
    "Acosh": (np.arccosh, 1, 30), "Atanh": (np.arctanh, -1, 1),
}  # fmt: skip
"""Functions by ONNX's name: that of numpy, and the range of most samples."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_beside_double_precision(name: str) -> None:
    function, low, high = FUNCTIONS[name]
    near = _RNG.uniform(-1, 1, 2000) * 10.0 ** _RNG.integers(-30, 0, 2000)
    x = np.concatenate([_RNG.uniform(low, high, 4000), near, 1 + np.abs(near), _ENDS, -_ENDS]).astype(np.float32)
    x = x[~(np.abs(x) >= 2**30)] if name == "Tan" else x
    y = cs.onnx.compile(model(name, {"x": x}, {}, 22), threads=1)(x)
    with np.errstate(all="ignore"):
        expected = function(x.astype(np.float64))
        single = expected.astype(np.float32)
        finite = np.isfinite(single)
        units = np.abs(y - expected)[finite] / np.maximum(np.spacing(np.abs(single[finite])), 2.0**-126)
    np.testing.assert_array_equal(y[~finite], single[~finite])
    assert units.max() <= 4


_MAXIMA: list[tuple[Any, Any]] = [((3, 7), {}), ((2, 5, 4), {"axis": 1}), ((2, 5, 4), {"opset": 11})]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("shape", "more"), _MAXIMA, ids=str)
def test_one_at_the_first_maximum(shape: Any, more: Any) -> None:
    check("Hardmax", {"x": np.round(f(*shape))}, **more)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("more", [
    {"p": 2}, {"p": 1, "pads": [1, 0, 0, 1], "strides": [2, 1]}, {"p": 3, "auto_pad": "SAME_UPPER"},
    {"p": 2, "ceil_mode": 1, "strides": [3, 2], "dilations": [1, 2]},
], ids=str)  # fmt: skip
def test_norms_of_windows(more: Any) -> None:
    check("LpPool", {"x": f(2, 3, 9, 8)}, tolerance=2e-6, kernel_shape=[3, 2], **more)
    check("GlobalLpPool", {"x": f(2, 3, 9, 8)}, p=more["p"])


def _numbers(dtype: type, *shape: int) -> Any:
    limits = np.iinfo(dtype)
    large = _RNG.integers(limits.min + 1, limits.max, shape, dtype=dtype, endpoint=True)
    return np.where(_RNG.random(shape) < 0.5, large, large % 11).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int8])
def test_whole_numbers_beside_numpy(dtype: type) -> None:
    x, y = _numbers(dtype, 3, 50), _numbers(dtype, 50)
    y[y == 0] = 3
    signed = x.astype(np.int64), y.astype(np.int64)
    quotients = (np.abs(signed[0]) // np.abs(signed[1]) * np.sign(signed[0]) * np.sign(signed[1])).astype(dtype)
    for operator, expected, more in (
        ("Div", quotients, {}), ("Mod", np.mod(x, y), {}), ("Mod", np.fmod(x, y), {"fmod": 1}),
        ("BitwiseAnd", x & y, {}), ("BitwiseOr", x | y, {}), ("BitwiseXor", x ^ y, {}),
    ):  # fmt: skip
        net = cs.onnx.compile(model(operator, {"x": x, "y": y}, {}, 18, **more), threads=1)
        (found,) = net.run({"x": x, "y": y}).values()
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, expected, operator)
    np.testing.assert_array_equal(cs.onnx.compile(model("BitwiseNot", {"x": x}, {}, 18), threads=1)(x), ~x)


def test_remainders_of_floats() -> None:
    x, y = f(400) * 10.0 ** _RNG.integers(-3, 4, 400).astype(np.float32), f(400)
    x[:6], y[:6] = [1, -1, -1, 0, -7, 7], [np.inf, np.inf, -np.inf, 3, -7, -2]
    y[6:60], x[6:60] = 3, np.float32(2) ** np.arange(54) + np.where(np.arange(54) < 20, 0.25, 0)
    x[200:300] = np.float32(y[200:300] * 12345)  # next to whole quotients
    for more, expected in (({"fmod": 1}, np.fmod(x, y)), ({}, np.mod(x, y))):
        net = cs.onnx.compile(model("Mod", {"x": x, "y": y}, {}, 18, **more), threads=1)
        (found,) = net.run({"x": x, "y": y}).values()
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("way", ["LEFT", "RIGHT"])
def test_shifts_of_bytes(way: str) -> None:
    x, y = _numbers(np.uint8, 4, 33), _RNG.integers(0, 8, (4, 33)).astype(np.uint8)
    check("BitShift", {"x": x, "y": y}, direction=way)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", [(2, 3, 8), (1, 3, 6, 9), (2, 1, 4, 4)])
def test_elements_at_the_places_of_maxima(shape: Any) -> None:
    """A model that pools and puts the elements, doubled, back; and places that are constants."""
    k = [2, 3, 2][: len(shape) - 2]
    window = {"kernel_shape": k, "strides": k}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["m", "i"], **window), helper.make_node("Add", ["m", "m"], ["d"]),
        helper.make_node("MaxUnpool", ["d", "i"], ["y"], **window),
    ]  # fmt: skip
    x = f(*(size // n * n for size, n in zip(shape, [1, 1, *k])))
    values = [helper.make_tensor_value_info("x", 1, x.shape)]
    graph = helper.make_graph(nodes, "net", values, [helper.make_empty_tensor_value_info("y")])
    y = cs.onnx.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), threads=1)(x)
    blocks = np.abs(y) > 0
    assert y.shape == x.shape and blocks.sum() == x.size // np.prod(k)
    np.testing.assert_array_equal(y[blocks], 2 * x[blocks])
    pooled = x[tuple(slice(None, None, s) for s in (1, 1, *k))]
    places = np.arange(x.size).reshape(x.shape)[tuple(slice(None, None, s) for s in (1, 1, *k))]
    check("MaxUnpool", {"x": pooled}, {"i": places}, **window)


def test_places_that_are_refused() -> None:
    inputs = {"x": f(1, 1, 2, 2), "i": np.zeros((1, 1, 2, 2), np.int64)}
    with pytest.raises(cs.UnsupportedError, match="its places are values of a run; available are constants"):
        cs.onnx.compile(model("MaxUnpool", inputs, {}, 18, kernel_shape=[2, 2], strides=[2, 2]), threads=1)


@pytest.mark.parametrize("more", [{"strides": [1, 1]}, {"strides": [2, 2], "pads": [1, 1, 1, 1]}], ids=str)
def test_places_of_other_windows_are_refused(more: Any) -> None:
    """The places of such windows are not one in each block of the result."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["m", "i"], kernel_shape=[2, 2], **more),
        helper.make_node("MaxUnpool", ["m", "i"], ["y"], kernel_shape=[2, 2], **more),
    ]
    values = [helper.make_tensor_value_info("x", 1, (1, 1, 4, 4))]
    graph = helper.make_graph(nodes, "net", values, [helper.make_empty_tensor_value_info("y")])
    with pytest.raises(cs.UnsupportedError, match="its places are values of a run"):
        cs.onnx.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), threads=1)


@pytest.mark.parametrize("more", [{"k": 1}, {"dtype": 7}, {"k": -2}], ids=str)
def test_ones_along_a_diagonal(more: Any) -> None:
    check("EyeLike", {"x": f(4, 5)}, opset=18, **more)


RESIZES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "axes": ({"s": np.float32([2, 0.5])}, {"axes": [3, 2]}),
    "sizes of axes": ({"n": np.array([5, 17])}, {"axes": [2, 3], "mode": "linear"}),
    "not larger": ({"n": np.array([5, 7])}, {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}),
    "not smaller": ({"n": np.array([5, 7])}, {"axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller",
                                              "mode": "cubic"}),
    **{
        f"symmetric {mode}": ({"s": np.float32([1, 1, 0.6, 1.7])},
                              {"mode": mode, "coordinate_transformation_mode": "half_pixel_symmetric"})
        for mode in ("nearest", "linear", "cubic")
    },
    **{
        f"crop {mode}": ({"r": np.float32([0, 0, 0.1, -0.2, 1, 1, 0.8, 1.3]), "n": np.array([1, 2, 5, 9])},
                         {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize",
                          "extrapolation_value": 7.5})
        for mode in ("linear", "nearest")
    },
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RESIZES)
def test_resizes(name: str) -> None:
    constants, more = RESIZES[name]
    order = ",".join(["x", *(x if x in constants else "" for x in ("r", "s", "n"))]).rstrip(",")
    x = f(1, 2, 8, 9)
    made = model("Resize", {"x": x}, constants, 19, order=order, **more)
    from onnx.reference import ReferenceEvaluator

    (expected,) = ReferenceEvaluator(made).run(None, {"x": x})
    found = cs.onnx.compile(made, threads=1)(x)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_softmax_of_bytes_before_13() -> None:
    """The attribute of the operator decides, not the version of the model: a softmax over several axes."""
    x = _RNG.integers(0, 255, (2, 3, 8)).astype(np.uint8)
    held = {"a": np.float32(0.05), "b": np.uint8(9), "c": np.float32(1 / 256), "d": np.uint8(0)}
    for opset in (12, 13):
        made = model("QLinearSoftmax", {"x": x}, held, 18, domain=MICROSOFT, axis=1)
        made.graph.node[0].attribute.append(helper.make_attribute("opset", opset))
        floats = (x.astype(np.float64) - 9) * np.float32(0.05)
        flat = floats.reshape(2, -1)[:, :, None] if opset == 12 else floats
        powers = np.exp(flat)
        expected = np.rint(powers / powers.sum(1, keepdims=True) * 256).clip(0, 255).reshape(x.shape)
        found = cs.onnx.compile(made, threads=1)(x)
        assert np.abs(found - expected).max() <= 1


@pytest.mark.parametrize(("operator", "words"), [
    ("NonZero", r"the size of its output depends on the values of a run, .*; end the model before the node"),
    ("RandomUniformLike", "it draws random numbers; compute it before the network"),
    ("OptionalHasElement", "it has a sequence or an optional value; available are arrays"),
])  # fmt: skip
def test_operators_that_no_network_takes(operator: str, words: str) -> None:
    with pytest.raises(cs.UnsupportedError, match=rf"node number 0 \({operator}\): {words}"):
        cs.onnx.compile(model(operator, {"x": f(3, 4)}, {}, 18), threads=1)


@pytest.mark.parametrize("version", [0, -1, 99])
def test_versions_that_nobody_has_defined(version: int) -> None:
    made = model("Relu", {"x": f(3, 4)}, {}, 18)
    made.opset_import[0].version = version
    with pytest.raises(cs.UnsupportedError, match=f"have version {version} of ONNX's operators; the installed package"):
        cs.onnx.compile(made, threads=1)
