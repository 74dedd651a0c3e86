"""conv1d, conv2d, conv3d against the reference: exact on integer data, in every way of saying what to compute."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import convsmith as cs
from convsmith.problem.activations import ACTIVATIONS, activation_post_ops
from convsmith.problem.conv import Conv
from convsmith.problem.post_ops import parse_post_ops
from convsmith.problem.reference import conv_reference

Array = np.ndarray[Any, Any]
FUNCTIONS = {1: cs.conv1d, 2: cs.conv2d, 3: cs.conv3d}


def integers(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def channels_last(x: Array) -> Array:
    """Return an equal array with channels innermost in memory."""
    back = (0, x.ndim - 1, *range(1, x.ndim - 1))
    return np.ascontiguousarray(x.transpose(0, *range(2, x.ndim), 1)).transpose(back)


def truth(
    x: Array, w: Array, bias: Array | None, stride: tuple[int, ...], pads: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...], groups: int = 1, post_ops: str = "",
) -> Array:  # fmt: skip
    """The reference's result; every axis of it is written out here, not derived by the code under test."""
    k = w.shape[2:]
    o = tuple(
        (i + front + back - (kk - 1) * d - 1) // s + 1
        for i, kk, s, d, (front, back) in zip(x.shape[2:], k, stride, dilation, pads)
    )
    problem = Conv(
        mb=x.shape[0], ic=x.shape[1], oc=w.shape[0], i=x.shape[2:], o=o, k=k, s=stride,
        d=tuple(d - 1 for d in dilation), p=tuple(front for front, _ in pads), g=groups, has_groups=groups > 1,
        dir="FWD_D" if bias is None else "FWD_B", post_ops=parse_post_ops(post_ops),
    )  # fmt: skip
    return conv_reference(problem, x, w.reshape(problem.wei_shape), bias)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rank", FUNCTIONS)
@pytest.mark.parametrize("stride,pads,dilation", [(1, 0, 1), (2, 1, 1), (1, 2, 2), (3, 1, 2)])
def test_options_apply_to_every_axis(rank: int, stride: int, pads: int, dilation: int) -> None:
    x, w, b = integers((2, 3, 9, 7, 8)[: rank + 2]), integers((5, 3, 3, 2, 3)[: rank + 2], 1), integers((5,), 2)
    y = FUNCTIONS[rank](x, w, b, stride=stride, padding=pads, dilation=dilation, threads=1)
    want = truth(x, w, b, (stride,) * rank, ((pads, pads),) * rank, (dilation,) * rank)
    assert y.dtype == np.float32 and y.flags.c_contiguous
    np.testing.assert_array_equal(y, want)


def test_options_for_each_axis() -> None:
    x, w = integers((1, 4, 11, 13)), integers((6, 4, 3, 5), 1)
    y = cs.conv2d(x, w, stride=[2, 1], padding=(1, 3), dilation=np.array([1, 2]), threads=1)
    np.testing.assert_array_equal(y, truth(x, w, None, (2, 1), ((1, 1), (3, 3)), (1, 2)))


def test_pads_that_differ_at_front_and_back() -> None:
    x, w = integers((1, 4, 8, 9)), integers((6, 4, 3, 3), 1)
    for pads in (((0, 2), (1, 0)), [[2, 0], [0, 3]]):
        y = cs.conv2d(x, w, padding=pads, threads=1)  # type: ignore[arg-type]
        np.testing.assert_array_equal(y, truth(x, w, None, (1, 1), tuple(map(tuple, pads)), (1, 1)))  # type: ignore[arg-type]
    line, kernel = integers((1, 4, 8)), integers((6, 4, 3), 1)
    np.testing.assert_array_equal(
        cs.conv1d(line, kernel, padding=((2, 1),), threads=1), truth(line, kernel, None, (1,), ((2, 1),), (1,))
    )


@pytest.mark.parametrize("kernel,dilation,pads", [(3, 1, (1, 1)), (4, 1, (1, 2)), (2, 3, (1, 2)), (1, 1, (0, 0))])
def test_same_keeps_the_size_and_puts_the_odd_element_behind(kernel: int, dilation: int, pads: tuple[int, int]) -> None:
    x, w = integers((1, 2, 7, 7)), integers((3, 2, kernel, kernel), 1)
    y = cs.conv2d(x, w, padding="same", dilation=dilation, threads=1)
    assert y.shape == (1, 3, 7, 7)
    np.testing.assert_array_equal(y, truth(x, w, None, (1, 1), (pads, pads), (dilation, dilation)))


