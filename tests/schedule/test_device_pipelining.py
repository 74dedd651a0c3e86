"""Plans for devices with slots for shared copies, split barriers and asynchronous copies: the results stay the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from devices import DeviceOracle

from convsmith.ir.intern import interning
from convsmith.ir.stmt import AsyncCopy, Barrier, Kernel, Wait
from convsmith.ir.walk import statements_of
from convsmith.machine.registry import target
from convsmith.passes.async_copies import async_copies
from convsmith.passes.manager import Step, run_steps
from convsmith.passes.multiple_buffers import multiple_buffers
from convsmith.passes.split_barriers import split_barriers
from convsmith.passes.stage import BOX, stage
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import Plan
from convsmith.schedule.planned import plan_for

KINDS = {
    "channels-last": (
        "--stag=axb --dtag=axb mb2ic9iw3oc3ow3kw3pw1",
        "--lane=oc --register=oc:2 --realise=pad_copy --group=oc:6,ow:2,ic:3 --shared=src,wei --pad=wei:1,src:2",
    ),
    "mask": ("mb1ic6iw6oc5ow6kw3pw1", "--lane=oc --realise=mask --group=oc:4,ow:2,ic:2 --shared=src,wei"),
    "weights": ("--dir=BWD_W mb4ic3ih2iw3oc3oh2ow3kh2kw2ph1pw1",
                "--lane=oc --register=ic:2 --realise=pad_copy --group=oc:4,ic:2,mb:1,ow:3 --shared=src,diff_dst"),
    "bytes": ("--dt=u8:s8:s32 mb1ic9ih2iw3oc3oh1ow3kh2kw2pw1",
              "--lane=oc --realise=pad_copy --group=oc:4,ic:4 --shared=src,wei"),
    "matmul": ("--matmul --bia-dt=f32 3x8:8x3",
               "--lane=n --register=m:2 --realise=mask --group=m:4,n:4,k:2 --shared=src,wei"),
}  # fmt: skip


def pipelined(steps: Sequence[Step], loop: str, copies: tuple[str, ...], count: int, ahead: int) -> list[Step]:
    """Return a plan's rewrites with those that pipeline the copies of a loop."""
    names = [x.name for x in steps]
    first, threads = names.index("flatten"), names.index("map_to_threads") + 1
    buffered = [Step(multiple_buffers, loop, copies, count, ahead)]
    return [*steps[:first], *buffered, *steps[first:threads], Step(split_barriers), Step(async_copies),
            *steps[threads:]]  # fmt: skip


def made(plan: Plan, steps: Sequence[Step]) -> Kernel:
    """Return the main kernel after the ``steps``, interpreted under two schedules."""
    naive = plan.naive()
    for k in naive.before:
        run_steps(k, plan.preparing[k.name])
    oracle = DeviceOracle(plan, plan.machine)
    oracle.skip = lambda number: number != len(steps)
    return run_steps(naive, steps, [oracle])


@pytest.mark.sampled(3, "count", "ahead", "kind")
@pytest.mark.parametrize(("count", "ahead"), [(2, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_pipelined_copies_compute_the_same(kind: str, count: int, ahead: int) -> None:
    problem, config = KINDS[kind]
    with interning():
        plan = plan_for(
            parse_problem(problem), Config.parse(f"--target=opencl --pack= {config}"), target("opencl")
        )
        main = plan.main
        copies = tuple(f"{name}_s" for name in main.config.staged("shared"))
        single = made(plan, plan.pipeline)
        kernel = made(plan, pipelined(plan.pipeline, main.nest.steps[-1].name, copies, count, ahead))
        found = [x for x in statements_of(kernel.body) if isinstance(x, (Barrier, AsyncCopy, Wait))]
        whole = [x for x in found if isinstance(x, Barrier) and x.part == "whole"]
        assert whole and len(whole) <= sum(isinstance(x, Barrier) for x in statements_of(single.body))
        if kind in ("channels-last", "weights"):
            assert any(isinstance(x, AsyncCopy) for x in found) and any(isinstance(x, Wait) for x in found)


def test_registers_for_products_of_a_plan() -> None:
    problem, config = KINDS["matmul"]
    with interning():
        plan = plan_for(
            parse_problem(problem), Config.parse(f"--target=opencl --pack= {config}"), target("opencl")
        )
        steps = list(plan.pipeline)
        first = [x.name for x in steps].index("flatten")
        loop, copies = plan.main.nest.terms[-1].name, [f"{x}_s" for x in reversed(plan.main.config.staged("shared"))]
        early = [Step(stage, x, loop, BOX, "register") for x in copies]
        early.append(Step(multiple_buffers, loop, tuple(f"{x}_s" for x in copies), 2, 1, "rounds"))
        kernel = made(plan, [*steps[:first], *early, *steps[first:]])
        assert all(f"alloc {x}_s: " in str(kernel) for x in copies)
