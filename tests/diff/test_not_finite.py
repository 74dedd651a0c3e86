"""NaN and infinity: padding is absent whatever the weights, and activations keep NaN."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  # numpy then knows bfloat16
import numpy as np
import pytest
from amx import needs_amx

import convsmith as cs
from convsmith.problem.conv import Conv
from convsmith.problem.reference import conv_reference

LINES = (
    "--stag=axb --dtag=axb mb1ic5ih6oc20oh6kh3ph1",
    "--stag=abx --dtag=abx mb1ic20ih6oc3oh6kh3ph1",
    "--stag=axb --dtag=axb g4mb1ic8ih5oc8oh5kh3ph1",
)


def _arrays(p: Conv, bad: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, p.src_shape).astype(np.float32)
    w = rng.integers(-3, 4, p.wei_shape).astype(np.float32)
    w[(0,) * (w.ndim - 2) + (0, 0)] = bad
    return x, w


@pytest.mark.sampled(7)
@pytest.mark.parametrize("realise", ["peel", "mask", "pad_copy"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("line", LINES)
def test_padding_never_meets_a_weight(line: str, bad: float, realise: str) -> None:
    """The first tap of a channel is not finite: outputs for which it lies in the padding stay finite."""
    p = Conv.parse(line)
    config = cs.compile(line, threads=1).config
    kernel = cs.compile(line, threads=1, config=f"{config} --realise={realise}")
    x, w = _arrays(p, bad)
    with np.errstate(invalid="ignore"):
        expected = conv_reference(p, x, w).astype(np.float32)
    assert np.isfinite(expected).any() and not np.isfinite(expected).all()
    for weights in (w, kernel.pack(w)):
        np.testing.assert_array_equal(kernel(x, weights), expected)


@needs_amx
def test_fragments_give_way_where_a_weight_is_not_finite() -> None:
    """Instructions on fragments read a copy with zeros beyond the borders."""
    line = "--dt=bf16 --stag=abx --dtag=abx mb1ic32ih16oc32oh16kh3ph1"
    p = Conv.parse(line)
    words = "--lane=oc --register=ow:16,oc:32 --instruction=tdpbf16ps_16 --k_step=ic:32 --realise=pad_copy"
    kernel = cs.compile(line, config=f"--target=avx512_amx {words}")
    x, w = (array.astype("bfloat16") for array in _arrays(p, np.inf))
    with np.errstate(invalid="ignore"):
        expected = conv_reference(p, x.astype(np.float32), w.astype(np.float32)).astype(np.float32)
    assert np.isfinite(expected).any() and not np.isfinite(expected).all()
    for weights in (w, kernel.pack(w)):
        found = kernel(x, weights).astype(np.float32)
        np.testing.assert_array_equal(found, expected.astype("bfloat16").astype(np.float32))


@pytest.mark.parametrize("activation", ["relu", ("clip", -2.0, 5.0)])
def test_activations_propagate_nan_and_order_infinities(activation: object) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1.0, -1.0, 7.0], np.float32).reshape(1, 1, 1, 6)
    w = np.ones((1, 1, 1, 1), np.float32)
    y = cs.conv2d(x, w, activation=activation)
    low, high = (0.0, np.inf) if activation == "relu" else (-2.0, 5.0)
    np.testing.assert_array_equal(y.ravel(), np.clip(x.ravel(), low, high).astype(np.float32))


def test_lanes_beyond_the_channels_do_not_leak() -> None:
    """Memory between and after the channels holds NaN; a blocked source has NaN in its padding lanes."""
    line = "--stag=aBcd16b --dtag=aBcd16b mb1ic5ih4oc18oh4kh3ph1"
    p = Conv.parse(line)
    rng = np.random.default_rng(1)
    x = rng.integers(-3, 4, p.src_shape).astype(np.float32)
    w = rng.integers(-3, 4, p.wei_shape).astype(np.float32)
    blocked = cs.reorder(x, "abcd", "aBcd16b")
    blocked[..., 5:] = np.nan
    y = cs.compile(line, threads=1)(blocked, w)
    np.testing.assert_array_equal(cs.reorder(y, "aBcd16b", "abcd", shape=p.dst_shape), conv_reference(p, x, w))
    assert not y[:, 1, ..., 2:].any()
