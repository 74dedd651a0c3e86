"""The instruction that a kernel computes with: sums of few terms, products that a machine makes slowly, conversions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.tune.candidates import default_config

LEVEL = {t.name: t for t in LEVELS}
AMX = LEVEL["avx512_amx"]
LAYOUTS = "--stag=axb --dtag=axb"


@pytest.mark.parametrize(
    ("line", "fused", "row"),
    [
        ("--dt=u8:s8:s32 mb1ic3ih224oc64oh112kh7sh2ph3", "kw+ic", "tdpbusd_8"),
        ("--dt=s8:s8:s32 mb1ic3ih224oc64oh112kh7sh2ph3", "kw+ic", "tdpbssd_8"),
        ("--dt=bf16 mb1ic3ih224oc64oh112kh7sh2ph3", "kw+ic", "tdpbf16ps_12"),
        ("--dt=bf16 mb1ic3ih224oc64oh112kh3sh2ph1", "kh+kw,kh_kw+ic", "tdpbf16ps_16"),
        ("--dt=u8:s8:s32 mb1ic512ih7oc512oh7kh3ph1", "oh+ow,kh+kw,kh_kw+ic", "tdpbusd_16"),
        ("--dt=u8:s8:u8 --attr-zero-points=src:common:3 mb1ic3ih224oc64oh112kh7sh2ph3", "kw+ic", "tdpbusd_8"),
        ("--dt=s8:s8:s8 --attr-zero-points=src:common:3 mb1ic488ih14oc488oh14kh1ph0", "oh+ow,kh+kw,kh_kw+ic",
         "tdpbssd_16"),
    ],
)  # fmt: skip
def test_windows_are_copied_where_channels_or_rows_fill_no_fragment(line: str, fused: str, row: str) -> None:
    config = str(default_config(parse_problem(f"{LAYOUTS} {line}"), AMX))
    assert f"--fuse={fused} " in config and f"--instruction={row} " in config and "window_copy" in config


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("--dt=u8:s8:s32 mb1ic144ih56oc24oh56kh1ph0", "tdpbusd_12"),
        ("--dt=bf16 mb1ic24ih56oc24oh56kh1ph0", "tdpbf16ps_12"),
        ("--dt=u8:s8:s32 mb1ic192ih28oc32oh28kh1ph0", "tdpbusd_16"),
    ],
)
def test_channels_that_fill_three_quarters_of_a_fragment_are_read_as_they_lie(line: str, row: str) -> None:
    config = default_config(parse_problem(f"{LAYOUTS} {line}"), AMX)
    assert config.instruction == row and config.realise == "peel"


def test_sums_of_few_terms_are_made_of_vectors() -> None:
    config = default_config(parse_problem(f"--dt=u8:s8:s32 {LAYOUTS} mb1ic3ih224oc64oh224kh3ph1"), AMX)
    assert config.instruction == "vpdpbusd_512"


def test_a_dot_product_that_is_slower_than_converting_is_not_used() -> None:
    problem = parse_problem(f"--accuracy=strict --dt=bf16 {LAYOUTS} mb1ic64ih28oc64oh28kh3ph1")
    level = LEVEL["avx512_bf16"]
    slow = replace(level, costs=replace(level.costs, slow=(("vdpbf16ps_512", 4.8),)))
    assert [default_config(problem, t).instruction for t in (level, slow)] == ["vdpbf16ps_512", ""]


def test_a_converted_element_meets_many_vectors() -> None:
    """Among tiles that fill the registers, tiles of few rows convert less of a source that is not copied."""
    plain, half = (
        dict(default_config(parse_problem(f"--matmul {types} 784x1152:1152x128"), LEVEL["avx512"]).tiles_at("register"))
        for types in ("--dt=f32", "--dt=f16:f16:f32")
    )
    assert half["n"] > plain["n"] and half["m"] < plain["m"]


def test_borders_that_several_taps_of_a_stride_share_are_met_by_single_vectors() -> None:
    config = default_config(parse_problem("--dt=bf16 --stag=abx --dtag=abx mb1ic3ih224oc64oh112kh7sh2ph3"), AMX)
    assert config.realise == "pad_copy" or config.size("ow") <= 16
