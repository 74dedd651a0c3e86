"""Register tiles hold several images where each image has one pixel, and vectors of channels in blocks."""

from __future__ import annotations

import pytest

from convsmith.frontend.numpy_api import compile as compile_kernel
from convsmith.machine.registry import host_targets
from convsmith.machine.x86.levels import LEVELS
from convsmith.measure.verification import verify_kernel
from convsmith.problem import parse_problem
from convsmith.tune.candidates import default_config

TARGETS = {t.name: t for t in LEVELS}
FIRST = "--stag=abx --dtag=abx"
BLOCKED_GRADIENT = "--dir=BWD_W --stag=aBx16b --dtag=aBx16b mb1ic256ih28oc256oh14kh2sh2ph0"


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (f"--dt=u8:s8:s32 {FIRST} mb18ic64id3oc64od1kd5pd2", "avx512_vnni"),
        (f"--dt=bf16 {FIRST} mb32ic512ih3oc512oh1kh3ph0", "avx512_bf16"),
    ],
)
def test_images_share_the_weights_of_a_tile(line: str, level: str) -> None:
    """Weights would otherwise be read again for each image."""
    assert default_config(parse_problem(line), TARGETS[level]).size("mb") > 1


def test_a_gradient_in_blocks_has_lanes_along_the_channels_of_its_source() -> None:
    """Lanes along the channels of the result would be stored 4 KiB apart."""
    assert default_config(parse_problem(BLOCKED_GRADIENT), TARGETS["avx512"]).lane == "ic"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", [t.name for t in host_targets()])
@pytest.mark.parametrize("line", [f"--dt=u8:s8:s32 {FIRST} mb7ic12id3oc20od1kd5pd2",
                                  f"--dt=bf16 {FIRST} mb7ic6ih3oc20oh1kh3ph0",
                                  "--dir=BWD_W --stag=aBx16b --dtag=aBx16b mb2ic32ih6oc32oh3kh2sh2ph0"])  # fmt: skip
def test_results_are_exact(line: str, level: str) -> None:
    assert verify_kernel(compile_kernel(line, target=level, threads=1)).ok
