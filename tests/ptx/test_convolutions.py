"""Whole kernels for NVIDIA's GPUs, from problems to PTX: exact in the interpreter under four schedules, no spills."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from guarded import check_result, expected, memories

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Artifact
from convsmith.compiler.cubin import assemble_ptx, assembler_of
from convsmith.compiler.driver import emit, lower
from convsmith.diag.errors import UnsupportedError
from convsmith.ir.intern import one_table
from convsmith.machine.base import Machine
from convsmith.machine.nvidia.levels import LEVELS
from convsmith.machine.registry import target
from convsmith.plan.config import Config
from convsmith.plan.device import device_plan
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.tune.device import device_config
from ptx.kernels import run_artifact
from ptx.parser import PtxError

KINDS = {
    "padded": (
        "mb1ic3ih2iw3oc3oh2ow3kh3kw3ph1pw1",
        "--lane=ow --register=oc:2,oh:2 --realise=pad_copy --group=oc:4,ow:2,oh:2,ic:2,kh:3,kw:3 --shared=src,wei",
    ),
    "mask": ("mb1ic3iw6oc5ow6kw3pw1", "--lane=oc --realise=mask --group=oc:4,ow:2 --shared=src,wei"),
    "warps": ("mb1ic3ih4iw9oc20oh4ow9kh3kw3ph1pw1",
              "--lane=ow --register=oc:5 --realise=mask --group=oc:20,ow:9,oh:4,ic:2 --shared=src,wei"),
    "3d": ("mb2ic1id3ih2iw2oc3od3oh1ow2kd2kh2kw1pd1",
           "--lane=oc --realise=pad_copy --group=oc:2,od:2,mb:2 --shared=src"),
    "stride-and-dilation": (
        "mb1ic1ih5iw9oc2oh3ow4kh3kw2sh2sw2dw1ph1", "--lane=ow --realise=pad_copy --group=ow:3,oh:2,kh:3 --shared=src",
    ),
    "channels-last": (
        "--stag=axb --dtag=axb mb2ic5iw3oc3ow3kw3pw1",
        "--lane=oc --register=oc:2 --realise=pad_copy --group=oc:6,ow:2,ic:4 --shared=src,wei --pad=wei:1,src:2",
    ),
    "blocks": ("--stag=aBc4b --dtag=aBc4b mb1ic5iw3oc6ow3kw3pw1",
               "--lane=oc --realise=pad_copy --group=oc:4,ic:2 --shared=src,wei"),
    "groups": ("g3mb1ic6iw3oc6ow3kw3pw1", "--lane=ow --realise=pad_copy --group=ow:4,oc:3,g:2 --shared=src,wei"),
    "depthwise": ("--stag=axb --dtag=axb g5mb1ic5ih3iw3oc5oh3ow3kh2kw3pw1",
                  "--lane=g --register=ow:2 --realise=mask --group=g:4,ow:4"),
    "backward": ("--dir=BWD_D mb1ic2ih3oc3oh2kh3kw2iw4ow2sh2sw2ph1",
                 "--lane=iw --realise=pad_copy --group=iw:4,ih:2,oc:2 --shared=diff_dst,wei"),
    "weights": ("--dir=BWD_W mb2ic3ih2iw3oc3oh2ow3kh2kw2ph1pw1",
                "--lane=oc --register=ic:2 --realise=pad_copy --group=oc:4,ic:2,mb:2,ow:3 --shared=src,diff_dst"),
    "weights-added-atomically": (
        "--dir=BWD_W --dtag=axb mb4ic3iw3oc5ow3kw2pw1",
        "--lane=oc --register=ic:2 --realise=pad_copy --group=oc:4,ic:2,ow:2 --shared=src --split=mb:2 --join=atomic",
    ),
    "deconvolution": ("--deconv mb1ic2ih2iw2oc2oh3ow3kh3kw3sh2sw2ph1pw1", "--lane=oc --realise=mask --group=oc:4,ow:2"),
    "matmul": ("--matmul --bia-dt=f32 3x5:5x3",
               "--lane=n --register=m:2 --realise=mask --group=m:4,n:4,k:3 --shared=src,wei"),
    "bytes": ("--dt=u8:s8:s32 mb1ic5ih2iw3oc3oh1ow3kh2kw2pw1",
              "--lane=oc --realise=pad_copy --group=oc:4,ic:4 --shared=src,wei"),
    "zero-points": ("--dt=u8:s8:s32 --attr-zero-points=src:common:3+wei:common:2 mb1ic3iw5oc5ow5kw3pw1",
                    "--lane=oc --realise=mask --group=oc:4,ow:2,ic:2 --shared=src,wei"),
    "bf16": ("--dt=bf16 --dir=FWD_B --attr-post-ops=relu+linear:2:1 mb1ic3iw5oc5ow5kw3pw1",
             "--lane=oc --register=ow:2 --realise=pad_copy --group=oc:4,ow:4,ic:3 --shared=src,wei"),
}  # fmt: skip
"""Problems with configs whose groups share memory."""
LAYERS = (
    "--stag=axb --dtag=axb mb1ic8ih8oc16oh8kh3ph1", "--stag=axb --dtag=axb --dt=bf16 mb1ic8ih6oc8oh6kh3ph1",
    "--stag=axb --dtag=axb g8mb1ic8ih6oc8oh6kh3ph1", "--dir=BWD_D --stag=axb --dtag=axb mb1ic4ih6oc8oh3kh3ph1sh2",
    "--dir=BWD_W --stag=axb --dtag=axb mb2ic4ih6oc8oh6kh3ph1",
)  # fmt: skip
"""Problems with the default config of each level."""


@cache
def made(line: str, words: str, level: str) -> Artifact:
    """Return the artifact of a problem under a config, by default that of the level."""
    problem, machine = parse_problem(line), target(level)
    with llvm_bind.no_collection(), one_table():
        if words:
            config = Config.parse(f"--target={level} --pack= {words}")
        else:
            config = device_config(problem, machine)
        plan = device_plan(problem, config, machine)
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


@pytest.mark.sampled(3, "kind", "level")
@pytest.mark.parametrize("level", [t.name for t in LEVELS])
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_are_exact_under_four_schedules(kind: str, level: str) -> None:
    check(*KINDS[kind], level)


@pytest.mark.sampled(3, "line", "level")
@pytest.mark.parametrize("level", [t.name for t in LEVELS])
@pytest.mark.parametrize("line", LAYERS)
def test_default_kernels_are_exact_under_four_schedules(line: str, level: str) -> None:
    check(line, "", level)


@pytest.mark.parametrize("kind", ["warps", "channels-last"])
def test_every_barrier_is_needed(kind: str) -> None:
    """Without any one of its barriers, a kernel has a race whatever the schedule, or lanes wait for ever."""
    artifact = made(*KINDS[kind], "sm_80")
    problem = parse_problem(KINDS[kind][0])
    lines = artifact.notes["ptx"].splitlines()
    barriers = [n for n, line in enumerate(lines) if "bar.sync" in line]
    assert len(barriers) >= 2
    for n in barriers:
        broken = "\n".join((*lines[:n], *lines[n + 1 :]))
        with pytest.raises(PtxError, match=r"without a barrier|may still read it|before it is written"):
            run_artifact(replace(artifact, notes={"ptx": broken}), memories(problem, random_arrays(problem)), n)


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
