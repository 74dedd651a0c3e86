"""Channels first with a zero point: vectors lie along rows where loads of rows that cross borders can be masked."""

from __future__ import annotations

import pytest

from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.base import Machine
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES, MicroArchitecture
from convsmith.machine.registry import host_targets, target
from convsmith.measure.verification import verify_kernel
from convsmith.problem import parse_problem
from convsmith.tune.candidates import candidates, default_config

BYTES = "--dt=u8:s8:u8 --stag=abx --dtag=abx --attr-scales=src:common:0.5+wei:per_oc+dst:common:2"
POINTS = "--attr-zero-points=src:common:3+dst:common:4"
DEPTHWISE = [
    "g48mb1ic48ih14oc48oh14kh3ph1", "g48mb2ic48ih28oc48oh14kh3sh2ph1", "g32mb1ic32ih19oc32oh19kh5ph2",
    "g32mb1ic32ih20oc32oh20kh7ph3", "g24mb1ic24id4ih10iw10oc24od4oh5ow5kd3kh3kw3sd1sh2sw2pd1ph1pw1",
]  # fmt: skip
SHIFTED = [f"{BYTES} {POINTS} {layer}" for layer in DEPTHWISE]


@pytest.mark.parametrize("row", MICRO_ARCHITECTURES, ids=lambda row: row.name)
@pytest.mark.parametrize("line", SHIFTED)
def test_no_vector_gathers_channels_of_images(line: str, row: MicroArchitecture) -> None:
    """Neighbouring channels of an image are a plane apart, so that lanes along them would load element by element where
    no copy makes them adjacent.
    """
    config = default_config(parse_problem(line).canonical(), row.of(target("avx512_vnni")))
    assert (config.lane, config.realise) in (("ow", "peel"), ("g", "pad_copy"))


@pytest.mark.parametrize("line", SHIFTED)
def test_no_copy_is_tried_that_would_need_the_zero_point(line: str) -> None:
    for level in ("avx512_vnni", "avx2_vnni"):
        problem = parse_problem(line).canonical()
        found = [c.config for c in candidates(problem, target(level), 1, 1)]
        assert all(c.realise != "pad_copy" for c in found if c.offsets == "each")


@pytest.mark.sampled(2, "level", "line")
@pytest.mark.parametrize("level", [t for t in host_targets() if t.name == "avx512_vnni"], ids=lambda t: t.name)
@pytest.mark.parametrize("line", SHIFTED)
def test_absent_elements_add_nothing(line: str, level: Machine) -> None:
    assert verify_kernel(CompiledKernel(parse_problem(line), level, None, 1)).ok
