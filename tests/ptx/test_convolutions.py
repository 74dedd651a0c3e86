"""Whole kernels for NVIDIA's GPUs, from problems to PTX: exact in the interpreter under four schedules, no spills."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from devices import KINDS
from guarded import check_result, expected, memories

from convsmith.codegen.artifact import Artifact
from convsmith.compiler.cubin import assemble_ptx, assembler_of
from convsmith.compiler.driver import emit, lower
from convsmith.diag.collection import no_collection
from convsmith.diag.errors import UnsupportedError
from convsmith.emulate.ptx.parser import PtxError
from convsmith.ir.intern import one_table
from convsmith.machine.base import Machine
from convsmith.machine.nvidia.levels import LEVELS
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for
from convsmith.tune.devices.device import device_config
from ptx.kernels import run_artifact

WARPS = {
    "warps": ("mb1ic3ih4iw9oc20oh4ow9kh3kw3ph1pw1",
              "--lane=ow --register=oc:5 --realise=mask --group=oc:20,ow:9,oh:4,ic:2 --shared=src,wei"),
    "copies-of-warps": (
        "--stag=axb --dtag=axb mb1ic12iw20oc16ow20kw3pw1",
        "--lane=oc --register=ow:2 --realise=pad_copy --group=oc:16,ow:10,ic:4 --shared=src,wei --buffers=3 "
        "--copies=async",
    ),
}  # fmt: skip
"""Problems with configs whose groups have several warps."""
EVERY = KINDS | WARPS
LAYERS = (
    "--stag=axb --wtag=axb --dtag=axb --dt=f16 mb1ic16ih5oc16oh5kh3ph1",
    "--dir=BWD_W --stag=axb --dtag=axb --dt=bf16:f32:bf16 mb2ic32iw9oc32ow9kw1",
    "--stag=axb --dtag=axb --dt=u8:s8:u8 --attr-post-ops=relu mb1ic32iw9oc16ow9kw1",
    "--stag=axb --dtag=axb mb1ic8ih8oc16oh8kh3ph1", "--stag=axb --dtag=axb --dt=bf16 mb1ic8ih6oc8oh6kh3ph1",
    "--stag=axb --dtag=axb g8mb1ic8ih6oc8oh6kh3ph1", "--dir=BWD_D --stag=axb --dtag=axb mb1ic4ih6oc8oh3kh3ph1sh2",
    "--dir=BWD_W --stag=axb --dtag=axb mb2ic4ih6oc8oh6kh3ph1",
)  # fmt: skip
"""Problems with the default config of each level."""


@cache
def made(line: str, words: str, level: str) -> Artifact:
    """Return the artifact of a problem under a config, by default that of the level."""
    problem, machine = parse_problem(line), target(level)
    with no_collection(), one_table():
        if words:
            config = Config.parse(f"--target={level} --pack= {words}")
        else:
            config = device_config(problem, machine)
        plan = plan_for(problem, config, machine)
        return emit(plan, lower(plan))


def check(line: str, words: str, level: str) -> None:
    """The results are exact under four schedules."""
    problem, artifact = replace(parse_problem(line), accuracy="strict"), made(line, words, level)
    arrays = random_arrays(problem)
    truth = expected(problem, arrays)
    for seed in range(4):
        memory = memories(problem, arrays)
        run_artifact(artifact, memory, seed)
        check_result(problem, memory, truth)


@pytest.mark.sampled(35, "level")
@pytest.mark.parametrize("level", [t.name for t in LEVELS])
@pytest.mark.parametrize("kind", EVERY)
def test_kernels_are_exact_under_four_schedules(kind: str, level: str) -> None:
    check(*EVERY[kind], level)


@pytest.mark.sampled(20, wide=1, every="level")
@pytest.mark.parametrize("level", [t.name for t in LEVELS])
@pytest.mark.parametrize("line", LAYERS)
def test_default_kernels_are_exact_under_four_schedules(line: str, level: str) -> None:
    check(line, "", level)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("line", "rows"), [
    ("--stag=axb --dtag=axb --dt=f16 mb32ic64ih28oc64oh28kh3ph1",
     {"sm_70": "mma_m8n8k4_f16", "sm_80": "mma_m16n8k16_f16"}),
    ("--stag=axb --dtag=axb --dt=bf16 mb32ic64ih28oc64oh28kh3ph1", {"sm_80": "mma_m16n8k16_bf16"}),
    ("--stag=axb --dtag=axb --dt=u8:s8:s32 mb32ic64ih28oc64oh28kh3ph1", {"sm_80": "mma_m16n8k32_u8_s8"}),
    ("--stag=axb --dtag=axb --dt=u8:s8:u8 --attr-zero-points=src:common:3 mb32ic64ih28oc64oh28kh3ph1",
     {"sm_80": "mma_m16n8k32_u8_s8"}),
    ("--stag=aBx32b --dtag=aBx32b --dt=s8:s8:s8 mb32ic64ih28oc64oh28kh3ph1", {"sm_80": "mma_m16n8k32_s8"}),
    ("--stag=axb --dtag=axb mb32ic64ih28oc64oh28kh3ph1", {"sm_70": "", "sm_80": ""}),
    ("--stag=axb --dtag=axb --accuracy=any mb32ic64ih28oc64oh28kh3ph1", {"sm_70": "", "sm_80": "mma_m16n8k8_tf32"}),
    ("--stag=axb --dtag=axb --dt=bf16 g32mb8ic32ih28oc32oh28kh3ph1", {"sm_80": ""}),
])  # fmt: skip
def test_default_configs_take_instructions_on_fragments(line: str, rows: dict[str, str]) -> None:
    """Where a level has them for the types; depthwise convolutions and f32 have none."""
    for level, row in rows.items():
        with one_table():
            config = device_config(parse_problem(line), target(level))
            text = str(plan_for(parse_problem(line), config, target(level)))
        assert config.instruction == row and (f"instruction   {row}: " in text) is bool(row)


@pytest.mark.parametrize("kind", ["warps", "channels-last"])
def test_every_barrier_is_needed(kind: str) -> None:
    """Without any one of its barriers, a kernel has a race whatever the schedule, or lanes wait for ever."""
    artifact = made(*EVERY[kind], "sm_80")
    problem = parse_problem(EVERY[kind][0])
    lines = artifact.notes["ptx"].splitlines()
    barriers = [n for n, line in enumerate(lines) if "bar.sync" in line]
    assert len(barriers) >= 2
    for n in barriers:
        broken = "\n".join((*lines[:n], *lines[n + 1 :]))
        with pytest.raises(PtxError, match=r"without a barrier|may still read it|before it is written"):
            run_artifact(replace(artifact, notes={"ptx": broken}), memories(problem, random_arrays(problem)), n)


@pytest.mark.parametrize("kind", ["asynchronous-copies", "copies-of-warps"])
def test_every_wait_is_needed(kind: str) -> None:
    """Copies are asynchronous; without any one of the waits for them, their data is read too early."""
    artifact = made(*EVERY[kind], "sm_80")
    problem = parse_problem(EVERY[kind][0])
    lines = artifact.notes["ptx"].splitlines()
    waits = [n for n, line in enumerate(lines) if "cp.async.wait_group" in line]
    assert waits and any("cp.async.ca" in line or "cp.async.cg" in line for line in lines)
    for n in waits:
        broken = "\n".join((*lines[:n], *lines[n + 1 :]))
        with pytest.raises(PtxError, match=r"before its asynchronous copy was waited for|an asynchronous operation"):
            run_artifact(replace(artifact, notes={"ptx": broken}), memories(problem, random_arrays(problem)), n)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("machine", LEVELS, ids=lambda t: t.name)
def test_default_kernels_have_no_spills(machine: Machine) -> None:
    try:
        assembler_of(machine.name)
    except UnsupportedError as error:
        pytest.skip(str(error))
    for line in LAYERS:
        assembled = assemble_ptx(made(line, "", machine.name).notes["ptx"], machine.name)
        assert not assembled.warnings
        for name, use in assembled.uses.items():
            assert (use.spilled, use.filled) == (0, 0), f"{line}: {name} has {use}"
