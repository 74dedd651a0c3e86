"""Kernels whose operands a copy engine brings, in the interpreter of the IR: copies run ahead, in random order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from devices import DeviceOracle
from ptx.hopper_configs import KINDS, LAST, LEVEL, forward

from convsmith.ir.intern import interning
from convsmith.ir.stmt import AtomicAdd, Invoke
from convsmith.ir.walk import statements_of
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for

SMALL = {
    "taps": (f"{LAST} --dt=bf16 mb1ic16ih9iw8oc16oh8ow8kh2kw1ph0pw0", forward(k=16)),
    "phases": (
        f"--dir=BWD_D {LAST} --dt=bf16 mb1ic16ih8oc16oh4kh2ph0sh2",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --phases=ih,iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:16 "
        "--group=mb_ih_iw:64,ic:16,oc:16 --shared=diff_dst,wei --buffers=2 --instruction=wgmma_m64n16k16_bf16_k_mn",
    ),
    "parts of pixels": (
        f"--dir=BWD_W {LAST} --dt=bf16 mb3iw9ic64oc32ow9kw1",
        "--lane=oc --fuse=mb+ow --reduce=mb_ow --register=ic:64,oc:32 --group=ic:64,oc:32,mb_ow:16 "
        "--shared=src,diff_dst --buffers=2 --split=mb_ow:2 --instruction=wgmma_m64n32k16_bf16_mn_mn",
    ),
    "added by groups": (f"{LAST} --dt=bf16:bf16:f32 mb1ic32ih5iw4oc24oh5ow3kh1kw2ph0pw0",
                        forward(k=16) + " --split=ic:2 --join=atomic"),
}  # fmt: skip
"""Problems of few products, with configs."""
LARGER = ("1x1", "f16", "s8", "post-ops", "scales", "groups of 16 channels", "backward by weights")


def two_units() -> Machine:
    """Return sm_90a with two units, on each of which one group resides."""
    machine = target(LEVEL)
    assert machine.device is not None
    units = replace(machine.device.units, count=2, shared=1)
    return replace(machine, device=replace(machine.device, units=units))


def check(line: str, words: str, names: frozenset[str]) -> set[str]:
    """Interpret the kernel after the passes of the ``names`` and after the last one; return those that changed it."""
    changed = set()
    with interning():
        config = Config.parse(f"--target={LEVEL} --pack= --realise=hardware {words}")
        plan = plan_for(parse_problem(line), config, two_units())
        oracle = DeviceOracle(plan, two_units())
        kernel = plan.naive()
        for step in plan.pipeline:
            before, kernel = kernel, run_steps(kernel, [step])
            if step.name in names and kernel is not before:
                changed.add(step.name)
                oracle.check(kernel)
        oracle.check(kernel)
    return changed


@pytest.mark.parametrize(("kind", "names"), [
    ("taps", {"tensor_copies"}), ("phases", {"residue"}), ("parts of pixels", {"solve"}),
    ("added by groups", {"block_reduction", "residue"}),
])  # fmt: skip
def test_kernels_compute_the_same_after_passes_for_a_copy_engine(kind: str, names: set[str]) -> None:
    assert check(*SMALL[kind], frozenset(names)) == names


def test_sums_in_warp_groups_are_added_to_tails() -> None:
    """Rows beyond the last pixel are multiplied without a test, and not added."""
    line, words = KINDS["channels added by groups"]
    with interning():
        config = Config.parse(f"--target={LEVEL} --pack= --realise=hardware {words}")
        plan = plan_for(parse_problem(line), config, target(LEVEL))
        kernel = run_steps(plan.naive(), plan.pipeline)
    assert {s.instruction for s in statements_of(kernel.body) if isinstance(s, Invoke)} == {config.instruction}
    assert any(isinstance(s, AtomicAdd) for s in statements_of(kernel.body))


@pytest.mark.slow
@pytest.mark.parametrize("kind", LARGER)
def test_kernels_of_all_types_compute_the_same(kind: str) -> None:
    assert check(*KINDS[kind], frozenset({"tensor_copies", "pipeline_copies"})) == {"tensor_copies", "pipeline_copies"}
