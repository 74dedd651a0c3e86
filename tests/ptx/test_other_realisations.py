"""Legal problems whose operands the copy engine of sm_90a cannot bring: another realisation is taken, explained, exact.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from guarded import check_result, expected, memories

from convsmith.ir.intern import one_table
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.schedule.planned import plan_for
from convsmith.tune.devices.device import device_config
from ptx.hopper_configs import LAST, LEVEL
from ptx.kernels import run_artifact
from ptx.test_convolutions import made

GROUPS = "--stag=axb --wtag=abxc --dtag=axb"
STRICT = f"{GROUPS} --accuracy=strict"
"""Groups that stand alone, not side by side in one product."""
CASES = {
    "groups of 8 channels": (f"{STRICT} --dt=bf16 g2mb1ic16ih4oc16oh4kh1", "8 iterations of oc stand beside"),
    "groups of 8 channels, many pixels": (
        f"{STRICT} --dt=bf16 g2mb32ic16ih56oc16oh56kh3ph1", "8 iterations of oc stand beside",
    ),
    "depthwise": (f"{GROUPS} --dt=f16 g8mb1ic8ih4oc8oh4kh3ph1", "1 iterations of oc stand beside"),
    "short rows": (f"{LAST} --dt=bf16 mb1ic12ih4oc16oh4kh3ph1", "src has rows 24 bytes apart, no multiple of 16"),
    "three channels": (f"{LAST} --dt=f16 mb1ic3ih8oc16oh4kh3sh2ph1", "src has rows 6 bytes apart"),
    "far corners": (f"{LAST} --dt=bf16 mb1ic16ih4oc16oh4kh3ph150dh149", "src has corners -150 and -150"),
    "channels first": ("--stag=abx --dtag=abx --dt=bf16 mb1ic16ih4oc16oh4kh1", "factors that are MN-major and K-m"),
    "blocked channels": ("--stag=aBx16b --dtag=aBx16b --dt=f16 mb1ic32ih4oc32oh4kh1", "src has a blocked layout"),
    "a volume of groups": (
        f"{STRICT} --dt=bf16 g2mb1ic32id3ih3iw3oc32od3oh3ow3kd2kh1kw2pd1pw1", "wei has 6 dims, at most 5",
    ),
    "f32": (f"{LAST} mb1ic16ih4oc16oh4kh1", "rounds the factors, which --accuracy=any permits"),
}  # fmt: skip
"""Problems with part of the reason that `explain` gives."""


@pytest.mark.sampled(10)
@pytest.mark.parametrize("kind", CASES)
def test_another_realisation_is_taken(kind: str) -> None:
    line, reason = CASES[kind]
    problem = parse_problem(line)
    with one_table():
        config = device_config(problem, target(LEVEL))
        text = str(plan_for(problem, config, target(LEVEL)))
    assert config.realise in ("pad_copy", "mask") and not config.instruction.startswith("wgmma")
    (why,) = (x for x in text.splitlines() if x.startswith("copy engine"))
    assert "not used" in why and reason in why
    if kind.endswith("many pixels"):
        assert config.instruction.startswith("mma_")
        return
    arrays = random_arrays(problem)
    memory = memories(problem, arrays)
    run_artifact(made(line, "", LEVEL), memory, 0)
    strict = replace(problem, accuracy="strict")
    check_result(strict, memory, expected(strict, arrays))