def test_valid_is_no_padding() -> None:
    x, w = integers((1, 2, 7, 7)), integers((3, 2, 3, 3), 1)
    np.testing.assert_array_equal(cs.conv2d(x, w, padding="valid"), cs.conv2d(x, w))


@pytest.mark.parametrize("groups", [2, 4])
def test_groups(groups: int) -> None:
    x, w, b = integers((2, 8, 6, 6)), integers((12, 8 // groups, 3, 3), 1), integers((12,), 2)
    for source in (x, channels_last(x)):
        y = cs.conv2d(source, w, b, padding=1, groups=groups, threads=1)
        np.testing.assert_array_equal(y, truth(x, w, b, (1, 1), ((1, 1), (1, 1)), (1, 1), groups))


def test_depthwise_with_a_multiplier() -> None:
    x, w = integers((1, 5, 6, 6)), integers((10, 1, 3, 3), 1)
    y = cs.conv2d(x, w, groups=5, threads=1)
    np.testing.assert_array_equal(y, truth(x, w, None, (1, 1), ((0, 0), (0, 0)), (1, 1), 5))


@pytest.mark.parametrize(
    "activation,text",
    [("relu", "relu"), ("relu:0.5", "relu:0.5"), (("clip", -3, 6), "clip:-3:6"), (["clip", 0, 6], "clip:0:6")],
)
def test_activations(activation: Any, text: str) -> None:
    x, w, b = integers((1, 3, 6, 6)), integers((4, 3, 3, 3), 1), integers((4,), 2)
    y = cs.conv2d(x, w, b, activation=activation, threads=1)
    np.testing.assert_array_equal(y, truth(x, w, b, (1, 1), ((0, 0), (0, 0)), (1, 1), post_ops=text))


NAMED = {
    "relu6": lambda v: np.clip(v, 0, 6),
    "leaky_relu": lambda v: np.where(v > 0, v, v * 0.01),
    ("leaky_relu", 0.25): lambda v: np.where(v > 0, v, v / 4),
    "leaky_relu:0.25": lambda v: np.where(v > 0, v, v / 4),
    "elu": lambda v: np.where(v > 0, v, np.expm1(v)),
    ("elu", 0.5): lambda v: np.where(v > 0, v, np.expm1(v) / 2),
    "selu": lambda v: 1.0507009873554805 * np.where(v > 0, v, 1.6732632423543772 * np.expm1(v)),
    "gelu": lambda v: v * 0.5 * (1 + np.vectorize(math.erf)(v / math.sqrt(2))),
    "gelu_tanh": lambda v: v * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))),
    "silu": lambda v: v / (1 + np.exp(-v)),
    "swish": lambda v: v / (1 + np.exp(-v)),
    ("swish", 2): lambda v: v / (1 + np.exp(-2 * v)),
    "quick_gelu": lambda v: v / (1 + np.exp(-1.702 * v)),
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "hardsigmoid": lambda v: np.clip(v / 6 + 0.5, 0, 1),
    "hardswish": lambda v: v * np.clip(v / 6 + 0.5, 0, 1),
    "hardtanh": lambda v: np.clip(v, -1, 1),
    ("hardtanh", -2, 3): lambda v: np.clip(v, -2, 3),
    "softplus": lambda v: np.log1p(np.exp(v)),
    "mish": lambda v: v * np.tanh(np.log1p(np.exp(v))),
    "tanh": np.tanh,
    "identity": lambda v: v,
    "relu+hardtanh": lambda v: np.clip(v, 0, 1),
}


def test_every_activation_is_tried() -> None:
    assert set(ACTIVATIONS) <= {name if isinstance(name, str) else name[0] for name in NAMED}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("activation", NAMED, ids=str)
def test_activations_mean_what_frameworks_mean(activation: Any) -> None:
    x = np.linspace(-4, 4, 64, dtype=np.float32).reshape(1, 1, 8, 8)
    w = np.ones((1, 1, 1, 1), np.float32)
    want = NAMED[activation](x.astype(np.float64))
    np.testing.assert_allclose(cs.conv2d(x, w, activation=activation, threads=1), want, rtol=1e-5, atol=1e-6)
    problem = cs.compile("mb1ic1ih8oc1kh1", activation=activation, threads=1).problem
    assert problem.post_ops == activation_post_ops(activation)


