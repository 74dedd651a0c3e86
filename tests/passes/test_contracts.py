"""Passes state at which stages of a kernel they run; schedules and the verifier hold them to it."""

from __future__ import annotations

import importlib
import pkgutil
from types import FunctionType

import pytest

import convsmith.passes
from convsmith.compiler.instruments import Verify
from convsmith.diag.errors import ConfigError, InternalError
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stages import FLAT, NAIVE, SCHEDULED, TENSORISED, UNROLLED
from convsmith.ir.stmt import Kernel
from convsmith.machine.registry import target as known_target
from convsmith.passes.contracts import LOOPS, ORDER, contract_of, stage_after, stages
from convsmith.passes.flatten import flatten
from convsmith.passes.manager import Step, run_steps
from convsmith.passes.simplify import simplify
from convsmith.passes.tile import tile
from convsmith.passes.unroll import unroll
from convsmith.passes.vectorise import vectorise
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for
from convsmith.schedule.schedule import Schedule
from convsmith.tune.candidates import default_config
from convsmith.tune.devices.device import device_config


def passes() -> list[FunctionType]:
    """The functions of the package that have a file of their name, or whose documentation shows a kernel after them."""
    found = []
    for module in pkgutil.iter_modules(convsmith.passes.__path__):
        loaded = importlib.import_module(f"convsmith.passes.{module.name}")
        found += [
            x for name, x in vars(loaded).items()
            if isinstance(x, FunctionType) and x.__module__ == loaded.__name__ and not name.startswith("_")
            and "Before::" in (x.__doc__ or "")
        ]  # fmt: skip
    return found


@pytest.mark.parametrize("rewrite", passes(), ids=lambda x: x.__name__)
def test_every_pass_says_what_it_requires_and_ensures(rewrite: FunctionType) -> None:
    requires, ensures, _ = contract_of(rewrite)
    assert requires
    assert ORDER[ensures] >= ORDER[SCHEDULED]


def test_there_are_passes() -> None:
    assert len(passes()) > 50


def test_a_kernel_stays_in_the_latest_stage_that_it_reached() -> None:
    assert stage_after(NAIVE, simplify, ()) is SCHEDULED
    assert stage_after(SCHEDULED, flatten, ()) is FLAT
    assert stage_after(FLAT, vectorise, ("i", 4)) is TENSORISED
    assert stage_after(TENSORISED, simplify, (False,)) is TENSORISED
    assert stage_after(UNROLLED, vectorise, ("i", 4)) is UNROLLED


def test_a_pass_of_some_loops_alone_ensures_nothing_for_the_others() -> None:
    assert stage_after(FLAT, unroll, (("i",),)) is FLAT
    assert stage_after(FLAT, unroll, ()) is UNROLLED


def test_a_schedule_refuses_a_pass_in_the_wrong_place() -> None:
    s = Schedule()
    with pytest.raises(ConfigError) as caught:
        s.run(vectorise, "i", 4)
    assert str(caught.value) == (
        "vectorise: the kernel is naive here; legal is a kernel that is flat or tensorised or unrolled"
    )
    assert caught.value.code == "stage-order" and not s.steps


KERNEL = """\
kernel k(a: f32[8], dst: f32[8])
  for i in 0 .. 8:
    dst[i] = a[i]
"""


def test_the_verifier_blames_the_pass_that_does_not_keep_its_promise() -> None:
    @stages(*LOOPS, ensures=FLAT)
    def lying(kernel: Kernel) -> Kernel:
        return run_steps(kernel, [Step(tile, "i", 4, "i.o", "i.l"), Step(flatten), Step(vectorise, "i.l", 4)])

    with pytest.raises(InternalError, match="lying"):
        run_steps(parse_kernel(KERNEL), [Step(lying)], [Verify()])


@pytest.mark.sampled(9, "line")
@pytest.mark.parametrize("target", ["generic", "avx512_bf16", "aarch64+sve", "sm_80", "sm_90a", "xe_hpc"])
@pytest.mark.parametrize(
    "line",
    [
        "--stag=axb --dtag=axb mb2ic16ih9oc24kh3ph1", "--dir=BWD_D mb1ic16ih8oc16kh3ph1sh2",
        "--dt=bf16:bf16:f32 --dir=BWD_W --stag=axb --dtag=axb mb8ic64ih6oc64kh1",
    ],
    ids=["forward", "by-data", "by-weights"],
)  # fmt: skip
def test_the_rewrites_of_a_default_keep_their_promises(line: str, target: str) -> None:
    with interning():
        problem, machine = parse_problem(line).canonical(), known_target(target)
        config = device_config(problem, machine) if machine.device is not None else default_config(problem, machine)
        made = plan_for(problem, config, machine)
        run_steps(made.naive(), made.pipeline, [Verify()])
        for kernel, steps in made.finishing():
            run_steps(kernel, steps, [Verify()])


def test_a_chain_of_transforms_is_verified() -> None:
    """A kernel that runs before another one has one before itself: that which transforms its weights."""
    stage = (
        "--target=avx512 --lane=oc --fuse=th+tw --register=th_tw:4,oc:16 --order=f,oc,th_tw --reduce=ic --pack=wei_w "
        "--winograd=oh:2,ow:2 --block=oh:1"
    )
    line = "--stag=axb --accuracy=any mb1ic16ih8oc16kh3ph1 -> --dtag=axb --accuracy=any mb1ic16ih8oc16kh3ph1"
    with interning():
        made = plan_for(parse_problem(line), Config.parse(f"{stage} / {stage}"), known_target("avx512"))
        run_steps(made.naive(), made.pipeline, [Verify()])
