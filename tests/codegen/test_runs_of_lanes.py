"""Vectors that cross blocks of channels are stored and loaded by runs of adjacent lanes, not lane by lane."""

from __future__ import annotations

import pytest

from convsmith.codegen.runs import has_long_runs, runs_of
from convsmith.compiler.driver import lower
from convsmith.frontend.numpy_api import compile as compile_kernel
from convsmith.ir.intern import interning
from convsmith.ir.types import BF16, F32
from convsmith.ir.value import Lanes, strided
from convsmith.machine.registry import host_targets, target
from convsmith.measure.verification import verify_kernel
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for

BLOCKED = "--stag=aBx16b --dtag=aBx16b"
LINES = [
    "g4mb2ic8ih3oc68oh3kh1ph0",
    "--attr-post-ops=sum+relu g3mb1ic36ih4oc60oh4kh1ph0",
    "--dt=bf16 g8mb1ic32ih3oc360oh3kh1ph0",
    "--dt=u8:s8:u8 --attr-scales=dst:common:2 g5mb1ic20ih3oc110oh3kh3ph1",
    "--dt=f64 g3mb1ic6ih3oc33oh3kh1ph0",
    "--dir=BWD_D g4mb1ic68ih3oc32oh3kh1ph0",
]  # fmt: skip
"""Problems with groups that fill no block of 16 channels."""


@pytest.mark.sampled(16, "threads", "line")
@pytest.mark.parametrize("level", [t.name for t in host_targets()])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("line", LINES)
def test_channels_of_groups_that_fill_no_block(line: str, threads: int, level: str) -> None:
    kernel = compile_kernel(f"{BLOCKED} {line}", target=level, threads=threads)
    assert verify_kernel(kernel).ok


@pytest.mark.parametrize("level", ["avx512", "avx2"])
def test_no_lane_is_stored_alone(level: str) -> None:
    problem = parse_problem(f"{BLOCKED} g8mb1ic16ih4oc96oh4kh1ph0").canonical()
    config = Config.parse(f"--target={level} --lane=oc --register=ow:2,oc:16 --reduce=kh,kw,ic")
    with interning():
        text = lower(plan_for(problem, config, target(level))).text
    assert "store volatile" not in text
    assert ("llvm.masked.store" in text) == (level == "avx512")


def test_runs() -> None:
    lanes = Lanes((0, 1, 2, 50, 51, 52, 53, 90), 8, 1)
    assert [*runs_of(lanes)] == [(1, 3), (3, 7), (7, 8)]
    assert has_long_runs(F32, lanes)
    assert [*runs_of(lanes._replace(active=5))] == [(1, 3), (3, 5)]


@pytest.mark.parametrize("lanes", [
    strided(8, 1), strided(8, 2), Lanes((0, 1, 2, 3, 9, 10, 11, 12), 8), Lanes((0, 1, 9, 10), 3),
    Lanes((0, 9, 10, 20, 30, 31, 32, 33), 8),
], ids=["one", "apart", "rows", "few", "many"])  # fmt: skip
def test_these_lanes_have_no_runs(lanes: Lanes) -> None:
    assert not has_long_runs(BF16, lanes)