@pytest.mark.parametrize(
    "activation,text",
    [
        ("frelu", "'frelu' is not available"), ("relu6:3", "relu6 has 1 numbers; legal are none"),
        (("swish", 1, 2), "swish has 2 numbers; legal are up to 1"), (("gelu", "x"), "is not legal"),
        ("silu:x", "is not legal"), ((), "is not legal"), (3, "is not legal"), ([["clip"], 1], "is not legal"),
        (("clip", 0, 6, 1, 1), "is not legal"), (("clip", 6, 0), "low 6 is above high 0"),
    ],
)  # fmt: skip
def test_activations_that_are_refused(activation: Any, text: str) -> None:
    x, w = integers((1, 3, 6, 6)), integers((4, 3, 3, 3), 1)
    line = "ic3ih6oc4kh3"
    for call in (lambda: cs.conv2d(x, w, activation=activation), lambda: cs.compile(line, activation=activation)):
        with pytest.raises(cs.UsageError) as caught:
            call()
        assert caught.value.code == "bad-post-op" and text in str(caught.value)


# -- types
@pytest.mark.sampled(2, "wide_bias", "dtype")
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("wide_bias", [False, True])
def test_floats(dtype: Any, wide_bias: bool) -> None:
    x, w, b = (integers(s, n) for n, s in enumerate([(1, 4, 7, 7), (6, 4, 3, 3), (6,)]))
    want = truth(x, w, b, (1, 1), ((1, 1), (1, 1)), (1, 1))
    wide = np.float32 if wide_bias and dtype != np.float64 else dtype
    y = cs.conv2d(x.astype(dtype), w.astype(dtype), b.astype(wide), padding=1, threads=1)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, want.astype(dtype))


@pytest.mark.parametrize("x_type", [np.uint8, np.int8])
@pytest.mark.parametrize("w_type", [np.uint8, np.int8])
@pytest.mark.parametrize("bias_type", [np.int32, np.float32])
def test_bytes(x_type: Any, w_type: Any, bias_type: Any) -> None:
    x, w, b = (np.abs(integers(s, n)) for n, s in enumerate([(1, 4, 7, 7), (6, 4, 3, 3), (6,)]))
    w = w if w_type == np.uint8 else -w
    y = cs.conv2d(x.astype(x_type), w.astype(w_type), b.astype(bias_type), padding=1, threads=1)
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, truth(x, w, b, (1, 1), ((1, 1), (1, 1)), (1, 1)))


@pytest.mark.parametrize(
    "x,w,bias,text",
    [
        ("f4", "f8", "f4", "w: dtype is float64; legal: float32"), ("f2", "f4", "f4", "w: dtype is float32"),
        ("i4", "f4", "f4", "x: dtype is int32; legal: float32, float64, float16, bfloat16, uint8, int8"),
        ("u1", "f4", "f4", "w: dtype is float32; legal: uint8, int8"), ("f4", "f4", "f8", "bias: dtype is float64"),
        ("f8", "f8", "f4", "bias: dtype is float32; legal: float64"), (">f4", "f4", "f4", "x: dtype is >f4"),
        ("i1", "i1", "i2", "bias: dtype is int16; legal: int32, float32"), ("f4", "?", "f4", "w: dtype is bool"),
    ],
)  # fmt: skip
def test_types_that_do_not_go_together(x: str, w: str, bias: str, text: str) -> None:
    with pytest.raises(cs.UsageError) as caught:
        cs.conv2d(np.ones((1, 4, 7, 7), x), np.ones((6, 4, 3, 3), w), np.ones(6, bias))
    assert caught.value.code == "dtype" and text in str(caught.value)


@pytest.mark.parametrize("option", ["stride", "padding", "dilation", "groups", "threads"])
def test_what_equals_a_whole_number_and_is_none_is_refused_whatever_came_before(option: str) -> None:
    x, w = integers((1, 2, 6, 6)), integers((4, 2, 3, 3), 1)
    for value in (1.0, True, np.float32(1), np.True_, np.array(1.0), "1", [1.0, 1], (True, 1), 1 + 0j):
        for _ in range(2):
            with pytest.raises(cs.UsageError):
                cs.conv2d(x, w, **{option: value})  # type: ignore[arg-type]
            cs.conv2d(x, w, **{option: 1})  # type: ignore[arg-type]
    for value in (np.int64(1), np.uint8(1)):
        np.testing.assert_array_equal(cs.conv2d(x, w, **{option: value}), cs.conv2d(x, w, **{option: 1}))  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", FUNCTIONS)
