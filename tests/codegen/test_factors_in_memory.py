"""A pair of elements that multiplies all lanes is an operand in memory, whichever factor supplies it."""

from __future__ import annotations

import pytest

from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config

FORWARD = "--dt=bf16 --stag=axb --dtag=axb mb1ic32ih14oc16oh14kh1ph0"
GRADIENT = "--dir=BWD_W --dt=bf16 --stag=axb --dtag=axb mb1ic16ih14oc32oh14kh1ph0"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (FORWARD, "--lane=oc --register=ow:7,oc:16 --reduce=kh,kw,ic --k_step=ic:2"),
        (GRADIENT, "--lane=oc --register=ic:8,oc:16 --reduce=mb,oh,ow --k_step=ow:2 --pack=src"),
        (GRADIENT, "--lane=ic --register=oc:8,ic:16 --reduce=mb,oh,ow --k_step=ow:2 --pack=diff_dst"),
    ],
    ids=["source", "source-of-a-gradient", "result"],
)
def test_a_repeated_factor_lies_in_memory(line: str, words: str) -> None:
    config = Config.parse(f"--target=avx512_bf16 --instruction=vdpbf16ps_512 {words}")
    assembly = CompiledKernel(parse_problem(line).canonical(), target("avx512_bf16"), config, 1).asm()
    products = [x for x in assembly.splitlines() if "vdpbf16ps" in x]
    assert products and all("{1to16}" in x for x in products)
