"""Products of AArch64 take the factor that all lanes share from one element of a register."""

from __future__ import annotations

import pytest

import convsmith as cs
from convsmith.page.inner_loop import inner_loop

LAYER = "--accuracy=strict --stag=axb --dtag=axb mb1ic64ih14oc64oh14kh3ph1"


@pytest.mark.sampled(2, "loaded", "element")
@pytest.mark.parametrize(
    ("options", "level", "instruction", "element", "loaded"),
    [
        ("", "aarch64", "fmla_4s", ".s[0]", "ldr\ts"),
        ("--dt=f16 --attr-acc-mode=f16", "aarch64+fp16", "fmla_8h", ".h[0]", "ldr\th"),
        ("--dt=s8:s8:s32", "aarch64+dotprod", "sdot_4s", ".4b[0]", "ldr\ts"),
        ("--dt=u8:u8:s32", "aarch64+dotprod", "udot_4s", ".4b[0]", "ldr\ts"),
        ("--dt=u8:s8:s32", "aarch64+i8mm", "usdot_4s_us", ".4b[0]", "ldr\ts"),
    ],
)
def test_elements_are_not_copied(options: str, level: str, instruction: str, element: str, loaded: str) -> None:
    """A step loads one element for each pixel. LLVM may load the first one into all lanes and advance the address."""
    step = "" if instruction.startswith("fmla") else f" --instruction={instruction} --k_step=ic:4"
    config = f"--target={level} --lane=oc --register=ow:5,oc:16 --reduce=kh,kw,ic{step}"
    kernel = cs.compile(f"{options} {LAYER}".strip(), config=config, threads=1)
    loop = inner_loop(kernel.asm(), kernel.target)
    assert loop is not None and loop.products == 5 * (2 if instruction == "fmla_8h" else 4)
    row = kernel.target.rows[instruction]
    name = (row.repeated or row).mnemonic
    assert sum(element in x for x in loop.lines if x.startswith(f"\t{name}\t")) >= loop.products * 4 // 5
    assert sum(line.startswith(f"\t{loaded}") for line in loop.lines) >= 4
    assert not any(line.startswith(("\tdup", "\tmov\tv", "\tuzp", "\tushll")) for line in loop.lines)
