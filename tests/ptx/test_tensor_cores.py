"""Kernels whose warps compute fragments: exact as IR after every pass, and as PTX under four schedules."""

from __future__ import annotations

import pytest
from devices import DeviceOracle

from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Invoke
from convsmith.ir.walk import statements_of
from convsmith.machine.registry import target
from convsmith.passes.manager import run_steps
from convsmith.plan.config import Config
from convsmith.plan.device import device_plan
from convsmith.problem import parse_problem
from ptx.tensor_kinds import AMPERE, SMALL, VOLTA
from ptx.test_convolutions import check, made


@pytest.mark.sampled(3, "kind")
@pytest.mark.parametrize("kind", AMPERE)
def test_kernels_of_sm_80_are_exact_under_four_schedules(kind: str) -> None:
    check(*AMPERE[kind], "sm_80")


@pytest.mark.sampled(3, "kind")
@pytest.mark.parametrize("kind", VOLTA)
def test_kernels_of_sm_70_are_exact_under_four_schedules(kind: str) -> None:
    check(*VOLTA[kind], "sm_70")


@pytest.mark.parametrize("kind", SMALL)
def test_every_pass_keeps_the_result(kind: str) -> None:
    """The interpreter runs the kernel after each pass that knows of fragments, and those that follow it."""
    line, words, level = SMALL[kind]
    with interning():
        config = Config.parse(f"--target={level} --pack= {words}")
        plan = device_plan(parse_problem(line), config, target(level))
        oracle = DeviceOracle(plan, target(level))
        steps = plan.pipeline
        first = next(n for n, step in enumerate(steps) if step.name == "hold_fragments")
        kernel = run_steps(plan.naive(), steps[:first])
        for step in steps[first:]:
            before, kernel = kernel, run_steps(kernel, [step])
            if kernel is not before:
                oracle.check(kernel)
        invoked = {s.instruction for s in statements_of(kernel.body) if isinstance(s, Invoke)}
    assert config.instruction in invoked


@pytest.mark.sampled(2, "kind")
@pytest.mark.parametrize("kind", [*AMPERE, *VOLTA])
def test_products_are_those_of_the_row(kind: str) -> None:
    """The PTX multiplies by ``mma`` alone, and registers suffice."""
    line, words, level = (*AMPERE[kind], "sm_80") if kind in AMPERE else (*VOLTA[kind], "sm_70")
    notes = made(line, words, level).notes
    main = notes["ptx"][notes["ptx"].index(".entry convsmith("):].partition("\n}")[0]
    assert "mma.sync" in main and "fma.rn.f32" not in main
    assert "no spills" in notes.get("use of convsmith", "no spills")


@pytest.mark.parametrize(("words", "text"), [
    ("--lane=oc --register=oc:8,ow:8 --group=oc:8,ow:8,ic:16",
     "has 16 rows; legal for a warp are multiples of it, found ow:8"),
    ("--lane=oc --register=oc:12,ow:16 --group=oc:12,ow:16,ic:16", "has 8 columns; legal for a warp are multiples"),
    ("--lane=oc --register=oc:8,ow:16 --group=oc:8,ow:16,ic:8", "has 16 terms; legal for a step are multiples"),
    ("--lane=oc --register=oc:8,ow:16 --group=oc:8,ow:16,ic:16 --instruction=mma_m16n8k16_f16",
     "--instruction=mma_m16n8k16_f16: legal for products of bf16:bf16:f32 on sm_80 are mma_m16n8k16_bf16"),
])  # fmt: skip
def test_illegal_tiles_name_what_is_wrong(words: str, text: str) -> None:
    words = words if "instruction" in words else f"{words} --instruction=mma_m16n8k16_bf16"
    config = Config.parse(f"--target=sm_80 --pack= --realise=pad_copy --shared=src,wei {words}")
    problem = parse_problem("--stag=axb --dtag=axb --dt=bf16 mb1ic16iw32oc16ow32kw1")
    with interning(), pytest.raises(ConfigError) as raised:
        device_plan(problem, config, target("sm_80"))
    assert text in str(raised.value)
