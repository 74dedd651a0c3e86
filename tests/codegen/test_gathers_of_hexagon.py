"""Gathers, rows of lanes and products on Hexagon, emulated: every lane is right, also where lanes repeat."""

from __future__ import annotations

import random

import numpy as np
import pytest
from emulated import check_emulated, emulated_kernel, skip_without_emulator
from natives import llvm_text

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.compiler.driver import build_artifact
from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.ir.types import DTYPES
from convsmith.machine.base import Machine
from convsmith.machine.hexagon.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.tune.candidates import default_config

RUN = [t for t in LEVELS if "hvx-ieee-fp" not in t.needs]
"""Levels that qemu has."""
TYPES = {"u8": 128, "bf16": 64, "s32": 32, "f32": 32}
"""Types, and the lanes of a vector of them."""


def lane_maps(lanes: int, rng: random.Random) -> list[list[int]]:
    """Lane maps with words that repeat, in one and in two vectors, and any others."""
    rows, times, apart = rng.choice((1, 2, 4)), rng.randrange(2, 8), rng.randrange(1, 9)
    grouped = [n // (rows * times) * rows * apart + n % rows for n in range(lanes)]
    step = rng.randrange(2, 9)
    most = rng.choice((lanes, 2 * lanes)) - 1
    return [
        [min(n, most) for n in grouped],
        [min(n * step, most) for n in range(lanes)],
        [n // times for n in range(lanes)],
        [rng.randrange(most + 1) for _ in range(lanes)],
    ]


def gathered(name: str, cases: list[tuple[list[int], int, int]], target: Machine) -> None:
    """Check gathers (lane map, first and last active lane) of one type against the interpreter."""
    lanes = len(cases[0][0])
    size = max(max(places) for places, _, _ in cases) + 1
    lines = [
        f"  out[{n * lanes}]{{{lanes}}} = a[0]{{({', '.join(map(str, places))})/{first}:{active}}}\n"
        for n, (places, first, active) in enumerate(cases)
    ]
    kernel = parse_kernel(f"kernel k(a: {name}[{size}], out: {name}[{lanes * len(cases)}])\n{''.join(lines)}")
    t = DTYPES[name].numpy
    a = (np.arange(1, size + 1) % 251).astype(t)
    expected = {"a": a, "out": np.zeros(lanes * len(cases), t)}
    run(kernel, expected)
    one, two = kernel.params
    arguments = (
        Argument("a", "in", name, one.shape, "a", size),
        Argument("out", "out", name, two.shape, "a", two.size),
    )
    code = llvm_bind.object_code(llvm_text(kernel, target), target.triple, target.cpu, target.features)
    artifact = Artifact(
        code, target.name, {"main": Entry("k", arguments)}, "gathers", "", needs=target.needs,
        address_bits=target.address_bits,
    )  # fmt: skip
    found = emulated_kernel(artifact).run({"a": a})["out"]
    np.testing.assert_array_equal(found.astype(np.float64), expected["out"].astype(np.float64))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", RUN, ids=lambda t: t.name)
def test_every_number_of_byte_lanes(target: Machine) -> None:
    """A gather of bytes is right for 1 to 128 active lanes of 128."""
    skip_without_emulator(target)
    rng = random.Random(0)
    cases = [(rng.choice(lane_maps(128, rng)), 0, active) for active in range(1, 129)]
    gathered("u8", cases, target)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", RUN, ids=lambda t: t.name)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("seed", [0, 1])
def test_lanes_of_every_type(seed: int, name: str, target: Machine) -> None:
    """Vectors of every type that fill a register; the first lanes may be absent too."""
    skip_without_emulator(target)
    rng, lanes = random.Random(seed), TYPES[name]
    cases = [
        (places, first, active)
        for places in lane_maps(lanes, rng)
        for first, active in ((0, lanes), (0, lanes - 1), (1, lanes), (lanes // 2, lanes - 1))
    ]
    gathered(name, cases, target)


GROUPED = {"FWD_D": "g7mb1ic56oc35iw1ow1kw1", "BWD_D": "g7mb1ic35oc56iw1ow1kw1"}
FACTORS = ("s8:s8", "u8:s8", "s8:u8", "u8:u8")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", RUN, ids=lambda t: t.name)
@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.parametrize("direction", GROUPED)
def test_groups_along_lanes(direction: str, factors: str, target: Machine) -> None:
    """Every product of bytes of the level with lanes along groups, forward and backward by data."""
    skip_without_emulator(target)
    types = f"{factors}:s32" if direction == "FWD_D" else f"s32:{factors.partition(':')[2]}:{factors.partition(':')[0]}"
    problem = parse_problem(f"--dir={direction} --dt={types} {GROUPED[direction]}")
    config = default_config(problem, target)
    assert config.lane.startswith("g")
    check_emulated(problem, build_artifact(problem, config, target), random_arrays(problem, 0))
