"""Convolutions of 8-bit floats on CPUs, which convert them to f32: results equal the reference's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import convsmith as cs
from convsmith.machine.registry import host_targets
from convsmith.problem import parse_problem, reference
from convsmith.problem.data import random_arrays

ISAS = [t.name for t in host_targets()]
LINES = (
    "--dt=f8_e4m3:f8_e4m3:f32 mb1ic16ih6oc20oh6kh3ph1",
    "--dt=f8_e5m2:f8_e4m3:f8_e4m3 --stag=axb --dtag=axb --attr-post-ops=relu mb1ic8ih5oc40oh5kh1",
    "--dt=f32:f8_e5m2:f8_e5m2 g2mb1ic4ih5oc4oh5kh3ph1", "--dir=BWD_D --dt=f8_e5m2 mb1ic16ih6oc16oh3kh3ph1sh2",
    "--dir=BWD_W --dt=f8_e4m3:f32:f8_e5m2 mb2ic4ih6oc16oh6kh3ph1", "--matmul --dt=f8_e4m3:f8_e4m3:f8_e5m2 9x300:300x20",
)
"""Types and directions; sums of the last ones exceed the types of the results."""


@pytest.mark.sampled(8, "line")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("line", LINES)
def test_results_are_the_references(line: str, isa: str) -> None:
    problem = parse_problem(line)
    arrays = random_arrays(problem)
    found = cs.compile(line, target=isa).run(**arrays)
    for name, wanted in reference(problem, arrays).items():
        assert found[name].dtype == wanted.dtype
        np.testing.assert_array_equal(found[name].view(np.uint8), wanted.view(np.uint8))
