"""conv1d, conv2d, conv3d against the reference: exact on integer data, in every way of saying what to compute."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.problem.conv import Conv
from convsmith.problem.post_ops import parse_post_ops
from convsmith.problem.reference import conv_reference

Array = np.ndarray[Any, Any]
FUNCTIONS = {1: cs.conv1d, 2: cs.conv2d, 3: cs.conv3d}


def integers(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def channels_last(x: Array) -> Array:
    """The same array, with channels innermost in memory."""
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
