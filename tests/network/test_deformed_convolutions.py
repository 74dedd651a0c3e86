"""Convolutions whose taps have offsets: beside ONNX's reference, and beside ONNX Runtime where sums are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx.reference import ReferenceEvaluator
from test_composed_operators import check, model

import convsmith as cs

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = {
    "one channel": ((1, 1, 3, 3), (1, 1, 2, 2), {}, "xwo"),
    "groups of offsets": ((2, 4, 6, 7), (3, 4, 3, 2), {"offset_group": 2, "pads": [1, 0, 2, 1]}, "xwobm"),
    "both groups": (
        (2, 4, 8, 7), (6, 2, 3, 3),
        {"group": 2, "offset_group": 2, "strides": [2, 1], "dilations": [1, 2], "pads": [1] * 4}, "xwobm",
    ),
    "one group of offsets": ((1, 6, 8, 7), (6, 2, 3, 3), {"group": 3, "pads": [1] * 4}, "xwob"),
    "depthwise": ((1, 6, 8, 7), (6, 1, 1, 3), {"group": 6, "offset_group": 3, "pads": [0, 1, 0, 1]}, "xwom"),
}  # fmt: skip
"""Shapes of sources and weights, attributes, and the inputs: x, w, offsets, bias and mask."""


def _drawn(name: str, exact: bool) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Return inputs, the order of their names, and attributes; whole numbers and quarters if sums are to be exact."""
    x, w, more, names = CASES[name]
    rng = np.random.default_rng(len(name))
    s, d, pads = more.get("strides", [1, 1]), more.get("dilations", [1, 1]), more.get("pads", [0] * 4)
    sizes = [
        (i + front + back - (k - 1) * hole - 1) // step + 1
        for i, k, step, hole, front, back in zip(x[2:], w[2:], s, d, pads[:2], pads[2:])
    ]
    taps = more.get("offset_group", 1) * w[2] * w[3]
    shapes = {"x": x, "w": w, "o": (x[0], 2 * taps, *sizes), "b": w[:1], "m": (x[0], taps, *sizes)}
    made = {key: rng.integers(-8, 9, shape) if exact else rng.standard_normal(shape) for key, shape in shapes.items()}
    made["o"] = made["o"] / 4 if exact else made["o"] * 2
    order = ",".join(key if key in names else "" for key in shapes).rstrip(",")
    arrays = {key: made[key].astype(np.float32) for key in names}
    return arrays, order, {**more, "kernel_shape": [*w[2:]]}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_samples_between_elements(name: str) -> None:
    inputs, order, more = _drawn(name, exact=False)
    made = model("DeformConv", inputs, {}, 19, order=order, **more)
    (expected,) = ReferenceEvaluator(made).run(None, inputs)
    (found,) = cs.onnx.compile(made, threads=1).run(inputs).values()
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_exact_sums(name: str) -> None:
    inputs, order, more = _drawn(name, exact=True)
    held = {key: inputs.pop(key) for key in ("w", "b") if key in inputs}
    for given, constants in (({**inputs, **held}, {}), (inputs, held)):
        check("DeformConv", given, constants, opset=19, tolerance=0, order=order, **more)


def test_offsets_of_another_size_are_refused() -> None:
    inputs, order, more = _drawn("one channel", exact=True)
    for key, shape, message in (
        ("o", (1, 8, 2, 3), r"offsets are .*; legal are groups that divide 1 channels, and offsets of"),
        ("m", (1, 3, 2, 2), r"its mask is \(1, 3, 2, 2\); legal is \(1, 4, 2, 2\)"),
        ("x", (1, 1, 3, 3, 3), "available are images of two axes"),
    ):
        changed = {**inputs, key: np.zeros(shape, np.float32)}
        own = "x,w,o,,m" if key == "m" else order
        with pytest.raises(cs.ConvsmithError, match=message):
            cs.onnx.compile(model("DeformConv", changed, {}, 19, order=own, **more), threads=1)
