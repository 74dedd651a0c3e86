"""Sums that `vdpbf16ps` makes are never denormal, so that one instruction converts them to bf16."""

from __future__ import annotations

import ml_dtypes  # noqa: F401
import numpy as np
import pytest

import convsmith as cs
from convsmith.compiler.driver import lower
from convsmith.ir.intern import interning
from convsmith.machine.registry import host_targets
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan

LEVEL = next(t for t in LEVELS if t.name == "avx512_bf16")
TILE = "--target=avx512_bf16 --lane=n --register=m:4,n:16 --order=m,n --reduce=k"
CONFIG = f"{TILE} --instruction=vdpbf16ps_512 --k_step=k:2"
has_level = pytest.mark.skipif("avx512_bf16" not in [t.name for t in host_targets()], reason="needs AVX512_BF16")


@pytest.mark.parametrize(("options", "converts"), [("", True), ("--attr-post-ops=relu", True), ("--bia-dt=f32", False)])
def test_sums_are_converted_by_one_instruction(options: str, converts: bool) -> None:
    """The instruction takes a denormal number for zero; a sum and a bias may add up to one."""
    with interning():
        text = lower(plan(parse_problem(f"--dt=bf16 {options} --matmul 16x32:32x16"), Config.parse(CONFIG), LEVEL)).text
    assert ("to <16 x bfloat>" in text) == converts and ("lshr <16 x i32>" in text) != converts


@has_level
@pytest.mark.parametrize("terms", [2, 4])
def test_the_instruction_flushes_denormal_sums(terms: int) -> None:
    """A product is denormal, or the difference of two normal products, which are of one or of two steps."""
    kernel = cs.compile(f"--dt=bf16:bf16:f32 --matmul 4x{terms}:{terms}x16", config=CONFIG, threads=1)
    x, w = np.zeros((4, terms), "f4"), np.ones((terms, 16), "f4")
    x[0, 0] = 2.0**-130
    x[1, 0], x[1, -1] = 1.5 * 2.0**-126, -(2.0**-126)
    x[2, :] = 2.0**-126
    w[:, 8:] *= 2.0
    got = kernel.run(src=x.astype("bfloat16"), wei=w.astype("bfloat16"))["dst"]
    assert not got[0].any() and not got[1, :8].any(), "a denormal number"
    np.testing.assert_array_equal(got[2, :8], np.full(8, terms * 2.0**-126, "f4"))


@has_level
def test_conversions_of_sums_round_to_even() -> None:
    kernel = cs.compile("--dt=bf16 --matmul 64x32:32x16", config=CONFIG, threads=1)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-16, 17, shape).astype("bfloat16") for shape in ((64, 32), (32, 16)))
    exact = x.astype(np.float32) @ w.astype(np.float32)
    assert (np.abs(exact) > 256).any(), "sums that bf16 does not hold"
    np.testing.assert_array_equal(kernel.run(src=x, wei=w)["dst"], exact.astype("bfloat16"))
