"""Kernels with zero points, called: values that differ from call to call, and weights packed beforehand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import convsmith as cs
from convsmith.problem import reference
from convsmith.problem.data import random_arrays

LINE = "--dt=u8:s8:s32 --attr-zero-points=src:common:3{} mb2ic12ih5iw6oc20oh5ow6kh3kw3ph1pw1"
WEIGHTS = "+wei:common:2"


@pytest.mark.parametrize("more", ["", WEIGHTS])
@pytest.mark.parametrize("threads", [1, 2])
def test_values_of_a_call(more: str, threads: int) -> None:
    k = cs.compile(LINE.format(more), threads=threads)
    arrays = random_arrays(k.problem, 1)
    packed = k.pack(arrays["wei"])
    for src, wei in ((3, 2), (255, -128), (0, 0), (-1000, 127)):
        points = {"zero_points_src": np.int32([src])} | ({"zero_points_wei": np.int32([wei])} if more else {})
        want = reference(k.problem, {**arrays, **points})["dst"]
        for weights in (arrays["wei"], packed):
            got = k.run(src=arrays["src"], wei=weights, **points)["dst"]
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("more", ["", WEIGHTS])
def test_a_call_with_packed_weights(more: str, tmp_path: Path) -> None:
    """The sums of the weights lie beside them, in memory and in a file."""
    k = cs.compile(LINE.format(more), threads=1)
    arrays = random_arrays(k.problem, 1)
    want = reference(k.problem, arrays)["dst"]
    packed = k.pack(arrays["wei"])
    packed.save(tmp_path / "weights")
    for weights in (packed, cs.load_packed(tmp_path / "weights"), arrays["wei"]):
        out = np.empty_like(want)
        assert k(arrays["src"], weights, out=out) is out
        np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(k(arrays["src"], weights), want)


def test_zero_points_of_a_bound_call_may_change() -> None:
    """The stored pixel of zero points, to which a table of pointers leads, follows them."""
    k = cs.compile(LINE.format(""), threads=1, config="--realise=indirection")
    given = random_arrays(k.problem, 1) | {"zero_points_src": np.int32([3])}
    out = np.empty(k.problem.dst_shape, np.int32)
    call = k.bind_each(**given | {"wei": k.pack(given["wei"])}, dst=out)
    for point in (3, 0, 200):
        given["zero_points_src"][0] = point
        call()
        np.testing.assert_array_equal(out, reference(k.problem, given)["dst"])


def test_packed_without_sums_is_packed_elsewhere() -> None:
    plain = cs.compile("--dt=u8:s8:s32 " + LINE.split()[-1], threads=1)
    k = cs.compile(LINE.format(""), threads=1)
    arrays = random_arrays(k.problem)
    with pytest.raises(cs.UsageError, match="weights: packed for another kernel") as caught:
        k(arrays["src"], plain.pack(arrays["wei"]))
    assert caught.value.code == "packing"


def test_explain_names_the_sums() -> None:
    page = cs.compile(LINE.format(WEIGHTS), threads=1).explain()
    for text in (
        "sums, wei_taps, ",
        "sums, wei_sums, ",
        "wei in the order ",
        "sums, src_channels, ",
        "sums, src_sums, ",
    ):
        assert text in page, text
