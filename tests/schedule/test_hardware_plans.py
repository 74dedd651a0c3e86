"""Kernels whose operands a copy engine brings, in the interpreter of the IR: copies run ahead, in random order."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from devices import DeviceOracle
from ptx.hopper_configs import KINDS, LAST, LEVEL, forward

from convsmith.arith.evaluate import evaluate
from convsmith.ir.intern import interning
from convsmith.ir.stmt import AtomicAdd, Invoke
from convsmith.ir.walk import loops_of, statements_of
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for
from convsmith.tune.devices.device import device_config

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
    "uneven phases": (
        f"--dir=BWD_D {LAST} --dt=bf16 mb1ic16ih6iw5oc16oh3ow5kh3kw1ph1sh2sw1",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --phases=ih --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:16 "
        "--group=mb_ih_iw:64,ic:16,oc:16 --shared=diff_dst,wei --buffers=2 --instruction=wgmma_m64n16k16_bf16_k_mn",
    ),
    "phases without taps": (
        f"--dir=BWD_D {LAST} --dt=bf16 mb1ic16ih7oc16oh4kh1sh2",
        "--lane=ic --fuse=mb+ih,mb_ih+iw --phases=ih,iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:16 "
        "--group=mb_ih_iw:64,ic:16,oc:16 --shared=diff_dst,wei --buffers=2 --instruction=wgmma_m64n16k16_bf16_k_mn",
    ),
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


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("taps", {"tensor_copies"}), ("phases", {"residue"}), ("uneven phases", {"fuse", "pipeline_copies"}),
        ("phases without taps", {"end_sums", "pipeline_copies"}), ("parts of pixels", {"solve"}),
        ("added by groups", {"block_reduction", "residue"}),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ("mb2ic64ih8oc64oh4kh3ph1sh2", [4, 2, 2, 1]), ("mb2ic64ih8oc64oh4kh1sh2", [1, 0, 0, 0]),
        ("mb2ic64ih8oc64oh4kh4ph1sh2", [4, 4, 4, 4]), ("mb2ic64ih8iw9oc64oh4ow3kh3kw3ph1pw0sh2sw2dh0dw1", [6, 0, 3, 0]),
        ("mb2ic64ih12oc64oh3kh2sh4ph0", [1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ],
)  # fmt: skip
def test_a_phase_has_a_step_for_each_tap_that_it_meets(line: str, steps: list[int]) -> None:
    """The steps of all phases are the taps, with the terms of a step in each of them; most steps come first."""
    words = (
        "--lane=ic --fuse=mb+ih,mb_ih+iw --phases=ih,iw --reduce=kh,kw,oc --register=mb_ih_iw:64,ic:64 "
        "--group=mb_ih_iw:64,ic:64,oc:64 --shared=diff_dst,wei --buffers=2 --instruction=wgmma_m64n64k16_bf16_k_mn"
    )
    with interning():
        config = Config.parse(f"--target={LEVEL} --pack= --realise=hardware {words}")
        plan = plan_for(parse_problem(f"--dir=BWD_D {LAST} --dt=bf16 {line}"), config, target(LEVEL))
        end = [step.name for step in plan.pipeline].index("pipeline_copies") + 1
        loops = list(loops_of(run_steps(plan.naive(), plan.pipeline[:end]).body))
        (pipelined,) = (x for x in loops if x.kind == "pipelined")
        phases = [x for x in loops if x.kind == "grid" and x.var.name.startswith("r")]
        found = [
            max(int(evaluate(pipelined.hi, dict(zip((x.var for x in phases), at)))), 0)
            for at in product(*(range(int(x.hi)) for x in phases))
        ]
    assert found == steps


@pytest.mark.parametrize(
    "line",
    [
        "--dir=BWD_D --dt=bf16 mb32ic256ih56oc512oh28kh1sh2", "--deconv --dt=f16 mb32ic512ih14oc256oh28kh1sh2",
        "--dir=BWD_D --dt=bf16 mb32ic256ih56oc256oh28kh3ph1sh2", "--dir=BWD_D --dt=bf16 mb32ic64ih57oc64oh28kh2sh2dh1",
    ],
)
def test_a_copy_engine_brings_the_operands_of_strided_gradients(line: str) -> None:
    with interning():
        config = device_config(parse_problem(f"{LAST} {line}"), target(LEVEL))
    assert config.realise == "hardware" and len(config.phases) == 2


def test_many_runs_of_tiles_with_different_steps_have_a_group_each() -> None:
    """A group numbers its steps by a term for each run of tiles before, so it computes several tiles of few runs."""
    line = "--stag=axb --wtag=abxc --dtag=axb --dt=bf16 --dir=BWD_D g{g}mb32ic{c}ih56oc{c}oh28kh3ph1sh2"
    persistent = []
    for g in (4, 8):
        with interning():
            config = device_config(problem := parse_problem(line.format(g=g, c=64 * g)), target(LEVEL))
            plan = plan_for(problem, config, target(LEVEL))
            persistent.append(sum(step.name == "residue" for step in plan.pipeline) > 4)
    assert persistent == [True, False]
