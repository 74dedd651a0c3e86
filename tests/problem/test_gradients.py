"""Gradients and deconvolutions: against torch, and against the law that each product is the transpose of another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convsmith.problem import Conv, reference
from convsmith.problem.data import random_arrays

Array = np.ndarray[Any, Any]


@st.composite
def problems(draw: st.DrawFn) -> Conv:
    """Small ones: with holes, uneven and negative back pads, strides beyond the kernel, empty batches and extents."""
    rank, deconv = draw(st.integers(1, 3)), draw(st.booleans())

    def sizes(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    g = draw(st.integers(1, 3))
    coarse, k, s, d, p = sizes(0, 4), sizes(1, 3), sizes(1, 3), sizes(0, 2), sizes(0, 3)
    fine = []
    for c, extent, stride, hole, front in zip(coarse, k, s, d, p, strict=True):
        largest = c * stride + (extent - 1) * (hole + 1) - front
        fine.append(draw(st.integers(max(largest - 4, 0), max(largest, 0))))
    i, o = (coarse, tuple(fine)) if deconv else (tuple(fine), coarse)
    problem = {
        "mb": draw(st.integers(0, 2)), "ic": g * draw(st.integers(1, 3)), "oc": g * draw(st.integers(1, 3)), "g": g,
        "has_groups": g > 1 or draw(st.booleans()), "i": i, "o": o, "k": k, "s": s, "d": d, "p": p, "deconv": deconv,
    }  # fmt: skip
    keff = [(kk - 1) * (dd + 1) + 1 for kk, dd in zip(k, d, strict=True)]
    if any((c - 1) * ss - f + e - pp <= -ss for c, ss, f, e, pp in zip(coarse, s, fine, keff, p, strict=True)):
        problem |= {"i": (2,) * rank, "o": (2,) * rank, "k": (1,) * rank, "p": (0,) * rank, "s": (1,) * rank}
    return Conv(**problem)  # type: ignore[arg-type]


@given(problems(), st.integers(0, 99))
def test_the_three_products_are_one_form(problem: Conv, seed: int) -> None:
    """<conv(x, w), dy> = <x, gradient of x> = <w, gradient of w>, exactly."""
    rng = np.random.default_rng(seed)
    x, w, dy = (
        rng.integers(-4, 5, shape).astype(np.float32)
        for shape in (problem.src_shape, problem.wei_shape, problem.dst_shape)
    )
    y = reference(problem, {"src": x, "wei": w})["dst"]
    dx = reference(replace(problem, dir="BWD_D"), {"wei": w, "diff_dst": dy})["diff_src"]
    gradients = reference(replace(problem, dir="BWD_WB"), {"src": x, "diff_dst": dy})
    assert y.dtype == dx.dtype == gradients["diff_wei"].dtype == np.float32
    inner = (y.astype(float) * dy).sum()
    assert inner == (x * dx.astype(float)).sum() == (w * gradients["diff_wei"].astype(float)).sum()
    np.testing.assert_array_equal(gradients["diff_bia"], dy.sum(axis=tuple({*range(dy.ndim)} - {1})))


@given(problems(), st.integers(0, 99))
def test_a_deconvolution_is_the_gradient_of_a_convolution(problem: Conv, seed: int) -> None:
    arrays = random_arrays(problem, seed)
    weights = np.swapaxes(arrays["wei"].reshape(problem.g, problem.oc // problem.g, -1, *problem.k), 1, 2)
    other = replace(
        problem, deconv=not problem.deconv, dir="BWD_D", i=problem.o, o=problem.i, ic=problem.oc, oc=problem.ic,
    )  # fmt: skip
    given = {"wei": weights.reshape(other.wei_shape), "diff_dst": arrays["src"]}
    np.testing.assert_array_equal(reference(problem, arrays)["dst"], reference(other, given)["diff_src"])


LINES = [
    "mb2ic3iw7oc4kw3pw1",
    "g2mb2ic4ih9iw7oc6kh3kw2ph1pw1sh2sw1",
    "g3mb2ic6iw19oc6kw3pw2dw1sw2",
    "mb1ic2id4ih5iw6oc4kd2pd0kh3ph1kw1pw0",
    "mb2ic3ih3oc2oh2kh1sh2ph0",
]


@pytest.mark.parametrize("line", LINES)
def test_gradients_equal_torch(line: str) -> None:
    torch = pytest.importorskip("torch")
    problem = Conv.parse(f"--dir=BWD_WB {line}")
    arrays = random_arrays(problem, 1)
    x = torch.from_numpy(arrays["src"]).requires_grad_()
    w = torch.from_numpy(np.ones(problem.wei_shape, np.float32).reshape(problem.oc, -1, *problem.k)).requires_grad_()
    b = torch.zeros(problem.oc, requires_grad=True)
    conv = getattr(torch.nn.functional, f"conv{problem.rank}d")
    y = conv(x, w, b, problem.s, problem.p, tuple(d + 1 for d in problem.d), problem.g)
    y.backward(torch.from_numpy(arrays["diff_dst"]))
    gradients = reference(problem, arrays, np.float32)
    np.testing.assert_array_equal(gradients["diff_wei"].reshape(w.shape), w.grad.numpy())
    np.testing.assert_array_equal(gradients["diff_bia"], b.grad.numpy())
    back = replace(problem, dir="BWD_D")
    given = {"wei": np.ones(problem.wei_shape, np.float32), "diff_dst": arrays["diff_dst"]}
    np.testing.assert_array_equal(reference(back, given)["diff_src"], x.grad.numpy())


@pytest.mark.parametrize(
    "line",
    [
        "--dir=FWD_B mb2ic3iw5oc4ow11kw3sw2pw0",
        "--dir=FWD_B g2mb1ic4ih3iw4oc6oh7ow8kh3kw2sh2sw2dh1ph1pw0",
        "mb1ic2id2ih3iw2oc3kd2kh1kw3sd2sh1sw2",
        "mb2ic2iw5oc4ow12kw3sw2pw0",
    ],
)
def test_deconvolutions_equal_torch(line: str) -> None:
    torch = pytest.importorskip("torch")
    problem = Conv.parse(f"--deconv {line}")
    arrays = random_arrays(problem, 2)
    # torch has weights (IC, OC/G, *K), groups along IC.
    grouped = arrays["wei"].reshape(problem.g, problem.oc // problem.g, problem.ic // problem.g, *problem.k)
    weights = np.swapaxes(grouped, 1, 2).reshape(problem.ic, problem.oc // problem.g, *problem.k)
    conv = getattr(torch.nn.functional, f"conv_transpose{problem.rank}d")
    extra = tuple(p - back for p, back in zip(problem.p, problem.pr, strict=True))
    y = conv(
        torch.from_numpy(arrays["src"]), torch.from_numpy(np.ascontiguousarray(weights)),
        torch.from_numpy(arrays["bia"]) if problem.bias else None, problem.s, problem.p, extra, problem.g,
        tuple(d + 1 for d in problem.d),
    )  # fmt: skip
    np.testing.assert_array_equal(reference(problem, arrays, np.float32)["dst"], y.numpy())


def test_what_nothing_reads_has_no_gradient() -> None:
    """Row 1 of three is skipped by the stride; taps that only meet padding get 0; an empty batch gives zeros."""
    p = Conv.parse("--dir=BWD_D mb1ic1ih3iw1oc1oh2ow1kh1kw1sh2sw1ph0pw0")
    ones = {"wei": np.ones(p.wei_shape), "diff_dst": np.ones(p.dst_shape)}
    np.testing.assert_array_equal(reference(p, ones)["diff_src"][0, 0, :, 0], [1, 0, 1])
    p = Conv.parse("--dir=BWD_W mb1ic1iw2oc1ow1kw3dw4pw1")
    ones = {"src": np.ones(p.src_shape), "diff_dst": np.ones(p.dst_shape)}
    np.testing.assert_array_equal(reference(p, ones)["diff_wei"][0, 0], [0, 0, 0])
    p = Conv.parse("--dir=BWD_WB mb0ic2ih4oc3kh3ph1")
    gradients = reference(p, random_arrays(p))
    assert not gradients["diff_wei"].any() and gradients["diff_wei"].shape == (3, 2, 3, 3)
    np.testing.assert_array_equal(gradients["diff_bia"], [0, 0, 0])


def test_an_infinite_weight_gives_nothing_beyond_the_output() -> None:
    p = Conv.parse("--deconv mb1ic1iw2oc1ow2kw3pw1")
    wei = np.array([[[np.inf, 1, np.inf]]], np.float32)
    dst = reference(p, {"src": np.array([[[0, 1]]], np.float32), "wei": wei})["dst"]
    np.testing.assert_array_equal(dst, [[[np.inf, np.nan]]])
