"""Barriers in two parts on NVIDIA's GPUs: a word of shared memory, at which threads arrive before they wait."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from devices import SPLIT
from guarded import check_result, expected, memories
from thread_kernels import HEAD, arrays
from thread_kernels import SPLIT as STATEMENTS

from convsmith.codegen.artifact import Artifact
from convsmith.compiler.cubin import assemble_ptx
from convsmith.compiler.driver import emit, lower
from convsmith.diag.collection import no_collection
from convsmith.emulate.ptx.parser import PtxError
from convsmith.interp import run
from convsmith.ir.intern import one_table
from convsmith.ir.parse import parse_kernel
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for
from ptx.kernels import run_artifact, run_kernel
from ptx.sass import skip_without

WAITS = {"sm_80": "test_wait", "sm_90a": "try_wait"}
"""The instruction by which a thread of each level waits."""


def made(kind: str, level: str) -> Artifact:
    line, words = SPLIT[kind]
    machine = target(level)
    with no_collection(), one_table():
        plan = plan_for(parse_problem(line), Config.parse(f"--target={level} --pack= {words}"), machine)
        return emit(plan, lower(plan))


@pytest.mark.parametrize("level", WAITS)
def test_statements_run_between_the_parts(level: str) -> None:
    kernel, wanted = parse_kernel(HEAD + STATEMENTS.strip("\n")), arrays()
    run(kernel, wanted)
    for seed in range(4):
        found = run_kernel(kernel, target(level), arrays(), seed)
        np.testing.assert_array_equal(found["c"], wanted["c"])


@pytest.mark.sampled(2, "level", "kind")
@pytest.mark.parametrize("level", WAITS)
@pytest.mark.parametrize("kind", SPLIT)
def test_kernels_are_exact_under_four_schedules(kind: str, level: str) -> None:
    artifact, problem = made(kind, level), replace(parse_problem(SPLIT[kind][0]), accuracy="strict")
    given = random_arrays(problem)
    truth = expected(problem, given)
    for seed in range(4):
        memory = memories(problem, given)
        run_artifact(artifact, memory, seed)
        check_result(problem, memory, truth)


@pytest.mark.parametrize("level", WAITS)
def test_threads_arrive_and_wait_at_a_word_of_shared_memory(level: str) -> None:
    """Only the barrier that makes the word visible stops threads where they arrive."""
    artifact = made("first-writes", level)
    lines = [x.split()[0] for x in artifact.notes["ptx"].splitlines() if re.match(r"\s*(mbarrier|bar)\.", x)]
    wait = f"mbarrier.{WAITS[level]}.shared.b64"
    assert lines == ["mbarrier.init.shared.b64", "bar.sync", "mbarrier.arrive.shared.b64", wait]
    assert artifact.entries["main"].launch.shared == 3 * 128
    skip_without(level)
    assembled = assemble_ptx(artifact.notes["ptx"], level)
    (use,) = assembled.uses.values()
    assert not assembled.warnings and (use.spilled, use.filled) == (0, 0)


@pytest.mark.parametrize(("old", "new", "why"), [
    (r"mbarrier\.init.*", "", "there is no barrier"),
    (r"bar\.sync.*", "", "there is no barrier|without a barrier|before it is written"),
    (r"mbarrier\.arrive\S*\s+(%rd\d+),.*", r"mov.b64 \1, 0;",
     "no warp can go on|without a barrier|before it is written"),
    (r"mbarrier\.test_wait\S*\s+(%p\d+),.*", r"setp.eq.u32 \1, 0, 0;",
     "without a barrier|may still read it|before it is written|arrivals at a barrier"),
    (r"(mbarrier\.init.*\], )%r\d+", r"\g<1>1", "without a barrier|may still read it|before it is written"),
])  # fmt: skip
def test_every_part_is_needed(old: str, new: str, why: str) -> None:
    artifact, problem = made("channels-last", "sm_80"), parse_problem(SPLIT["channels-last"][0])
    text, found = re.subn(old, new, artifact.notes["ptx"])
    assert found
    with pytest.raises(PtxError, match=why):
        for seed in range(8):
            run_artifact(replace(artifact, notes={"ptx": text}), memories(problem, random_arrays(problem)), seed)
