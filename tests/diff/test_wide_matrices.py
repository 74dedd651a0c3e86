"""Products of matrices in the registers of SVE: exact with vectors of 256 and of 512 bits."""

from __future__ import annotations

import pytest
from emulated import check_emulated, skip_without_emulator

from convsmith.compiler.driver import build_artifact
from convsmith.machine.registry import target
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.tune.candidates import candidates

NHWC = "--stag=axb --dtag=axb "
CASES = {
    "s8": ("--dt=s8:s8:s32 mb1ic16ih5iw9oc20oh5ow9kh3kw3ph1pw1", "smmla"),
    "u8": ("--dt=u8:u8:s32 mb1ic24iw18oc12ow18kw1pw0", "ummla"),
    "u8 by s8, requantised": (
        "--dt=u8:s8:u8 --attr-scales=wei:per_oc --attr-post-ops=relu mb2ic16iw10oc12ow10kw3pw1", "usmmla"),
    "terms that fill no instruction": ("--dt=s8:s8:s32 mb1ic12iw9oc8ow9kw3pw1", "smmla"),
    "bf16": ("--dt=bf16 mb1ic16ih4iw9oc20oh4ow9kh3kw3ph1pw1", "bfmmla"),
    "product": ("--dt=s8:s8:s32 --matmul 9x16:16x12", "smmla"),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bits", [256, 512])
@pytest.mark.parametrize("name", CASES)
def test_products_are_exact(name: str, bits: int) -> None:
    line, mnemonic = CASES[name]
    level = target(f"aarch64+sve{bits}")
    skip_without_emulator(level)
    problem = parse_problem(line if "--matmul" in line else NHWC + line).canonical()
    named = f"{mnemonic}_z_{bits // 64}x2"
    config = next(x.config for x in candidates(problem, level, 1, 200) if x.config.instruction == named)
    artifact = build_artifact(problem, config, level)
    check_emulated(problem, artifact, random_arrays(problem))
