"""Every step of a kernel for vectors of any length from its scalable loops on, interpreted at several scales."""

from __future__ import annotations

import pytest
from oracles import Oracle

from convsmith.ir.intern import interning
from convsmith.ir.walk import loops_of
from convsmith.machine.registry import target
from convsmith.passes.manager import run_steps
from convsmith.problem.lines import parse_problem
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

CASES = {
    "f32": "--attr-post-ops=relu mb1ic2iw3oc14ow3kw3pw1",
    "bytes": "--dt=u8:s8:u8 --attr-scales=wei:per_oc mb1ic4iw3oc14ow3kw3pw1",
    "depthwise": "g14mb1ic14iw3oc14ow3kw3pw1",
    "pointers": "mb1ic16iw12oc14ow12kw1",
    "gradient": "--dir=BWD_D mb1ic14iw3oc2ow3kw3pw1",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scale", [1, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_every_step_keeps_the_result(name: str, scale: int) -> None:
    problem, level = parse_problem(f"--stag=axb --dtag=axb {CASES[name]}").canonical(), target("aarch64+sve")
    with interning():
        made = plan(problem, default_config(problem, level), level)
        first = 1 + [step.name for step in made.pipeline].index("scale")
        oracle = Oracle(problem, level, scale=scale)
        oracle.skip = lambda number: number < first
        kernel = run_steps(made.naive(), made.pipeline, [oracle])
        assert any(x.kind == "scalable" for x in loops_of(kernel.body))


def test_pointers_near_repeated_elements_are_such_a_step() -> None:
    problem, level = parse_problem(f"--stag=axb --dtag=axb {CASES['pointers']}").canonical(), target("aarch64+sve")
    with interning():
        made = plan(problem, default_config(problem, level), level)
        at = [step.name for step in made.pipeline].index("near_pointers")
        before = run_steps(made.naive(), made.pipeline[:at], [])
        assert str(run_steps(before, made.pipeline[at : at + 1], [])) != str(before)
