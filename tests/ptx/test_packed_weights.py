"""Weights that the copy engine cannot bring as they lie in memory: packed by default, and exact as PTX."""

from __future__ import annotations

import pytest

from convsmith.compiler.driver import emit, lower
from convsmith.diag.collection import no_collection
from convsmith.frontend.kernel import CompiledKernel
from convsmith.ir.intern import one_table
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for, without_limits
from ptx.test_convolutions import check, made

LINES = (
    "--dt=s8:s8:s32 --matmul 20x64:64x32",
    "--dt=bf16 --stag=axb --dtag=axb mb1ic16ih5oc24oh5kh3ph1",
    "--dt=f16 --stag=axb --dtag=axb g2mb1ic64iw9oc32ow9kw3pw1",
    "--dir=BWD_D --dt=bf16 --stag=axb --dtag=axb mb1ic32ih8oc16oh4kh3sh2ph1",
)
"""Problems whose weights are row-major, or factors with rows along the wrong dim."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("line", LINES)
def test_kernels_are_exact_under_four_schedules(line: str) -> None:
    config = Config.parse(made(line, "", "sm_90a").config)
    assert (config.realise, config.staged("pack")) == ("hardware", ("wei",))
    check(line, "", "sm_90a")


@pytest.mark.parametrize("line", [
    "--dt=s8:s8:s32 --stag=axb --dtag=axb g2mb1ic64iw9oc64ow9kw3pw1",
    pytest.param("--dir=BWD_D --dt=bf16 --stag=axb --dtag=axb mb1ic32ih8oc16oh4kh3sh2ph1", marks=pytest.mark.slow),
])  # fmt: skip
def test_asynchronous_copies_bring_row_major_weights_of_fragments(line: str) -> None:
    """Neighbours in memory are taps; packed, they are terms of a fragment."""
    text = made(line, "", "sm_80").notes["ptx"]
    main = text[text.index(".entry convsmith(") :].partition("\n}")[0]
    assert "cp.async.cg.shared.global" in main and "ld.global" not in main
    check(line, "", "sm_80")


@pytest.mark.parametrize("line", LINES[:2])
def test_the_kernel_for_weights_that_are_not_finite_takes_the_packed_ones(line: str) -> None:
    first, machine = made(line, "", "sm_90a"), target("sm_90a")
    with no_collection(), one_table():
        other = without_limits(Config.parse(first.config), machine)
        plan = plan_for(parse_problem(line), other, machine)
        assert other.realise == "mask"
        assert emit(plan, lower(plan)).entries["pack"].packing == first.entries["pack"].packing


def test_kernels_for_sizes_of_the_call_pack_nothing() -> None:
    """Packed weights then serve all of them."""
    kernel = CompiledKernel(parse_problem(LINES[1]), target("sm_90a"), dynamic="mb,ih,iw")
    assert not kernel.config.staged("pack")


def test_threads_along_groups_have_adjacent_weights() -> None:
    """Packed weights of a depthwise convolution are copied as vectors along its groups."""
    line = "--stag=axb --dtag=axb --dt=bf16 g16mb1ic16ih5oc16oh5kh3ph1"
    words = "--register=g:4,ow:2 --reduce=kh,kw,ic --realise=pad_copy --group=g:16,ow:4,oh:2,kh:3,kw:3 --vectors=g:4"
    config = f"--target=sm_80 --lane=g {words} --pack=wei --shared="
    text = made(line, f"{config}src,wei", "sm_80").notes["ptx"]
    main = text[text.index(".entry convsmith(") :].partition("\n}")[0]
    assert "ld.global.nc.v4.b32" in main and "ld.global.nc.b16" not in main
    for shared in ("src,wei", "src"):
        check(line, f"{config}{shared}", "sm_80")
