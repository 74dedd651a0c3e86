"""Fragments whose result has one column: the other columns of a fragment are zero."""

from __future__ import annotations

import pytest
from amx import AMX, needs_amx

import convsmith as cs
from convsmith.ir.intern import interning
from convsmith.problem import parse_problem
from convsmith.tune.candidates import default_config

FIRST, LAST = (f"--stag={t} --dtag={t}" for t in ("abx", "axb"))
SCALED = "--attr-scales=src:common:0.5+wei:per_oc+dst:common:2 --attr-zero-points=src:common:3+dst:common:4"
LINES = [
    f"--dt=u8:s8:u8 {LAST} {SCALED} mb2ic64ih17oc1oh17kh3ph1",
    f"--dt=u8:s8:u8 {FIRST} {SCALED} mb1ic64ih20oc1oh20kh3ph1",
    f"--dt=u8:s8:s32 {LAST} g4mb1ic256ih7oc4oh7kh1ph0",
    f"--dt=s8:s8:f32 --attr-zero-points=wei:common:2 {LAST} mb1ic128ih9oc1oh9kh1ph0",
    "--matmul --dt=u8:s8:s32 33x256:256x1",
    "--matmul --dt=bf16 40x512:512x1",
]


@needs_amx
@pytest.mark.parametrize("line", LINES)
def test_results_are_exact(line: str) -> None:
    verdict = cs.compile(line, target="avx512_amx", threads=1).verify()
    assert verdict.ok, verdict.detail


@pytest.mark.parametrize("line", LINES[:3])
def test_bytes_are_multiplied_by_fragments(line: str) -> None:
    with interning():
        config = default_config(parse_problem(line), AMX)
    assert config.instruction == "tdpbusd_16"
