"""Default kernels of NVIDIA's GPUs keep their numbers in registers: those of threads that compute sums one by one."""

from __future__ import annotations

import pytest

from convsmith.compiler.cubin import assemble_ptx
from convsmith.machine.nvidia.levels import LEVELS
from ptx.sass import skip_without
from ptx.test_convolutions import made

LAST = "--stag=axb --wtag=axb --dtag=axb"
MANY_SUMS = {
    "3x3": f"{LAST} mb32ic64ih56oc64oh56kh3ph1", "1x1": f"{LAST} mb32ic256ih14oc1024oh14kh1",
    "stride": f"{LAST} mb32ic128ih56oc128oh28kh3sh2ph1", "stem": f"{LAST} mb32ic3ih224oc64oh112kh7sh2ph3",
}  # fmt: skip
"""Layers whose groups would have most sums with more threads than a unit has registers for."""
FEW_SUMS = {
    "gradient in blocks": "--dir=BWD_D --dt=f32:bf16:f32 --stag=aBcd16b --dtag=aBcd16b g3mb8ic15ih5oc48oh6kh4ph2",
    "gradient with a stride": (
        "--dir=BWD_D --stag=aBcd8b --dtag=aBcd16b mb1ic16ih31iw56oc17oh28ow57kh3kw4ph3pw2dh2dw0"
    ),
    "gradient of a deconvolution": (
        "--deconv --dir=BWD_W --stag=abx --dtag=abx --accuracy=any "
        "mb3ic24ih3iw19oc8oh5ow17kh4kw5sh2sw1ph2pw13dh0dw2"
    ),
}  # fmt: skip
"""Problems whose threads have a few sums of hundreds of terms."""


@pytest.mark.sampled(18)
@pytest.mark.parametrize("level", [x.name for x in LEVELS])
@pytest.mark.parametrize("kind", [*MANY_SUMS, *FEW_SUMS])
def test_default_kernels_of_threads_spill_nothing(kind: str, level: str) -> None:
    skip_without(level)
    artifact = made({**MANY_SUMS, **FEW_SUMS}[kind], "", level)
    for use in assemble_ptx(artifact.notes["ptx"], level).uses.values():
        assert (use.spilled, use.filled, use.stack) == (0, 0, 0)
