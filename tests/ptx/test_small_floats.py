"""Convolutions of 8-bit floats on sm_90a: by fragments, whose sums are f32, and by groups of warps, by permission."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for
from ptx.hopper_configs import KINDS, LAST, LEVEL
from ptx.test_convolutions import check, made

LAYERS = {
    "one type": (f"{LAST} --dt=f8_e4m3:f8_e4m3:f32 mb1ic64ih5oc32oh5kh3ph1", "mma_m16n8k32_f8_e4m3"),
    "two types": (f"{LAST} --dt=f8_e5m2:f8_e4m3:f8_e4m3 --attr-post-ops=relu mb1ic40ih5oc24oh5kh1",
                  "mma_m16n8k32_f8_e5m2_f8_e4m3"),
    "a gradient": (f"--dir=BWD_D {LAST} --dt=bf16:f8_e4m3:f8_e5m2 mb1ic64ih8oc128oh8kh1",
                   "mma_m16n8k32_f8_e5m2_f8_e4m3"),
    "permitted": (f"{LAST} --dt=f8_e5m2:f8_e5m2:f16 --accuracy=any mb1ic64ih5oc32oh5kh1", "wgmma_m64n32k32_f8_e5m2"),
    "a product": ("--matmul --dt=f8_e4m3:f8_e4m3:bf16 64x256:256x64", "mma_m16n8k32_f8_e4m3"),
}  # fmt: skip
"""Problems with the row that their default configs take."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", LAYERS)
def test_default_kernels_multiply_8_bit_floats(kind: str) -> None:
    line, row = LAYERS[kind]
    text = made(line, "", LEVEL).notes["ptx"]
    types = r"f32\.e[45]m[23]\.e[45]m[23]"
    assert re.search(rf"(mma\.sync\.aligned\.m16n8k32\.row\.col|wgmma\.mma_async\S+)\.{types}", text)
    assert ("wgmma" in text) is row.startswith("wgmma") and "fma.rn.f32" not in text
    check(line, "", LEVEL)


def test_rounded_sums_need_permission() -> None:
    line, words = KINDS["8-bit floats"]
    problem = replace(parse_problem(line), accuracy="relaxed")
    config = Config.parse(f"--target={LEVEL} --pack= --realise=hardware {words}")
    with interning(), pytest.raises(ConfigError, match=r"rounds the sums .* --accuracy=any, found relaxed") as raised:
        plan_for(problem, config, target(LEVEL))
    assert raised.value.code == "accuracy"
