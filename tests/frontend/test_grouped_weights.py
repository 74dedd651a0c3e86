"""Weights with groups are taken with a dim of groups or without, wherever weights are taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.problem.reference import conv_reference

Array = np.ndarray[Any, Any]

LINES = {
    "groups": "g2mb1ic8ih5oc12oh5kh3ph1",
    "depthwise": "--stag=axb --dtag=axb g16mb1ic16ih5oc16oh5kh3ph1",
    "multiplier": "g4mb1ic4iw6oc8ow4kw3pw0",
    "one group": "g1mb1ic4ih5oc6oh5kh3ph1",
    "deconvolution": "--deconv g2mb1ic8ih5oc6oh7kh3ph0",
    "volume": "g2mb1ic4id3oc6od3kd3pd1",
}


def integers(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def forms(w: Array) -> list[Array]:
    """The weights in every form: with groups, without, and without in memory of other orders."""
    flat = w.reshape(-1, *w.shape[2:])
    reversed_memory = np.ascontiguousarray(flat[::-1])[::-1]
    return [w, flat, np.asfortranarray(flat), reversed_memory, np.repeat(flat, 2, 0)[::2]]


@pytest.mark.parametrize("name", LINES)
def test_every_form_everywhere(name: str) -> None:
    k = cs.compile(LINES[name], threads=1)
    x, w = integers(k.problem.src_shape, 0), integers(k.problem.wei_shape, 1)
    want = conv_reference(k.problem, x, w)
    for given in forms(w):
        np.testing.assert_array_equal(k(x, given), want)
        np.testing.assert_array_equal(k(x, k.pack(given)), want)
        np.testing.assert_array_equal(k.run(src=x, wei=given)["dst"], want)
        for bound in (given, k.pack(given)):
            out = np.full(want.shape, np.nan, np.float32)
            k.bind(x, bound, out)()
            np.testing.assert_array_equal(out, want)


def test_gradients() -> None:
    line = LINES["groups"]
    back = cs.compile(f"--dir=BWD_D {line}", threads=1)
    w, d = integers(back.problem.wei_shape, 0), integers(back.problem.dst_shape, 1)
    want = back.run(wei=w, diff_dst=d)["diff_src"]
    for given in forms(w):
        np.testing.assert_array_equal(back.run(wei=given, diff_dst=d)["diff_src"], want)
        np.testing.assert_array_equal(back.run(wei=back.pack(given), diff_dst=d)["diff_src"], want)
    weights = cs.compile(f"--dir=BWD_W {line}", threads=1)
    gradient = weights.run(src=integers(weights.problem.src_shape, 2), diff_dst=d)["diff_wei"]
    assert gradient.shape == weights.problem.wei_shape == (2, 6, 4, 3, 3)


def test_kernels_of_nothing_of_dynamic_sizes_and_of_two_convolutions() -> None:
    w = integers((2, 6, 4, 3, 3), 0)
    nothing = cs.compile("g2mb0ic8ih5oc12oh5kh3ph1")
    dynamic = cs.compile(LINES["groups"], dynamic="mb,ih,iw", threads=1)
    x = integers((1, 8, 5, 5), 1)
    for given in forms(w):
        assert nothing(np.zeros((0, 8, 5, 5), np.float32), given).shape == (0, 12, 5, 5)
        np.testing.assert_array_equal(dynamic(x, dynamic.pack(given)), dynamic(x, w))
    fused = cs.compile("--attr-post-ops=dw:k3s1p1 mb1ic8ih5oc6kh1", threads=1)
    first, second = integers((6, 8, 1, 1), 2), integers((6, 1, 1, 3, 3), 3)
    want = fused.run(src=x, wei=first, post_op_0=second)["dst"]
    np.testing.assert_array_equal(fused.run(src=x, wei=first, post_op_0=second[:, 0])["dst"], want)


def test_wrong_shapes_name_both_forms() -> None:
    k = cs.compile(LINES["groups"], threads=1)
    both = "rank 5, shape (2, 6, 4, 3, 3) = (g, oc, ic, kh, kw), or without g rank 4, shape (12, 4, 3, 3)"
    cases = [
        ((12, 8, 3, 3), "weights: dim 1 (ic) is 8, shape (12, 8, 3, 3); legal is 4"),
        ((8, 4, 3, 3), "weights: dim 0 (oc) is 8, shape (8, 4, 3, 3); legal is 12"),
        ((2, 5, 4, 3, 3), "weights: dim 1 (oc) is 5, shape (2, 5, 4, 3, 3); legal is 6"),
        ((12, 3, 3), "weights: rank is 3"),
    ]
    for shape, text in cases:
        with pytest.raises(cs.UsageError) as caught:
            k.pack(np.ones(shape, np.float32))
        assert text in str(caught.value) and both in str(caught.value)
