"""The rewrites of statements that one kernel computes are determined once, for all of them together."""

from __future__ import annotations

import pytest
from callcounts import counting

from convsmith.compiler.driver import lower
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.problem.lines import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.pipeline import pipeline_of
from convsmith.schedule.plan import plan
from convsmith.tune.compile import choose

CHAIN = "--stag=axb --dtag=axb mb1ic16ih14oc96kh1ph0 -> g96mb1ic96ih14oc96kh3ph1 -> mb1ic96ih14oc24kh1ph0"
TRANSFORM = "--stag=axb --dtag=axb mb1ic64ih28oc64kh3ph1"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (CHAIN, ""), (TRANSFORM, ""), ("--stag=axb --dtag=axb mb1ic64ih28oc64kh1", ""),
        (CHAIN, "--lane=oc --pack=wei --compute_at=oh / --lane=g --compute_at=oh / --lane=oc --pack=wei"),
    ],
)  # fmt: skip
def test_a_kernel_has_one_pipeline(line: str, words: str) -> None:
    problem, machine = parse_problem(line).canonical(), target("avx512")
    with interning():
        given = words.replace("--lane", "--target=avx512 --lane")
        config = Config.parse(given) if given else choose(problem, machine, 1, False)
        with counting(pipeline_of) as calls:
            made = plan(problem, config, machine)
            lower(made)
    assert calls["pipeline_of"] == max(1, len(made.program.kernels))
