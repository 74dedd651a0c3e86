"""Winograd's F(m, r) whose matrices have thirds: exact where weights are multiples of their denominators."""

from __future__ import annotations

from math import lcm, prod

import numpy as np
import pytest
from guarded import expected
from oracles import Oracle, small_target

from convsmith.ir.intern import interning
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan

CASES = {
    "four-of-three": ("mb1ic2iw6oc3ow6kw3pw1", "--winograd=ow:4"),
    "six-of-three": ("--stag=axb mb1ic3iw8oc4ow8kw3pw1", "--winograd=ow:6"),
    "four-of-two": ("mb1ic2iw7oc3ow6kw2", "--winograd=ow:4 --block=ow:1"),
    "two-of-five": ("mb1ic2iw6oc3ow6kw5pw2", "--winograd=ow:2"),
    "three-of-five-with-a-stride": ("mb1ic2iw13oc3ow7kw5sw2pw2", "--winograd=ow:3 --block=ow:2"),
    "four-of-five": ("--dir=BWD_D mb1ic3iw6oc2ow6kw5pw2", "--winograd=iw:4"),
    "four-of-three-by-data-with-a-stride": (
        "--dir=BWD_D mb1ic3iw15oc2ow8kw5sw2pw2", "--winograd=iw:8 --block=iw:1"
    ),
    "a-residue-class-without-taps": ("--deconv mb1ic2iw4oc3ow11kw2sw3pw0", "--winograd=ow:6"),
    "two-of-seven": ("mb1ic2iw6oc3ow6kw7pw3", "--winograd=ow:2"),
    "ten-in-groups-of-three": ("mb1ic2iw9oc3ow9kw10pw5", "--winograd=ow:3"),
    "eleven-in-groups-of-two-and-blocks": ("--stag=axb mb2ic3iw11oc4ow9kw11pw4", "--winograd=ow:2 --block=ow:3"),
    "nine-in-whole-groups-of-channels": ("g2mb1ic4iw13oc6ow5kw9", "--winograd=ow:3 --block=ow:1"),
    "two-of-three-dilated": ("--stag=axb --dtag=axb mb2ic3iw19oc4ow17kw3pw2dw2", "--winograd=ow:2 --block=ow:1"),
    "eleven-in-groups-of-three-dilated": ("--stag=axb --dtag=axb mb1ic3iw24oc4ow22kw11pw9dw1", "--winograd=ow:3"),
    "two-of-three-by-data-dilated": (
        "--dir=BWD_D --stag=axb --dtag=axb mb1ic4iw13oc3kw3pw2dw1", "--winograd=iw:2 --block=iw:1"
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_exact_after_some_steps(name: str) -> None:
    line, words = CASES[name]
    problem, target = parse_problem(line), small_target()
    lane = "ic" if problem.dir == "BWD_D" else "oc"
    with interning():
        config = Config.parse(f"--target=generic --lane={lane} --register={lane}:4,tw:2 --pack=wei_w {words}")
        made = plan(problem, config, target)
        (transform,) = made.program.transforms
        oracle = Oracle(problem, target)
        matrices = (x.matrices.weights for x in transform.axes)
        multiple = prod(lcm(*(c.denominator for row in matrix for c in row)) for matrix in matrices)
        oracle.arrays["wei"] = oracle.arrays["wei"] * np.float32(multiple)
        oracle.truth = dict(expected(problem, oracle.arrays))
        last = len(made.pipeline)
        oracle.skip = lambda number: number not in (0, last // 2, last)
        run_steps(made.program.naive(), made.pipeline, [oracle])


@pytest.mark.parametrize(
    "line, m, groups", [("mb1ic2iw12oc3kw7pw3", 2, 1), ("mb1ic2iw12oc3kw7pw3", 4, 2), ("mb1ic2iw12oc3kw11pw5", 2, 6)]
)
def test_long_filters_are_in_groups(line: str, m: int, groups: int) -> None:
    """A block transforms the tiles of all groups once; F(2, 7) errs little enough as a whole."""
    words = f"--winograd=ow:{m} --block=ow:2"
    config = Config.parse(f"--target=generic --lane=oc --register=oc:4,tw:2 --pack=wei_w {words}")
    (transform,) = plan(parse_problem(line), config, small_target()).program.transforms
    (axis,) = transform.axes
    assert (axis.groups, axis.sources) == (groups, axis.block + groups - 1)
    assert ("gw" in transform.product.extents) == (groups > 1)
    assert transform.product.a.layout.shape[2] == axis.sources and transform.error <= 4
