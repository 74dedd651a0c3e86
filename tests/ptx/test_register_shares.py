"""Registers that the threads which start copies leave to the lanes that multiply (setmaxnreg)."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from convsmith.codegen.artifact import Artifact
from convsmith.compiler.cubin import assemble_ptx
from convsmith.diag.errors import ConfigError, UnsupportedError
from ptx.hopper_configs import LAST, LEVEL, compiled, forward
from ptx.test_hopper_convolutions import check, check_raises

LINE = f"{LAST} --dt=bf16 mb3ic16ih8oc256oh8kh1"
WORDS = forward(m=192, n=256, k=16, slots=2, row="wgmma_m64n128k16_bf16")
"""Three groups of warps, each lane of which has 128 sums, and one that starts copies: 512 threads of 128 registers."""


@cache
def made() -> Artifact:
    return compiled(LINE, WORDS)


def changed(pattern: str, to: str) -> Artifact:
    """Return the artifact with other PTX."""
    text, count = re.subn(pattern, to, made().notes["ptx"])
    assert count == 1
    return replace(made(), notes={**made().notes, "ptx": text})


def test_a_tile_that_registers_bound_is_exact() -> None:
    text = made().notes["ptx"]
    assert re.findall(r"setmaxnreg\.(\w+)\.sync\.aligned\.u32\s+(\d+);", text) == [("inc", "160"), ("dec", "24")]
    for seed in range(2):
        check(made(), LINE, seed)


def test_other_tiles_share_no_registers() -> None:
    assert "setmaxnreg" not in compiled(f"{LAST} --dt=bf16 mb1ic16ih8oc128oh8kh1", forward(
        m=64, n=128, k=16, slots=2, row="wgmma_m64n128k16_bf16")).notes["ptx"]  # fmt: skip


@pytest.mark.parametrize(("words", "why"), [
    (forward(m=256, n=256, k=16, slots=2, row="wgmma_m64n128k16_bf16"), "112 for each of them"),
    (forward(m=192, n=256, k=16, slots=2, row="wgmma_m64n256k16_bf16"), "128 at the launch"),
])
def test_registers_have_limits(words: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        compiled(LINE, words)


FAULTS = {
    "nothing is left": (r"setmaxnreg\.dec\S*\s+24;", "", "no warp can go on: .*160 registers of a thread"),
    "more than there is": (r"(setmaxnreg\.inc\S*\s+)160;", r"\g<1>168;", "no warp can go on"),
    "lanes leave theirs": (r"setmaxnreg\.inc(\S*\s+)160;", r"setmaxnreg.dec\g<1>32;", "which has 32 registers"),
    "no multiple": (r"(setmaxnreg\.inc\S*\s+)160;", r"\g<1>156;", "legal are multiples of 8 from 24 to 256"),
    "fewer than before": (r"(setmaxnreg\.inc\S*\s+)160;", r"\g<1>96;", "inc to 96 registers .* which has 128"),
    "one warp alone": (r"(setmaxnreg\.dec\S*\s+24;)", r"setp.eq.u32 %p1, %r1, 200; @%p1 \1", "setmaxnreg|no warp can"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_share_raises(fault: str) -> None:
    pattern, to, why = FAULTS[fault]
    check_raises(changed(pattern, to), LINE, why)


def test_the_assembler_gives_the_registers() -> None:
    """Of ptxas alone: nvJitLink, which joins modules, gives all threads equal shares."""
    try:
        assembled = assemble_ptx(made().notes["ptx"], LEVEL)
    except UnsupportedError as error:
        pytest.skip(str(error))
    use = assembled.uses[made().entries["main"].symbol]
    assert (use.registers, use.spilled) == (128, 0) and not assembled.warnings
