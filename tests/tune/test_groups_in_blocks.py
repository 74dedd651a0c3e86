"""Groups whose channels do not fill blocks of the layout: the lanes of default kernels have constant distances."""

from __future__ import annotations

import pytest

from convsmith.ir.intern import interning
from convsmith.ir.stmt import Store
from convsmith.ir.walk import statements_of
from convsmith.machine.registry import target
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.schedule.planned import plan_for
from convsmith.tune.candidates import default_config

DIRECTIONS = ("--dir=FWD_D", "--dir=BWD_D", "--dir=BWD_W")
CHANNELS = [(6, 6), (3, 1), (1, 3), (5, 2), (4, 4), (2, 6), (12, 12), (24, 3)]
"""Channels of the source and of the result in a group."""


@pytest.mark.sampled(16, "dt", "layout", "level")
@pytest.mark.parametrize("dt", ["f32", "bf16"])
@pytest.mark.parametrize("layout", ["aBx16b", "aBx8b", "axb"])
@pytest.mark.parametrize("level", ["avx512", "avx2"])
@pytest.mark.parametrize("given", CHANNELS, ids=str)
def test_products_of_groups_are_vectors(given: tuple[int, int], level: str, layout: str, dt: str) -> None:
    sources, results = (32 * n for n in given)
    for direction in DIRECTIONS:
        line = f"--stag={layout} --dtag={layout} --dt={dt} {direction} g32mb2ic{sources}ih6oc{results}oh6kh3ph1"
        problem, machine = parse_problem(line).canonical(), target(level)
        with interning():
            made = plan_for(problem, default_config(problem, machine), machine)
            kernel = run_steps(made.naive(), made.pipeline)
            bodies = (kernel.body, *(f.body for f in kernel.functions))
            stores = [s for body in bodies for s in statements_of(body) if isinstance(s, Store)]
            alone = [s for s in stores if s.buffer.in_registers and s.lanes is None]
        assert not alone, f"{line}: {alone[0]}"
