"""ONNX's operators: its own cases, its formulas in numpy, and ONNX Runtime where that implements what is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_reference as reference
import pytest
from byte_sums import skip_unless_exact

import convsmith as cs
from convsmith.onnx import calls

Array = np.ndarray[Any, Any]
DATA = Path(__file__).parents[1] / "data" / "onnx_cases"
FUNCTIONS = {
    "Conv": cs.onnx.conv,
    "ConvTranspose": cs.onnx.conv_transpose,
    "ConvInteger": cs.onnx.conv_integer,
    "QLinearConv": cs.onnx.qlinear_conv,
    "MatMulInteger": cs.onnx.matmul_integer,
    "QLinearMatMul": cs.onnx.qlinear_matmul,
}
FORMULAS = {"Conv": reference.conv, "ConvTranspose": reference.conv_transpose}
CASES = json.loads(DATA.with_suffix(".json").read_text(encoding="utf-8"))


def integers(seed: int, shape: tuple[int, ...], dtype: Any = np.float32, low: int = -4, high: int = 5) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


# -- ONNX's own cases ------------------------------------------------------------------------------------------------


def test_all_cases_are_here() -> None:
    ops = [case["op"] for case in CASES]
    counts = {
        "Conv": 33,
        "ConvTranspose": 14,
        "ConvInteger": 2,
        "QLinearConv": 1,
        "MatMulInteger": 1,
        "QLinearMatMul": 8,
    }
    assert {op: ops.count(op) for op in FUNCTIONS} == counts and len(ops) == sum(counts.values())


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case: dict[str, Any]) -> None:
    with np.load(DATA.with_suffix(".npz")) as arrays:
        inputs = [None if key is None else arrays[key] for key in case["inputs"]]
        want = arrays[case["output"]]
    got = FUNCTIONS[case["op"]](*inputs, **case["attrs"])
    assert got.dtype == want.dtype and got.shape == want.shape
    if want.dtype.kind in "iu":
        np.testing.assert_array_equal(got, want)
        return
    x, w = (np.abs(array.astype(np.float64)) for array in inputs[:2])
    sizes = FORMULAS[case["op"]](x, w, case["attrs"])
    if len(inputs) > 2:
        sizes += np.abs(inputs[2]).reshape(-1, *[1] * (x.ndim - 2))
    terms = np.prod(w.shape[1:] if case["op"] == "Conv" else (w.shape[0], *w.shape[2:]))
    assert (np.abs(got - want) <= np.finfo(want.dtype).eps * (2 + np.sqrt(terms)) * sizes).all()


# -- attributes ------------------------------------------------------------------------------------------------------


def random_call(seed: int, op: str) -> tuple[list[Array | None], dict[str, Any]]:
    """Inputs (whole numbers) and attributes."""
    rng = np.random.default_rng((seed, len(op)))
    rank, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    n, c, m = (int(number) for number in rng.integers(1, 4, 3))
    i, k, s, d = (rng.integers(*limits, rank) for limits in ((5, 9), (1, 4), (1, 4), (1, 3)))
    attributes: dict[str, Any] = {"strides": s.tolist(), "dilations": d.tolist(), "group": group}
    if rng.integers(2):
        attributes["kernel_shape"] = k.tolist()
    if (auto := rng.choice(["pads", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])) == "pads":
        attributes["pads"] = rng.integers(0, 3, 2 * rank).tolist()
    else:
        attributes["auto_pad"] = str(auto)
    if op == "ConvTranspose":
        if rng.integers(2):
            attributes["output_padding"] = [int(rng.integers(0, max(pair))) for pair in zip(s, d)]
        if auto != "pads" and rng.integers(2):
            full = s * (i - 1) + (k - 1) * d + 1
            attributes["output_shape"] = [int(rng.integers(max(1, f - 3), f + a)) for f, a in zip(full, s)]
    w_shape = (m * group, c, *k) if op == "Conv" else (c * group, m, *k)
    bias = integers(seed + 2, (m * group,)) if rng.integers(2) else None
    return [integers(seed, (n, c * group, *i)), integers(seed + 1, w_shape), bias], attributes


def formula(op: str, inputs: list[Array | None], attributes: dict[str, Any]) -> Array:
    x, w, bias = inputs
    assert x is not None and w is not None
    y = FORMULAS[op](x.astype(np.float64), w.astype(np.float64), attributes)
    return y if bias is None else y + bias.astype(np.float64).reshape(-1, *[1] * (x.ndim - 2))


@pytest.mark.sampled(8, "op")
@pytest.mark.parametrize("op", FORMULAS)
@pytest.mark.parametrize("seed", range(24))
def test_attributes(op: str, seed: int) -> None:
    inputs, attributes = random_call(seed, op)
    np.testing.assert_array_equal(FUNCTIONS[op](*inputs, **attributes), formula(op, inputs, attributes))


def runtime(op: str, inputs: list[Array | None], attributes: dict[str, Any], result: Any) -> Array:
    """Return the result of ONNX Runtime."""
    ort = pytest.importorskip("onnxruntime")
    helper = pytest.importorskip("onnx").helper
    given = {f"i{n}": np.asarray(array) for n, array in enumerate(inputs) if array is not None}
    types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in given.items()}
    graph = helper.make_graph(
        [helper.make_node(op, [f"i{n}" if f"i{n}" in given else "" for n in range(len(inputs))], ["y"], **attributes)],
        "one",
        [helper.make_tensor_value_info(name, types[name], array.shape) for name, array in given.items()],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(result)), None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, given)
    return np.asarray(y)


def implemented(op: str, kernel: tuple[int, ...], attributes: dict[str, Any]) -> bool:
    """Whether ONNX Runtime does what ONNX says.

    It refuses dilations with SAME, and output padding above the stride; with SAME it makes transposed outputs smaller
    than said where the kernel is smaller than the stride.
    """
    same = attributes.get("auto_pad", "").startswith("SAME")
    s, d = attributes["strides"], attributes["dilations"]
    if op == "Conv":
        return not (same and max(d) > 1)
    extra = attributes.get("output_padding", [0] * len(s))
    reach = [(k - 1) * b + 1 + e for k, b, e in zip(kernel, d, extra)]
    return all(e < a for e, a in zip(extra, s)) and not (same and any(r < a for r, a in zip(reach, s)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op", FORMULAS)
def test_attributes_as_in_onnx_runtime(op: str) -> None:
    compared = 0
    for seed in range(24):
        inputs, attributes = random_call(seed, op)
        if implemented(op, inputs[1].shape[2:], attributes):  # type: ignore[union-attr]
            want = runtime(op, inputs, attributes, np.float32)
            np.testing.assert_array_equal(FUNCTIONS[op](*inputs, **attributes), want)
            compared += 1
    assert compared >= 12


@pytest.mark.sampled(2, "op", "dtype")
@pytest.mark.parametrize("op", FORMULAS)
@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: dtype.__name__)
def test_types_round_once(op: str, dtype: Any) -> None:
    attributes = {"strides": [2, 1], "dilations": [1, 2], "group": 2, "pads": [1, 0, 1, 2]}
    x, w, b = integers(0, (2, 4, 7, 6), dtype), integers(1, (4, 2, 3, 2), dtype), integers(2, (4,), dtype)
    for bias in (None, b):
        got = FUNCTIONS[op](x, w, bias, **attributes)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, formula(op, [x, w, bias], attributes).astype(dtype))


@pytest.mark.parametrize("bias", [None, integers(3, (3,))], ids=["no-bias", "bias"])
def test_elements_that_no_source_reaches(bias: Array | None) -> None:
    """Output padding below the dilation, but not below the stride."""
    x, w = integers(0, (1, 2, 4)), integers(1, (2, 3, 2))
    attributes = {"dilations": [4], "output_padding": [3]}
    got = cs.onnx.conv_transpose(x, w, bias, **attributes)
    assert got.shape == (1, 3, 11)
    np.testing.assert_array_equal(got, formula("ConvTranspose", [x, w, bias], attributes))
    np.testing.assert_array_equal(cs.onnx.conv_transpose(x, w, bias, dilations=[4], output_shape=[11]), got)


def test_attributes_may_be_arrays_and_inputs_any_strides() -> None:
    x, w = integers(0, (1, 6, 7, 4)).transpose(0, 3, 1, 2), integers(1, (3, 3, 4, 2)).transpose(3, 2, 0, 1)
    got = cs.onnx.conv(x, w, strides=np.array([2, 1]), pads=(1, 1, 1, 1))  # type: ignore[arg-type]
    assert got.flags.c_contiguous
    np.testing.assert_array_equal(got, reference.conv(x, w, {"strides": [2, 1], "pads": [1, 1, 1, 1]}))


def test_nothing_to_compute() -> None:
    assert cs.onnx.conv(np.ones((0, 2, 4), np.float32), np.ones((3, 2, 2), np.float32)).shape == (0, 3, 3)
    assert cs.onnx.conv_integer(np.ones((1, 2, 0, 4), np.uint8), np.ones((3, 2, 1, 1), np.int8)).shape == (1, 3, 0, 4)
    got = cs.onnx.matmul_integer(np.ones((2, 0), np.uint8), np.ones((0, 3), np.uint8))
    np.testing.assert_array_equal(got, np.zeros((2, 3), np.int32))


# -- integers --------------------------------------------------------------------------------------------------------

BYTES = {"u8": (np.uint8, 0, 256), "s8": (np.int8, -128, 128)}
PAIRS = [(x, w) for x in BYTES for w in BYTES]
CONVS = [
    {"pads": [1, 2, 0, 1], "strides": [2, 1]},
    {"group": 2, "dilations": [2, 1], "auto_pad": "VALID"},
    {"auto_pad": "SAME_LOWER", "strides": [2, 2], "kernel_shape": [3, 2]},
]


def operands(x_type: str, w_type: str, group: int) -> tuple[Array, Array, Array, Array]:
    """x and w over the whole range of their types, and zero points near its middle, w's for each channel."""
    (x_dtype, x_low, _), (w_dtype, w_low, _) = BYTES[x_type], BYTES[w_type]
    return (
        integers(0, (2, 4, 6, 7), *BYTES[x_type]), integers(1, (6, 4 // group, 3, 2), *BYTES[w_type]),
        integers(2, (), x_dtype, x_low + 108, x_low + 148), integers(3, (6,), w_dtype, w_low + 108, w_low + 148),
    )  # fmt: skip


def sums(x: Array, w: Array, x_point: Any, w_point: Any, attributes: dict[str, Any]) -> Array:
    shifted = w.astype(np.int64) - np.asarray(w_point, np.int64).reshape(-1, *[1] * (w.ndim - 1))
    return reference.conv(x.astype(np.int64) - np.int64(x_point), shifted, attributes)


@pytest.mark.sampled(6, "x_type", wide=1, every="x_type+w_type attributes w_type")
@pytest.mark.parametrize("x_type,w_type", PAIRS)
@pytest.mark.parametrize("attributes", CONVS)
def test_conv_integer(x_type: str, w_type: str, attributes: dict[str, Any]) -> None:
    x, w, x_point, w_points = operands(x_type, w_type, attributes.get("group", 1))
    for points in ((None, None), (x_point, None), (None, w_points[0]), (x_point, w_points), (x_point, w_points[:1])):
        got = cs.onnx.conv_integer(x, w, *points, **attributes)
        assert got.dtype == np.int32
        want = sums(x, w, *(0 if point is None else point for point in points), attributes)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("rank", [1, 3])
def test_conv_integer_in_other_ranks(rank: int) -> None:
    x = integers(0, (1, 3, 6, 5, 4)[: rank + 2], *BYTES["u8"])
    w = integers(1, (2, 3, 2, 3, 1)[: rank + 2], *BYTES["s8"])
    got = cs.onnx.conv_integer(x, w, np.uint8(130), [3, -7], pads=[1] * 2 * rank)
    np.testing.assert_array_equal(got, sums(x, w, 130, [3, -7], {"pads": [1] * 2 * rank}))


def test_sums_of_integers_stay_exact_beyond_24_bits() -> None:
    x, w = np.full((1, 300, 1), 255, np.uint8), np.full((1, 300, 1), 255, np.uint8)
    w[0, 0] = 254
    assert cs.onnx.conv_integer(x, w).item() == 300 * 255 * 255 - 255 > 2**24
    got = cs.onnx.matmul_integer(x[..., 0].repeat(2, 0), w[0], [3, 5], [1])
    assert got.tolist() == [[252 * (254 * 300 - 1)], [250 * (254 * 300 - 1)]]


@pytest.mark.sampled(9, "x_type", "w_type", wide=1, every="x_type+w_type y_type per_channel")
@pytest.mark.parametrize("x_type,w_type", PAIRS)
@pytest.mark.parametrize("y_type", BYTES)
@pytest.mark.parametrize("per_channel", [False, True], ids=["one-scale", "per-channel"])
def test_qlinear_conv(x_type: str, w_type: str, y_type: str, per_channel: bool) -> None:
    x, w, x_point, w_points = operands(x_type, w_type, 1)
    w_scale = np.float32([0.02, 0.013, 0.5, 0.0031, 0.07, 0.011]) if per_channel else np.float32(0.017)
    w_point = w_points if per_channel else w_points[0]
    for y_point in (0, 3, 100):
        for bias in (None, integers(5, (6,), np.int32, -20000, 20000)):
            tail = (np.float32(0.9), BYTES[y_type][0](y_point), bias)
            got = cs.onnx.qlinear_conv(x, np.float32(0.031), x_point, w, w_scale, w_point, *tail, pads=[1, 1, 1, 1])
            acc = sums(x, w, x_point, w_point, {"pads": [1, 1, 1, 1]})
            acc = acc if bias is None else acc + bias.reshape(-1, 1, 1)
            scale = (np.float32(0.031) * w_scale).reshape(-1, 1, 1)
            np.testing.assert_array_equal(got, reference.requantised(acc, scale, *tail[:2]))
            assert got.dtype == BYTES[y_type][0] and len(np.unique(got)) > 20


def test_ties_are_rounded_to_even_before_the_zero_point_is_added() -> None:
    x, w = np.arange(7, dtype=np.uint8).reshape(1, 1, 7), np.ones((1, 1, 1), np.uint8)
    one = np.uint8(0)
    got = cs.onnx.qlinear_conv(x, 0.5, one, w, 1.0, one, 1.0, np.uint8(1))
    assert got.ravel().tolist() == [1, 1, 2, 3, 3, 3, 4]
    # 0.49999997 and 128 have no f32 between them: a sum before rounding would be 128.5, a tie.
    got = cs.onnx.qlinear_conv(x, np.float32(0.49999997), one, w, 1.0, one, 1.0, np.uint8(129))
    assert got.ravel()[:2].tolist() == [129, 129]


def test_integer_convolutions_as_in_onnx_runtime() -> None:
    skip_unless_exact()
    for attributes in CONVS[:2]:
        x, w, x_point, w_points = operands("u8", "u8", attributes.get("group", 1))
        inputs: list[Array | None] = [x, w, x_point, w_points[0]]
        want = runtime("ConvInteger", inputs, attributes, np.int32)
        np.testing.assert_array_equal(cs.onnx.conv_integer(*inputs, **attributes), want)  # type: ignore[arg-type]
        for kind in ("u8", "s8"):
            x, w, x_point, _ = operands(kind, "s8", attributes.get("group", 1))
            # Powers of two: nothing is rounded but at the end.
            scales = [np.array(2.0**n, np.float32) for n in (-4, -3, 3)]
            w_scale, zeros, y_point = np.full(6, scales[1]), np.zeros(6, np.int8), integers(4, (), *BYTES[kind])
            tail = [w, w_scale, zeros, scales[2], y_point, integers(5, (6,), np.int32, -9999, 9999)]
            want = runtime("QLinearConv", [x, scales[0], x_point, *tail], attributes, x.dtype)
            got = cs.onnx.qlinear_conv(x, scales[0], x_point, *tail, **attributes)
            np.testing.assert_array_equal(got, want)


# -- matrices --------------------------------------------------------------------------------------------------------

SHAPES = [
    ((4, 5), (5, 3)), ((5,), (5, 3)), ((4, 5), (5,)), ((5,), (5,)), ((2, 4, 5), (5, 3)), ((4, 5), (2, 5, 3)),
    ((2, 1, 4, 5), (3, 5, 2)), ((2, 3, 4, 5), (2, 3, 5, 2)), ((1, 4, 5), (2, 5, 1)), ((5,), (2, 5, 3)),
]  # fmt: skip


@pytest.mark.sampled(7, "a_type+b_type")
@pytest.mark.parametrize("a_type,b_type", PAIRS)
@pytest.mark.parametrize("a_shape,b_shape", SHAPES)
def test_matmul_integer(a_type: str, b_type: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    a, b = integers(0, a_shape, *BYTES[a_type]), integers(1, b_shape, *BYTES[b_type])
    np.testing.assert_array_equal(cs.onnx.matmul_integer(a, b), a.astype(np.int64) @ b.astype(np.int64))
    p, q = integers(2, (1,), *BYTES[a_type]), integers(3, (1,), *BYTES[b_type])
    want = (a.astype(np.int64) - p) @ (b.astype(np.int64) - q)
    got = cs.onnx.matmul_integer(a, b, p, q[0])
    assert got.dtype == np.int32 and got.shape == want.shape
    np.testing.assert_array_equal(got, want)


def row_and_column_points() -> list[tuple[Array, Array, Array, Array]]:
    u8, s8 = BYTES["u8"], BYTES["s8"]
    a, b = integers(0, (4, 5), *u8), integers(1, (5, 3), *s8)
    batches = integers(2, (2, 3, 4, 5), *u8), integers(3, (2, 3, 5, 2), *s8)
    return [
        (a, b, integers(4, (4,), *u8), integers(5, (3,), *s8)),
        (a, b, integers(4, (1,), *u8), integers(5, (1, 3), *s8)),
        (a, b, integers(4, (4, 1), *u8), integers(5, (), *s8)),
        (*batches, integers(4, (2, 3, 4, 1), *u8), integers(5, (2, 3, 1, 2), *s8)),
        (*batches, integers(4, (2, 1, 1, 1), *u8), integers(5, (2,), *s8)),
        (*batches, integers(4, (4,), *u8), integers(5, (1, 3, 1, 1), *s8)),
    ]


@pytest.mark.sampled(2, "a", "b")
@pytest.mark.parametrize("a,b,p,q", row_and_column_points())
def test_points_of_rows_and_columns(a: Array, b: Array, p: Array, q: Array) -> None:
    rows = p.reshape(-1, 1) if p.ndim == 1 else p
    acc = (a.astype(np.int64) - rows) @ (b.astype(np.int64) - q)
    np.testing.assert_array_equal(cs.onnx.matmul_integer(a, b, p, q), acc)
    a_scale = np.linspace(0.01, 0.4, rows.size, dtype=np.float32).reshape(p.shape)
    b_scale = np.linspace(0.3, 0.002, q.size, dtype=np.float32).reshape(q.shape)
    y_point = np.int8(-5)
    got = cs.onnx.qlinear_matmul(a, a_scale, p, b, b_scale, q, 1.9, y_point)
    scale = a_scale.reshape(rows.shape) * b_scale
    np.testing.assert_array_equal(got, reference.requantised(acc, scale, np.float32(1.9), y_point))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=lambda dtype: dtype.__name__)
def test_scales_of_smaller_types(dtype: Any) -> None:
    a, b = integers(0, (4, 5), *BYTES["u8"]), integers(1, (5, 3), *BYTES["u8"])
    scales = [np.array([number], dtype) for number in (0.037, 0.41, 5.3)]
    zero = np.uint8(7)
    got = cs.onnx.qlinear_matmul(a, scales[0], zero, b, scales[1], zero, scales[2], zero)
    scale = scales[0].astype(np.float32) * scales[1].astype(np.float32)
    acc = (a.astype(np.int64) - 7) @ (b.astype(np.int64) - 7)
    np.testing.assert_array_equal(got, reference.requantised(acc, scale, scales[2].astype(np.float32), zero))


def test_matrix_products_as_in_onnx_runtime() -> None:
    skip_unless_exact()
    for a_shape, b_shape in SHAPES:
        if min(len(a_shape), len(b_shape)) > 1:
            a, b = integers(0, a_shape, *BYTES["u8"]), integers(1, b_shape, *BYTES["s8"])
            p, q = integers(2, (1,), *BYTES["u8"]), integers(3, (1,), *BYTES["s8"])
            want = runtime("MatMulInteger", [a, b, p, q], {}, np.int32)
            np.testing.assert_array_equal(cs.onnx.matmul_integer(a, b, p, q), want)
            scales = [np.array([2.0**n], np.float32) for n in (-4, -3, 2)]
            inputs: list[Any] = [a, scales[0], p, b, scales[1], q, scales[2], np.array([9], np.uint8)]
            want = runtime("QLinearMatMul", inputs, {}, np.uint8)
            np.testing.assert_array_equal(cs.onnx.qlinear_matmul(*inputs), want)


def test_one_kernel_serves_all_scales_and_zero_points(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = []

    def compile(problem: Any) -> cs.CompiledKernel:
        kernels.append(cs.compile(problem))
        return kernels[-1]

    monkeypatch.setattr(calls, "compile", compile)
    x, w, _, _ = operands("u8", "s8", 1)
    a, b = integers(0, (4, 5), *BYTES["u8"]), integers(1, (5, 3), *BYTES["s8"])
    for n in (1, 2, 3):
        points = (np.uint8(n), np.int8(n))
        cs.onnx.conv_integer(x, w, *points)
        cs.onnx.qlinear_conv(x, 0.1 * n, points[0], w, 0.2 * n, points[1], 0.3 * n, points[0])
        cs.onnx.matmul_integer(a, b, *points)
        cs.onnx.qlinear_matmul(a, 0.1 * n, points[0], b, 0.2 * n, points[1], 0.3 * n, points[0])
    assert len(kernels) == 12 and len(set(map(id, kernels))) == 4
