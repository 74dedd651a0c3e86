"""Bytes with a zero point in channels last: it is subtracted from the sums where that leaves faster products."""

from __future__ import annotations

import pytest

from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets, target
from convsmith.measure.verification import verify_kernel
from convsmith.problem import parse_problem
from convsmith.tune.candidates import default_config

SCALES = "--attr-scales=src:common:0.5+wei:per_oc+dst:common:2"
OPTIONS = f"--dt=u8:s8:u8 --stag=axb --dtag=axb {SCALES} --attr-zero-points=src:common:3+dst:common:4"
DEPTHWISE = [
    "g48mb1ic48ih14oc48oh14kh3ph1", "g40mb2ic40ih15oc40oh8kh3sh2ph1", "g32mb1ic32ih11oc32oh11kh5ph2",
    "g16mb2ic16iw70oc16ow70kw51pw25", "g32mb1ic32ih5oc32oh9kh3ph3",
    "g24mb1ic24id4ih6iw6oc24od4oh6ow6kd3kh3kw3pd1ph1pw1",
]  # fmt: skip
BYTES = [t for t in host_targets() if t.has_word_products]


@pytest.mark.parametrize("level", ["avx512_vnni", "avx512", "avx2_vnni", "avx2"])
@pytest.mark.parametrize("layer", DEPTHWISE)
def test_depthwise_kernels_multiply_words(layer: str, level: str) -> None:
    assert default_config(parse_problem(f"{OPTIONS} {layer}").canonical(), target(level)).offsets == "sums"


def test_zero_points_stay_with_factors_where_no_words_are_multiplied() -> None:
    problem = parse_problem(f"{OPTIONS} {DEPTHWISE[0]}").canonical()
    assert default_config(problem, target("generic")).offsets == "each"


@pytest.mark.parametrize("level", BYTES, ids=lambda t: t.name)
@pytest.mark.parametrize("layer", DEPTHWISE)
@pytest.mark.sampled(6, "layer")
def test_depthwise_kernels_are_exact(layer: str, level: Machine) -> None:
    assert verify_kernel(CompiledKernel(parse_problem(f"{OPTIONS} {layer}"), level, None, 1)).ok


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("layer", "run"), [("g64mb1ic64ih56oc64oh56kh7ph3", 7), ("g64mb1ic64iw700oc64ow700kw51pw25", 3)]
)
def test_taps_of_a_row_share_the_bytes_that_a_load_widens(layer: str, run: int) -> None:
    config = default_config(parse_problem(f"{OPTIONS} {layer}").canonical(), target("avx512_vnni"))
    assert dict(config.tiles_at("register"))["kw"] == run


@pytest.mark.sampled(2)
@pytest.mark.parametrize("type_", ["bf16", "f16"])
def test_taps_of_a_row_share_the_floats_that_a_load_widens(type_: str) -> None:
    problem = parse_problem(f"--dt={type_} --stag=axb --dtag=axb g64mb1ic64ih56oc64oh56kh7ph3").canonical()
    assert dict(default_config(problem, target("avx512_bf16")).tiles_at("register"))["kw"] == 7
