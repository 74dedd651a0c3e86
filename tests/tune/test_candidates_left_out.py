"""Candidates that take clearly longer than another one are left out as soon as a part of their cycles shows it."""

from __future__ import annotations

from math import inf

import pytest

from convsmith.machine.registry import target
from convsmith.problem.lines import parse_problem
from convsmith.tune.candidates import candidates, default_config
from convsmith.tune.costs.features import Section, cycles

LINES = (
    "--stag=axb --dtag=axb mb1ic64ih14oc64oh14kh3ph1",
    "--stag=abx --dtag=abx mb1ic96ih14oc80oh14kh1ph0",
    "--stag=axb --dtag=axb g32mb1ic32ih28oc32oh28kh3ph1",
    "--dir=BWD_D --stag=abx --dtag=abx mb1ic32ih14oc48oh7kh3sh2ph1",
    "--dir=BWD_W --dt=bf16 --stag=axb --wtag=axb --dtag=axb mb2ic64ih14oc48oh14kh1ph0",
    "--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic64ih14oc64oh14kh1ph0",
)
SECTIONS = (Section(10, (("calls", (("call", 1.0),)),)), Section(20, (("calls", (("call", 1.0),)),)))


@pytest.mark.parametrize("level", ["avx2", "avx512_bf16"])
@pytest.mark.parametrize("line", LINES)
def test_the_default_is_the_first_of_all_candidates(line: str, level: str) -> None:
    """All candidates are rated where several configs are asked for."""
    problem = parse_problem(line)
    assert default_config(problem, target(level)) == candidates(problem, target(level), 1, 2)[0].config


def test_few_candidates_are_rated_to_the_end() -> None:
    problem, machine = parse_problem(LINES[1]), target("avx512")
    assert len(candidates(problem, machine, 1, 1)) < len(candidates(problem, machine, 1, 2)) / 2


@pytest.mark.parametrize("most", [0.0, 1.0])
def test_a_bound_on_cycles_leaves_out_later_sections(most: float) -> None:
    machine = target("avx2")
    call = machine.prices["call"]
    assert cycles(SECTIONS, machine, most * call) == pytest.approx(10 * call)


def test_cycles_within_a_bound_are_exact() -> None:
    machine = target("avx2")
    assert cycles(SECTIONS, machine, 30 * machine.prices["call"]) == cycles(SECTIONS, machine, inf)
