"""The interpreter of PTX: results of correct programs under several schedules, and the faults that it must report."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.emulate.ptx.launch import Blank, run
from convsmith.emulate.ptx.parser import PtxError
from ptx.llvm_kernels import BARRIER, COLLATZ, REVERSE, copied_reverse, product_of_fragments, ptx_of

SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("text", [REVERSE, copied_reverse()], ids=["stores", "copies"])
def test_numbers_pass_through_shared_memory(text: str, seed: int) -> None:
    a = np.arange(96, dtype=np.int32)
    _, c = run(ptx_of(text, 96), "k", 1, [a, Blank(96, np.int32)], seed=seed)
    np.testing.assert_array_equal(c, a[::-1])


@pytest.mark.parametrize("seed", SEEDS)
def test_diverged_lanes_meet_again(seed: int) -> None:
    """The exchange after the loop is for all lanes: it raises unless the lanes of a warp meet before it."""
    a = np.arange(1, 65, dtype=np.int32)
    _, c = run(ptx_of(COLLATZ, 64), "k", 1, [a, Blank(64, np.int32)], seed=seed)
    steps = []
    for n in a.tolist():
        count = 0
        while n != 1:
            n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
        steps.append(count)
    np.testing.assert_array_equal(c, np.array(steps) + np.array(steps).reshape(-1, 2)[:, ::-1].ravel())


@pytest.mark.sampled(3, "stages", "k", "seed")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k, stages", [(16, 2), (64, 2), (80, 3), (96, 4)])
def test_a_product_of_fragments(k: int, stages: int, seed: int) -> None:
    a, b, c = _product(k)
    text = ptx_of(product_of_fragments(k, stages), 32)
    found = run(text, "k", 1, [a, b, Blank(128, np.float32)], seed=seed)[2]
    np.testing.assert_array_equal(found.reshape(16, 8), c)


def _product(k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(k)
    a, b = rng.integers(-4, 5, (16, k)).astype(np.float16), rng.integers(-4, 5, (k, 8)).astype(np.float16)
    return a, b, a.astype(np.float32) @ b.astype(np.float32)


FAULTS = {
    "a missing barrier": (REVERSE.replace(f"{BARRIER}\n", ""), "without a barrier|before it is written"),
    "no barrier after a copy": (copied_reverse("barrier"), "without a barrier|before it is written|waited"),
    "a missing wait": (copied_reverse("wait"), "before its asynchronous copy was waited for"),
    "a missing commit": (copied_reverse("commit"), "before its asynchronous copy was waited for"),
    "a copy that never happens": (copied_reverse("copy"), "before it is written"),
    "an access beyond the array": (REVERSE.replace("i32 95, %t", "i32 96, %t"), "outside of"),
    "an access beyond an argument": (REVERSE.replace("%c, i32 %t", "%c, i32 %x"), "outside of|is in no memory"),
    "two threads that write one place": (REVERSE.replace("@s, i32 %t", "@s, i32 0"), "two threads write"),
    "a barrier that some lanes reach": (
        REVERSE.replace("  store i32 %x", "  %first = icmp ult i32 %t, 40\n  br i1 %first, label %some, label %none\n"
                        "none:\n  ret void\nsome:\n  store i32 %x"), "lanes only|no warp can go on"),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_fault_is_reported(name: str, seed: int) -> None:
    text, message = FAULTS[name]
    with pytest.raises(PtxError, match=message):
        run(ptx_of(text, 96), "k", 1, [np.arange(96, dtype=np.int32) * 4096, Blank(96, np.int32)], seed=seed)


@pytest.mark.parametrize("without", ["wait", "barrier", "order"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_fault_of_a_pipeline_is_reported(without: str, seed: int) -> None:
    """A missing wait, a missing barrier, and a stage that is overwritten before its readers are through."""
    a, b, _ = _product(96)
    with pytest.raises(PtxError):
        run(ptx_of(product_of_fragments(96, 2, without), 32), "k", 1, [a, b, Blank(128, np.float32)], seed=seed)


@pytest.mark.parametrize("what", ["store", "load", "fragment"])
def test_a_wrong_place_gives_wrong_numbers(what: str) -> None:
    """A swizzle on one side only, and registers of a fragment in another order."""
    a, b, c = _product(64)
    body = product_of_fragments(64, 2, what) if what == "fragment" else product_of_fragments(64, 2, swizzle=what)
    found = run(ptx_of(body, 32), "k", 1, [a, b, Blank(128, np.float32)])[2]
    assert (found.reshape(16, 8) != c).any()


def test_an_unknown_instruction_is_named() -> None:
    text = ptx_of(REVERSE, 96).replace("bar.sync", "frobnicate.sync")
    with pytest.raises(PtxError, match=r"line \d+: frobnicate\.sync 0: the interpreter has no such instruction"):
        run(text, "k", 1, [np.zeros(96, np.int32), Blank(96, np.int32)])


HALVES = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 c)
{{
	.reg .b16 %rs<3>;
	.reg .b32 %r<4>;
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [a];
	ld.param.u64 %rd2, [c];
	ld.global.b16 %rs1, [%rd1];
	mov.b32 %r1, {{%rs1, %rs2}};
	{use};
	st.global.b32 [%rd2], %r2;
	ret;
}}
"""
"""A word of which LLVM uses the lower half alone: no instruction writes the register of the upper half."""


@pytest.mark.parametrize(("use", "is_exact"), [("shl.b32 %r2, %r1, 16", True), ("mov.b32 %r2, %r1", False)])
def test_registers_that_no_instruction_writes_have_any_content(use: str, is_exact: bool) -> None:
    _, c = run(HALVES.format(use=use), "k", 1, [np.array([7, 0], np.int16), Blank(1, np.int32)], 1)
    assert c[0] == 7 << 16 if is_exact else c[0] != 7
