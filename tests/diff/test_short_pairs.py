"""Channels that no dot product on vectors divides: the padded copy of the source has zeros for the terms it lacks."""

from __future__ import annotations

import pytest

import convsmith as cs
from convsmith.compiler.driver import lower
from convsmith.ir.intern import interning
from convsmith.machine.registry import host_targets, target
from convsmith.measure.verification import verify_kernel
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for

FIRST = "--stag=abx --dtag=abx"
LEVELS = [t.name for t in host_targets() if t.name in ("avx512_bf16", "avx512_vnni", "avx2_vnni", "generic")]
LINES = [
    f"--dt=bf16 {FIRST} mb2ic3ih27oc40oh5kh11sh4ph0",
    f"--dt=bf16 {FIRST} mb1ic37ih13oc40oh13kh3ph1",
    f"--dir=BWD_D --dt=bf16 {FIRST} mb1ic40ih13oc5oh13kh3ph1",
    f"--dt=u8:s8:s32 {FIRST} mb2ic3ih20oc40oh20kh3ph1",
    f"--dt=u8:s8:s32 {FIRST} mb1ic22ih13oc40oh13kh3ph1",
]


@pytest.mark.sampled(7, "line")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("line", LINES)
def test_short_pairs_are_exact(line: str, level: str) -> None:
    verdict = verify_kernel(cs.compile(line, target=level, threads=1))
    assert verdict.ok, verdict


def test_no_step_reads_a_part_of_a_pair() -> None:
    words = "--lane=oc --register=ow:14,oc:32 --instruction=vdpbf16ps_512 --k_step=ic:2 --realise=pad_copy"
    config = Config.parse(f"--target=avx512_bf16 {words}")
    problem = parse_problem(f"--dt=bf16 {FIRST} mb1ic3ih227oc96oh55kh11sh4ph0")
    with interning():
        text = lower(plan_for(problem.canonical(), config, target("avx512_bf16"))).text
    assert "dpbf16ps.512" in text and "zext i16" not in text
