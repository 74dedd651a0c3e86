"""conv_transpose1d, 2d, 3d against the scatter that they state, exact on whole numbers, and against torch."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import convsmith as cs

Array = np.ndarray[Any, Any]
FUNCTIONS = {1: cs.conv_transpose1d, 2: cs.conv_transpose2d, 3: cs.conv_transpose3d}


def integers(shape: tuple[int, ...], seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def truth(
    x: Array, w: Array, bias: Array | None, stride: tuple[int, ...], pads: tuple[tuple[int, int], ...],
    extra: tuple[int, ...], dilation: tuple[int, ...], groups: int,
) -> Array:  # fmt: skip
    """Each input adds its product with each tap to one output."""
    n, c, *i = x.shape
    ocg, *k = w.shape[1:]
    full = [(size - 1) * s + (taps - 1) * d + 1 + e for size, s, taps, d, e in zip(i, stride, k, dilation, extra)]
    y = np.zeros((n, ocg * groups, *full))
    for g in range(groups):
        channels, outputs = slice(g * c // groups, (g + 1) * c // groups), slice(g * ocg, (g + 1) * ocg)
        for tap in itertools.product(*map(range, k)):
            at = tuple(slice(t * d, t * d + (size - 1) * s + 1, s) for t, d, size, s in zip(tap, dilation, i, stride))
            terms = np.tensordot(x[:, channels].astype(float), w[(channels, slice(None), *tap)].astype(float), (1, 0))
            y[(slice(None), outputs, *at)] += np.moveaxis(terms, -1, 1)
    if bias is not None:
        y += bias.astype(float).reshape(-1, *(1,) * len(k))
    crop = tuple(slice(front, size - back) for size, (front, back) in zip(full, pads))
    cropped: Array = y[(slice(None), slice(None), *crop)]
    return cropped


def check(rank: int, x: Array, w: Array, b: Array | None, **options: Any) -> Array:
    def each(name: str, default: int) -> tuple[Any, ...]:
        value = options.get(name, default)
        return tuple(value) if isinstance(value, (list, tuple, np.ndarray)) else (value,) * rank

    pads = tuple(p if isinstance(p, tuple) else (p, p) for p in each("padding", 0))
    given = (each("stride", 1), pads, each("output_padding", 0), each("dilation", 1))
    want = truth(x, w, b, *given, options.get("groups", 1))
    y = FUNCTIONS[rank](x, w, b, threads=1, **options)
    np.testing.assert_array_equal(y, want)
    return y


OPTIONS: list[dict[str, Any]] = [
    {}, {"stride": 2}, {"stride": 2, "padding": 1, "output_padding": 1}, {"dilation": 2, "padding": 1},
    {"stride": 3, "padding": 2, "output_padding": 2}, {"stride": 2, "dilation": 3, "output_padding": 2},
    {"stride": 1, "dilation": 3, "output_padding": 2, "padding": 1},
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rank", FUNCTIONS)
@pytest.mark.parametrize("n", range(len(OPTIONS)), ids=[" ".join(f"{k}={v}" for k, v in o.items()) for o in OPTIONS])
def test_options_apply_to_every_axis(rank: int, n: int) -> None:
    options = {"groups": 1 + (n + rank) % 2, **OPTIONS[n]}
    x, w = integers((2, 4, 5, 4, 3)[: rank + 2]), integers((4, 6, 3, 2, 3)[: rank + 2], 1)
    if (n // 2 + rank) % 2:
        y = check(rank, x, w, integers((6 * options["groups"],), 2), **options)
        assert y.flags.c_contiguous
    else:
        last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        y = check(rank, np.moveaxis(last, -1, 1), w, None, **options)
        assert np.moveaxis(y, 1, -1).flags.c_contiguous


def test_options_for_each_axis() -> None:
    x, w = integers((1, 4, 5, 6)), integers((4, 3, 2, 3), 1)
    check(2, x, w, None, stride=[2, 3], padding=((0, 1), (2, 0)), output_padding=(1, 2), dilation=(1, 2))
    check(2, x, w, None, stride=np.array([3, 1]), padding=(0, 1))
    check(2, x[:, :, :1, :1], w, None, stride=2)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_types(dtype: Any) -> None:
    x, w, b = integers((1, 4, 5, 5), dtype=dtype), integers((4, 3, 3, 3), 1, dtype), integers((3,), 2, dtype)
    assert check(2, x, w, b, stride=2).dtype == dtype
    bytes_in = integers((1, 4, 5, 5), dtype=np.int8), integers((4, 3, 3, 3), 1, np.int8)
    assert check(2, *bytes_in, integers((3,), 2, np.int32), stride=2).dtype == np.int32


def test_activation_applies_where_no_source_reaches_too() -> None:
    x, w, b = integers((1, 2, 4, 4)), integers((2, 3, 2, 2), 1), np.array([-3, 0, 5], np.float32)
    given = ((1, 1), ((0, 0), (0, 0)), (2, 2), (3, 3), 1)
    y = cs.conv_transpose2d(x, w, b, dilation=3, output_padding=2, activation=("leaky_relu", 0.5), threads=1)
    want = truth(x, w, b, *given)
    np.testing.assert_array_equal(y, np.where(want > 0, want, want / 2))
    out = np.full(want.shape, np.nan, np.float32)
    for given_out in (out, np.full((*want.shape, 2), np.nan, np.float32)[..., 0]):
        assert cs.conv_transpose2d(x, w, b, dilation=3, output_padding=2, out=given_out, threads=1) is given_out
        np.testing.assert_array_equal(given_out, want)


def test_torch_means_the_same() -> None:
    torch = pytest.importorskip("torch")
    x, w, b = (torch.from_numpy(integers(s, n)) for n, s in enumerate([(2, 6, 5, 7), (6, 4, 3, 2), (8,)]))
    options = {"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2), "groups": 2, "dilation": (1, 2)}
    want = torch.nn.functional.conv_transpose2d(x, w, b, **options)
    assert torch.equal(cs.conv_transpose2d(x, w, b, **options), want)


X, W = np.ones((1, 4, 5, 5), np.float32), np.ones((4, 6, 3, 3), np.float32)
ERRORS: dict[str, tuple[dict[str, Any], str, str]] = {
    "rank": ({"x": X[0]}, "rank", "x: rank is 3, shape (4, 5, 5); conv_transpose2d takes rank 4"),
    "channels": ({"w": W[:3]}, "shape", "x has 4 channels (dim 1 of (1, 4, 5, 5)), but w has 3 (dim 0"),
    "groups": ({"groups": 3}, "bad-groups", "groups=3 does not divide the 4 channels of x"),
    "output padding": ({"stride": 2, "output_padding": 2}, "bad-output-size", "2 on axis h is not below its stride 2"),
    "padding": ({"padding": 4}, "bad-output-size", "axis h: padding 4 and 4 leaves nothing of 7 elements"),
    "words": ({"padding": "same"}, "bad-padding", "padding='same' is not legal: expected numbers"),
    "bias": ({"bias": np.ones(5, np.float32)}, "shape", "bias: dim 0 (oc) is 5"),
    "type": ({"w": W.astype(float)}, "dtype", "w: dtype is float64; legal: float32"),
    "out": ({"out": np.ones((1, 6, 7, 8), np.float32)}, "shape", "out: shape is (1, 6, 7, 8); legal is (1, 6, 7, 7)"),
    "out type": ({"out": np.ones((1, 6, 7, 7))}, "dtype", "out: dtype is float64"),
    "fraction": ({"stride": 2.0}, "bad-dim", "stride=2.0 is not a whole number"),
    "sum": (
        {"dilation": 2, "output_padding": 1, "activation": "sum", "out": np.ones((1, 6, 10, 10), np.float32)},
        "unsupported-option", "available are element-wise functions",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    changes, code, text = ERRORS[name]
    with pytest.raises(cs.ConvsmithError) as caught:
        cs.conv_transpose2d(**{"x": X, "w": W, **changes})
    assert caught.value.code == code and text in str(caught.value)
