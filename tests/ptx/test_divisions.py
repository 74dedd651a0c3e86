"""Divisions of f32 without calls: as exact as a division, for numbers of all sizes, and what is no number."""

from __future__ import annotations

import numpy as np
import pytest
from natives import assert_same_bits

from convsmith.codegen.device_text import ThreadEmitter
from convsmith.compiler.cubin import assemble_ptx
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.machine.registry import target
from ptx.kernels import kernel_ptx, run_kernel
from ptx.sass import disassembly, roots, skip_without_disassembler
from ptx.test_convolutions import made

THREADS = 32
_LAYER = "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb1ic64ih6oc16oh6kh1"


def kernel_of(size: int, lanes: int) -> Kernel:
    each = max(lanes, 1)
    place = f"[g * {THREADS * each} + t * {each}]" + (f"{{{lanes}}}" if lanes else "")
    return parse_kernel(
        f"kernel k(a: f32[{size}], b: f32[{size}], out: f32[{size}])\n"
        f"  for g in 0 .. {size // THREADS // each} #grid:\n"
        f"    for t in 0 .. {THREADS} #group:\n      out{place} = a{place} / b{place}\n"
    )


def operands() -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of any bits, of usual sizes, those whose quotients are denormal, and all pairs of odd ones."""
    rng = np.random.default_rng(5)
    any_bits = rng.integers(0, 1 << 32, (2, 4096), np.uint32).view(np.float32)
    usual = (rng.uniform(1, 2, (2, 4096)) * 2.0 ** rng.integers(-70, 70, (2, 4096))).astype(np.float32)
    small = np.stack([rng.integers(1, 1 << 26, 4096, np.uint32).view(np.float32), 2.0 ** rng.integers(-30, 30, 4096)])
    whole = rng.integers(-64, 65, (2, 4096)).astype(np.float32)
    odd = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, 2.0**-126, 1, -3, 2.0**64, 2.0**-64,
                      2.0**60, 2.0**-40, 1.9999999])  # fmt: skip
    pairs = np.stack([np.repeat(odd, len(odd)), np.tile(odd, len(odd))])
    both = np.concatenate([any_bits, usual, small, whole, pairs], 1, dtype=np.float32, casting="same_kind")
    return both[0].copy(), both[1].copy()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lanes", [0, 2])
def test_quotients_are_rounded_once(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadEmitter, "may_call", False)
    a, b = operands()
    kernel, machine = kernel_of(len(a), lanes), target("sm_90a")
    assert not {"div.rn.f32", "rcp.rn.f32"} & {*kernel_ptx(kernel, machine).split()}
    found = run_kernel(kernel, machine, {"a": a, "b": b, "out": np.zeros_like(a)}, seed=0)["out"]
    with np.errstate(all="ignore"):
        assert_same_bits(found, a / b)


@pytest.mark.parametrize("post_op", ["swish:1", "binary_div:f32:per_oc"])
def test_kernels_of_warp_groups_call_no_function(post_op: str) -> None:
    skip_without_disassembler("sm_90a")
    assembled = assemble_ptx(made(f"--attr-post-ops={post_op} {_LAYER}", "", "sm_90a").notes["ptx"], "sm_90a")
    counts = roots(disassembly(assembled.cubin)["convsmith"])
    assert counts["HGMMA"] and not counts["CALL"] and not assembled.warnings