def test_the_result_lies_in_memory_as_the_source_does(rank: int) -> None:
    x, w = integers((2, 5, 6, 7, 8)[: rank + 2]), integers((6, 5, 3, 3, 3)[: rank + 2], 1)
    want = truth(x, w, None, (1,) * rank, ((0, 0),) * rank, (1,) * rank)
    last = FUNCTIONS[rank](channels_last(x), w, threads=1)
    np.testing.assert_array_equal(last, want)
    assert last.transpose(0, *range(2, rank + 2), 1).flags.c_contiguous
    assert FUNCTIONS[rank](x, w, threads=1).flags.c_contiguous


def test_any_strides_work() -> None:
    x, w, b = integers((2, 6, 9, 9)), integers((5, 6, 3, 3), 1), integers((5,), 2)
    want = truth(x, w, b, (1, 1), ((1, 1), (1, 1)), (1, 1))
    wide = np.zeros((2, 6, 9, 18), np.float32)
    wide[..., ::2] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    sources = [np.asfortranarray(x), wide[..., ::2], x[:, :, ::-1].copy()[:, :, ::-1], frozen]
    weights = [w, channels_last(w), np.ascontiguousarray(w.transpose(2, 3, 1, 0)).transpose(3, 2, 0, 1)]
    for source, weight in itertools.product(sources, weights):
        np.testing.assert_array_equal(cs.conv2d(source, weight, b, padding=1, threads=1), want)
    constant = np.broadcast_to(np.float32(2), x.shape)
    np.testing.assert_array_equal(
        cs.conv2d(constant, w, b, threads=1), truth(constant, w, b, (1, 1), ((0, 0), (0, 0)), (1, 1))
    )


def test_out_is_filled_and_returned_whatever_its_strides() -> None:
    x, w = integers((1, 4, 6, 6)), integers((8, 4, 3, 3), 1)
    want = truth(x, w, None, (1, 1), ((0, 0), (0, 0)), (1, 1))
    for source in (x, channels_last(x)):
        plain = np.full(want.shape, np.nan, np.float32)
        for out in (
            plain,
            channels_last(plain),
            np.asfortranarray(plain),
            np.zeros((1, 8, 4, 8), np.float32)[..., ::2],
        ):
            assert cs.conv2d(source, w, out=out, threads=1) is out
            np.testing.assert_array_equal(out, want)


def test_two_threads_give_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 16, 15, 15), np.float32), rng.standard_normal((40, 16, 3, 3), np.float32)
    one = cs.conv2d(x, w, padding=1, threads=1)
    np.testing.assert_array_equal(cs.conv2d(x, w, padding=1, threads=2).view(np.uint32), one.view(np.uint32))


def test_padding_meets_neither_infinity_nor_nan() -> None:
    x = np.ones((1, 1, 3, 3), np.float32)
    w = np.ones((1, 1, 3, 3), np.float32)
    w[0, 0, 0, 0], w[0, 0, 2, 2] = np.inf, np.nan
    y = cs.conv2d(x, w, padding=1, threads=1)
    np.testing.assert_array_equal(np.isnan(y[0, 0]), [[True, True, False], [True, True, False], [False] * 3])
    assert y[0, 0, 0, 2] == 4 and y[0, 0, 2, 0] == 4 and np.isposinf(y[0, 0, 2, 2])


def test_empty_batches_and_sources() -> None:
    w, b = integers((4, 3, 3, 3)), integers((4,), 1)
    assert cs.conv2d(np.zeros((0, 3, 8, 8), np.float32), w, b).shape == (0, 4, 6, 6)
    only_padding = cs.conv2d(np.zeros((2, 3, 0, 0), np.float32), w, b, padding=2, activation="relu")
    np.testing.assert_array_equal(only_padding, np.broadcast_to(np.maximum(b, 0)[:, None, None], (2, 4, 2, 2)))


def test_a_second_call_takes_the_same_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = integers((1, 3, 5, 5)), integers((4, 3, 3, 3), 1)
    first = cs.conv2d(x, w, threads=1)
    monkeypatch.setattr("convsmith.frontend.kernel.compile_problem", None)
    np.testing.assert_array_equal(cs.conv2d(x, w, threads=1), first)
