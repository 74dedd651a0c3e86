"""Denormal weights: computed with as they are, noticed once, and taken as zero where the caller says so."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import convsmith as cs
from convsmith.runtime import host_kernel
from convsmith.runtime.denormals import _CHUNK, count_denormals, with_denormals

Array = np.ndarray[Any, Any]
FLOATS = [np.float32, np.float64, ml_dtypes.bfloat16, np.float16]
LINE = "mb1ic4ih6oc{}oh6kh3ph1"
SMALL = np.float32(1e-40)


def edges(dtype: Any) -> tuple[Array, Array]:
    """Numbers around the smallest normal one, and which of them are denormal."""
    normal = ml_dtypes.finfo(dtype).smallest_normal
    least = ml_dtypes.finfo(dtype).smallest_subnormal
    numbers = np.array([0, -0.0, least, -least, normal - least, -(normal - least), normal, -normal, 1, np.inf, -np.inf,
                        np.nan, ml_dtypes.finfo(dtype).max], dtype)  # fmt: skip
    return numbers, np.array([0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0], np.bool_)


@pytest.mark.parametrize("dtype", FLOATS)
def test_denormals_are_counted_and_flushed(dtype: Any) -> None:
    numbers, denormal = edges(dtype)
    slow = dtype != np.float16
    assert count_denormals(numbers) == (4 if slow else 0)
    flushed = with_denormals("flush", "w", numbers)
    assert flushed.dtype == dtype
    wide = numbers.astype(np.float64)
    np.testing.assert_array_equal(flushed.astype(np.float64), np.where(denormal, 0, wide))
    assert with_denormals("keep", "w", numbers) is numbers
    many = np.ones(2 * _CHUNK + 5, dtype)
    many[[0, _CHUNK - 1, _CHUNK, -1]] = numbers[2]
    for form in (many, many[::-1], np.stack([many, many]).T[:, 0], many.reshape(1, -1, 1)):
        assert count_denormals(form) == (4 if slow else 0)
    assert count_denormals(many[:0]) == 0


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_whole_numbers_have_none(dtype: Any) -> None:
    numbers = np.arange(5, dtype=dtype)
    assert count_denormals(numbers) == 0 and with_denormals("flush", "w", numbers) is numbers


def weights(oc: int) -> tuple[Array, Array]:
    w = np.ones((oc, 4, 3, 3), np.float32)
    w[0, :, 1] = SMALL
    w[-1, 2, 2, 2] = -SMALL
    return w, np.where(np.abs(w) < 1e-30, np.float32(0), w)


CALLS: dict[str, Callable[[cs.CompiledKernel, Array, Array], object]] = {
    "pack": lambda k, x, w: k.pack(w),
    "call": lambda k, x, w: k(x, w),
    "run": lambda k, x, w: k.run(src=x, wei=w),
    "bind": lambda k, x, w: k.bind(x, w, np.zeros((1, k.problem.oc, 6, 6), np.float32))(),
    "conv2d": lambda k, x, w: cs.conv2d(x, w, padding=1, threads=1),
    "conv_transpose2d": lambda k, x, w: cs.conv_transpose2d(x, w.swapaxes(0, 1), padding=1, threads=1),
    "onnx": lambda k, x, w: cs.onnx.conv(x, w, pads=[1] * 4),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_warning_for_each_kernel(name: str) -> None:
    oc = 20 + list(CALLS).index(name)  # a kernel of its own
    w, flushed = weights(oc)
    k, x = cs.compile(LINE.format(oc), threads=1), np.ones((1, 4, 6, 6), np.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CALLS[name](k, x, flushed)
        assert not caught
        for _ in range(3):
            CALLS[name](k, x, w)
    assert len(caught) == 1, [str(warning.message) for warning in caught]
    assert caught[0].category is cs.DenormalWarning and caught[0].filename == __file__
    assert f"13 of {w.size} are denormal numbers" in str(caught[0].message)
    assert 'denormals="flush"' in str(caught[0].message)


def test_plain_weights_are_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking takes as long as packing, so that calls with plain weights do it less and less often."""
    w, _ = weights(19)
    k, x, looked, calls = cs.compile(LINE.format(19), threads=1), np.ones((1, 4, 6, 6), np.float32), list[int](), 0

    def look(array: Array) -> int:
        looked.append(calls)
        return 0

    monkeypatch.setattr(host_kernel, "count_denormals", look)
    for calls in range(1, 20):  # noqa: B007  # `look` reads it
        k(x, w)
    assert looked == [1, 2, 4, 8, 16]
    k.pack(w)
    assert looked[5:] == [19]


def test_they_are_computed_with_as_they_are_or_taken_as_zero() -> None:
    w, flushed = weights(8)
    x = np.full((1, 4, 6, 6), 1e30, np.float32)
    x[:, :, ::2] = 0
    w[1:-1] = 0  # channels whose sums are of ordinary size would hide them
    flushed[1:-1] = 0
    k = cs.compile(LINE.format(8), threads=1)
    with pytest.warns(cs.DenormalWarning):
        kept = k(x, k.pack(w))
    lost = k(x, k.pack(w, denormals="flush"))
    assert not np.array_equal(kept, lost)
    np.testing.assert_array_equal(lost, k(x, flushed))
    np.testing.assert_array_equal(cs.conv2d(x, w, padding=1, denormals="flush", threads=1), lost)
    turned = w.swapaxes(0, 1)[:, :, ::-1, ::-1]
    np.testing.assert_array_equal(cs.conv_transpose2d(x, turned, padding=1, denormals="flush", threads=1), lost)


def test_weights_that_are_flushed_give_no_warning() -> None:
    w, _ = weights(9)
    k, x = cs.compile(LINE.format(9), threads=1), np.ones((1, 4, 6, 6), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        k.pack(w, denormals="flush")
        cs.conv2d(x, w, denormals="flush")
        half = np.full((9, 4, 3, 3), 1e-7, np.float16)
        cs.conv2d(x.astype(np.float16), half)
    with pytest.raises(cs.UsageError, match="denormals='zero' is not legal: expected keep or flush"):
        k.pack(w, denormals="zero")
