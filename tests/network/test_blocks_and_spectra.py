"""Operators of ONNX on whole numbers in f64, overlapping blocks, reversed sequences, Fourier transforms and
determinants.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper
from onnx.reference import ReferenceEvaluator
from test_composed_operators import check, f, model

import convsmith as cs

_RNG = np.random.default_rng(5)


def _run(made: Any, **inputs: Any) -> Any:
    (found,) = cs.onnx.compile(made, threads=1).run(inputs).values()
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.int8])
def test_reductions_of_whole_numbers(dtype: type) -> None:
    low = 0 if dtype is np.uint8 else -9
    x = _RNG.integers(low, 10, (3, 4, 5)).astype(dtype)
    if dtype is np.int32:
        x[0, 0, 0], x[1, 1, 1] = 2**31 - 1, 2**31 - 2  # numbers that f32 does not tell apart
    axes = {"a": np.array([1])}
    for operator, expected in (
        ("ReduceMax", x.max(1)), ("ReduceMin", x.min(1)), ("ArgMax", x.argmax(1)), ("ArgMin", x.argmin(1)),
        ("Abs", np.abs(x)), ("Neg", -x), ("Sign", np.sign(x)), ("ReduceSum", np.minimum(x, 99).sum(1)),
    ):  # fmt: skip
        given = np.minimum(x, 99) if operator == "ReduceSum" else x
        more = {"axis": 1} if operator.startswith("Arg") else {}
        if operator == "Neg" and dtype is np.uint8:
            continue
        reduces = operator.startswith("Reduce")
        whole = {"keepdims": 0} if reduces or more else {}
        found = _run(model(operator, {"x": given}, axes if reduces else {}, 18, **more, **whole), x=given)
        assert found.dtype == (np.int64 if more else dtype)
        np.testing.assert_array_equal(found, expected, operator)


def test_the_largest_whole_numbers_and_powers() -> None:
    x = _RNG.permutation(40).reshape(4, 10).astype(np.int64) - 20
    check("TopK", {"x": x}, {"k": np.array([3])}, outputs=2)
    check("Pow", {"x": x}, {"e": np.int64(3)})


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("shape", "image", "k", "more"), [
    ((2, 12, 12), (4, 5), (2, 3), {"pads": [0, 0, 1, 0]}),
    ((1, 8, 9), (7, 7), (2, 2), {"strides": [2, 2], "dilations": [2, 2]}),
    ((1, 18, 20), (6, 7), (3, 3), {"pads": [0, 1, 1, 0], "strides": [1, 2], "dilations": [1, 1]}),
    ((2, 6, 4), (9,), (3,), {"strides": [2]}),
])  # fmt: skip
def test_blocks_that_overlap(shape: Any, image: Any, k: Any, more: Any) -> None:
    s, d = (more.get(word, [1] * len(k)) for word in ("strides", "dilations"))
    pads = more.get("pads", [0] * 2 * len(k))
    blocks = [
        (i + a + b - (t - 1) * h - 1) // step + 1
        for i, a, b, t, h, step in zip(image, pads, pads[len(k) :], k, d, s)
    ]
    x = np.round(f(shape[0], shape[1], int(np.prod(blocks))) * 4)
    channels = shape[1] // int(np.prod(k))
    whole = np.zeros((shape[0], channels, *(i + a + b for i, a, b in zip(image, pads, pads[len(k) :]))), np.float32)
    parts = x.reshape(shape[0], channels, *k, *blocks)
    for tap in np.ndindex(*k):
        for at in np.ndindex(*blocks):
            place = tuple(o * step + t * h for o, step, t, h in zip(at, s, tap, d))
            whole[(..., *place)] += parts[(..., *tap, *at)]
    expected = whole[(..., *(slice(a, a + i) for a, i in zip(pads, image)))]
    held = {"i": np.array(image), "k": np.array(k)}
    np.testing.assert_array_equal(_run(model("Col2Im", {"x": x}, held, 18, **more), x=x), expected)


def test_blocks_of_another_image_are_refused() -> None:
    held = {"i": np.array([5, 5]), "k": np.array([2, 2])}
    with pytest.raises(cs.ConvsmithError, match=r"it has 9 blocks; legal are \(4, 4\) for images of \(5, 5\)"):
        cs.onnx.compile(model("Col2Im", {"x": f(1, 4, 9)}, held, 18), threads=1)


@pytest.mark.parametrize("more", [{}, {"time_axis": 1, "batch_axis": 0}], ids=str)
def test_sequences_in_reverse(more: Any) -> None:
    lengths = np.array([1, 4, 2, 3, 0] if not more else [5, 1, 4, 3], np.int64)
    x = f(4, 5, 3)
    for inputs, held in (({"x": x, "n": lengths}, {}), ({"x": x}, {"n": lengths})):
        check("ReverseSequence", inputs, held, **more)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("shape", "length", "more"), [
    ((2, 15, 1), None, {}), ((3, 16, 2), None, {"inverse": 1}), ((2, 12, 1), None, {"onesided": 1}),
    ((2, 9, 4, 2), None, {"axis": 1}), ((2, 9, 1), 16, {}), ((2, 20, 2), 12, {}), ((2, 8, 3, 1), 11, {"onesided": 1}),
])  # fmt: skip
def test_fourier_transforms(shape: Any, length: Any, more: Any) -> None:
    x, attributes = f(*shape), dict(more)
    axis = attributes.pop("axis", len(shape) - 2)
    held = {**({} if length is None else {"n": np.int64(length)}), "a": np.int64(axis)}
    order = "x,n,a" if length is not None else "x,,a"
    z = x[..., 0] + (1j * x[..., 1] if shape[-1] == 2 else 0)
    function = np.fft.ifft if more.get("inverse") else np.fft.fft
    wide = function(z.astype(np.complex128), length, axis)
    if more.get("onesided"):
        wide = wide.take(range((length or shape[axis]) // 2 + 1), axis)
    found = _run(model("DFT", {"x": x}, held, 20, order=order, **attributes), x=x)
    np.testing.assert_allclose(found, np.stack([wide.real, wide.imag], -1), rtol=0, atol=1e-5 * np.abs(wide).max())


WINDOW = np.hanning(16).astype(np.float32)
STEP = {"s": np.int64(5)}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("parts", "dtype", "held", "order", "more"), [
    (1, "f4", STEP | {"w": WINDOW, "n": np.int64(16)}, "x,s,w,n", {}), (1, "f4", STEP | {"w": WINDOW}, "x,s,w", {}),
    (1, "f4", STEP | {"n": np.int64(16)}, "x,s,w,n", {}), (2, "f4", STEP | {"w": WINDOW}, "x,s,w", {"onesided": 0}),
    (2, "f4", STEP, "x,s,w", {"onesided": 0}), (1, "f8", STEP | {"n": np.int64(15)}, "x,s,,n", {"onesided": 0}),
    (1, "f4", STEP, "x,s", {}),
])  # fmt: skip
def test_fourier_transforms_of_frames(parts: int, dtype: str, held: Any, order: str, more: Any) -> None:
    inputs = {"x": f(2, 131, parts).astype(dtype)}
    if "w" in order and "w" not in held:
        inputs["w"] = WINDOW
    made = model("STFT", inputs, held, 17, order=order, **more)
    (expected,) = ReferenceEvaluator(made).run(None, inputs)
    found = _run(made, **inputs)
    assert (found.dtype, found.shape) == (dtype, expected.shape)
    tolerance = (1e-6 if dtype == "f4" else 1e-14) * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("shape", "held", "order", "message"), [
    ((1, 40, 2), STEP | {"w": WINDOW}, "x,s,w", "onesided=1 of complex numbers"),
    ((1, 15, 1), STEP | {"w": WINDOW}, "x,s,w", "frames of 16 elements, 5 apart, with a window of .* of 15"),
    ((1, 40, 1), STEP | {"w": WINDOW, "n": np.int64(12)}, "x,s,w,n", "windows of their size"),
    ((1, 40, 1), {"s": np.int64(0), "n": np.int64(12)}, "x,s,,n", "0 apart"),
    ((1, 40, 3), STEP, "x,s", r"legal are \(N, length, 1 or 2 parts\)"),
])  # fmt: skip
def test_frames_that_are_refused(shape: Any, held: Any, order: str, message: str) -> None:
    with pytest.raises(cs.ConvsmithError, match=message):
        cs.onnx.compile(model("STFT", {"x": f(*shape)}, held, 17, order=order), threads=1)


MELS = {"n": np.int64(8), "d": np.int64(16), "r": np.int64(8192), "l": np.float32(0), "u": np.float32(4096)}


def test_mel_weights_of_constants_are_exact() -> None:
    made = model("MelWeightMatrix", {}, MELS, 17)
    np.testing.assert_array_equal(_run(made), ReferenceEvaluator(made).run(None, {})[0])


@pytest.mark.parametrize("name", MELS)
def test_mel_weights_of_a_run_are_refused(name: str) -> None:
    held = {key: x for key, x in MELS.items() if key != name}
    made = model("MelWeightMatrix", {name: MELS[name]}, held, 17, order=",".join(MELS))
    with pytest.raises(cs.UnsupportedError, match="values of a run decide it; available are constants: its bands end"):
        cs.onnx.compile(made, threads=1)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 4, 4), (2, 17, 17), (5, 1, 1), (1, 2, 2)], ids=str)
def test_determinants(shape: Any) -> None:
    """Elimination with pivots changes a determinant by its condition times a rounding for each row, at most."""
    for dtype in ("f4", "f8"):
        x = f(*shape).astype(dtype)
        made = model("Det", {"x": x}, {}, 11)
        (expected,) = ReferenceEvaluator(made).run(None, {"x": x})
        found = _run(made, x=x)
        assert (found.dtype, found.shape) == (dtype, expected.shape)
        exact = x.astype("f8")
        truth, roundings = np.linalg.det(exact), 2 * shape[-1] * np.finfo(dtype).eps
        assert (np.abs(found - truth) <= roundings * np.linalg.cond(exact) * np.abs(truth)).all()


def test_determinants_of_matrices_without_an_inverse_and_of_no_numbers() -> None:
    nan = np.nan
    for matrix, expected in (
        ([[0, 1], [1, 0]], -1), ([[1, 2], [2, 4]], 0), ([[0, 0], [0, 0]], 0), ([[1, nan], [2, 3]], nan),
        ([[2, 1], [nan, 3]], nan), ([[0, 0, 2], [0, 4, 1], [8, 1, 1]], -64),
    ):  # fmt: skip
        x = np.array(matrix, np.float32)
        np.testing.assert_array_equal(_run(model("Det", {"x": x}, {}, 11), x=x), np.float32(expected))


@pytest.mark.parametrize(("shape", "message"), [
    ((3, 4), r"legal are \(\*, N, N\)"), ((3,), r"legal are \(\*, N, N\)"), ((129, 129), "available are 1 to 128"),
])  # fmt: skip
def test_determinants_that_are_refused(shape: Any, message: str) -> None:
    with pytest.raises(cs.ConvsmithError, match=message):
        cs.onnx.compile(model("Det", {"x": f(*shape)}, {}, 11), threads=1)


def test_a_grid_of_a_constant_size() -> None:
    """ONNX states the operator by branches, which read the values of the nodes around them."""
    check("AffineGrid", {"t": f(2, 2, 3)}, {"n": np.array([2, 3, 5, 6])}, opset=20)


def test_the_oldest_scatter() -> None:
    x, places, rows = f(3, 4), np.array([[0, 2], [1, 0]]), f(2, 2)
    node = helper.make_node("Scatter", ["x", "i", "u"], ["y"], axis=1)
    values = [helper.make_tensor_value_info(name, 1, a.shape) for name, a in (("x", x), ("u", rows))]
    held = [helper.make_tensor("i", 7, places.shape, places.ravel())]
    graph = helper.make_graph([node], "net", values, [helper.make_tensor_value_info("y", 1, x.shape)], held)
    expected = x.copy()
    np.put_along_axis(expected[:2], places, rows, 1)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=5)
    np.testing.assert_array_equal(_run(made, x=x, u=rows), expected)
