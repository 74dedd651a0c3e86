"""TVM's pairs of convolutions, emulated on Hexagon: over blocked layouts in f32 and bytes, and as chains; exact."""

from __future__ import annotations

from typing import Any

import pytest
from blocked_chains import BYTES, SMALL, blocked_chain, cases, name
from emulated import check_emulated, skip_without_emulator

import convsmith as cs
from convsmith.compiler.blocked_chain import blocked_chain_artifact
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays

LEVEL = target("hexagon+v68")
OFTEN = (0, 15)
"""Numbers of the cases that run in every test run: one tap and one tile, windows and several tiles."""
KERNELS = sorted({(case["kernel_size1"], case["kernel_size2"]) for case in cases()})


def case_of(n: int, case: dict[str, Any]) -> object:
    return pytest.param(case, id=name(case), marks=() if n in OFTEN else pytest.mark.slow)


@pytest.mark.parametrize("options", [("", ""), BYTES, ("--dt=u8:s8:u8", "--dt=u8:s8:u8")], ids=["f32", "s8", "u8"])
@pytest.mark.parametrize("case", [case_of(n, case) for n, case in enumerate(cases())])
def test_a_case_is_exact(case: dict[str, Any], options: tuple[str, str]) -> None:
    skip_without_emulator(LEVEL)
    plan = blocked_chain(case, LEVEL, SMALL, options)
    problem = plan.stages.whole
    check_emulated(problem, blocked_chain_artifact(plan), random_arrays(problem))


@pytest.mark.parametrize(
    "first, second", [pytest.param(*k, marks=() if k == KERNELS[-1] else pytest.mark.slow) for k in KERNELS]
)
def test_a_chain_of_bytes_is_exact(first: int, second: int) -> None:
    """The first result saturates; both stages run in one kernel or one after the other, as the compiler chooses."""
    skip_without_emulator(LEVEL)
    middle = 13 - first
    last = middle + 1 - second
    text = (
        f"--dt=u8:s8:u8 --stag=axb mb1ic32ih12oc32oh{middle}kh{first}ph0 -> "
        f"--dt=u8:s8:s32 --dtag=axb mb1ic32ih{middle}oc32oh{last}kh{second}ph0"
    )
    problem = parse_problem(text)
    artifact = cs.compile(text, target=LEVEL.name, threads=1).artifact
    assert artifact is not None
    check_emulated(problem, artifact, random_arrays(problem))
