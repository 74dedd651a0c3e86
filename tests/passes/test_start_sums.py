"""Sums start at what the result subtracts from them, if they are integers and it uses them only there."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.machine.registry import target
from convsmith.passes.start_sums import start_sums
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for


def summing(value: str, t: str = "s32", before: str = "") -> Kernel:
    zero = "0.0" if t == "f32" else f"{t}(0)"
    return parse_kernel(
        f"kernel k(a: {t}[5, 3], p: {t}[5], q: {t}[1], d: {t}[5])\n"
        f"  for j in 0 .. 1:\n"
        f"    for i in 0 .. 5:\n"
        f"      alloc acc: {t}[] @register:\n"
        f"        acc[] = {zero}\n"
        f"        for k in 0 .. 3:\n"
        f"          acc[] = acc[] + a[i, k]\n"
        f"{before}"
        f"        d[i] = {value}\n"
    )


@pytest.mark.parametrize(
    ("value", "start"),
    [
        ("acc[] - p[i]", "s32(0) - p[i]"),
        ("acc[] - p[i] * q[0] - q[0]", "s32(0) - p[i] * q[0] - q[0]"),
        ("max(acc[] - p[i], s32(0)) * q[0]", "s32(0) - p[i]"),
        ("max(acc[] - p[i], s32(7)) - (acc[] - p[i])", "s32(0) - p[i]"),
    ],
)
def test_sums_start_at_the_subtracted_number(value: str, start: str) -> None:
    kernel = summing(value)
    made = start_sums(kernel, ("i",))
    assert f"acc[] = acc[] + ({start})\n" in str(made) and "acc[] - p" not in str(made)
    assert_same_results(kernel, made)


@pytest.mark.parametrize(
    ("value", "t", "before"),
    [
        ("acc[] + p[i]", "s32", ""),
        ("p[i] - acc[]", "s32", ""),
        ("acc[] - acc[]", "s32", ""),
        ("(acc[] - p[i]) * acc[]", "s32", ""),
        ("(acc[] - p[i]) * (acc[] - q[0])", "s32", ""),
        ("acc[] - d[i]", "s32", ""),
        ("acc[] - p[i]", "f32", ""),
        ("acc[] - p[i]", "s32", "        p[i] = q[0]\n"),
    ],
)
def test_these_are_left(value: str, t: str, before: str) -> None:
    kernel = summing(value, t, before)
    assert start_sums(kernel, ("i",)) is kernel


@pytest.mark.parametrize(
    ("words", "level", "starts"),
    [
        ("--lane=oc --register=ow:4,oc:32 --reduce=kh,kw,ic", "avx512_vnni", True),
        ("--lane=oc --register=ow:4,oc:32 --reduce=kh,kw,ic --cache=ic:32", "avx512_vnni", False),
        ("--lane=ic --register=ow:2,oc:2 --reduce=kh,kw,ic", "avx512_vnni", False),
    ],
    ids=["in registers", "in parts", "along the reduction"],
)
def test_sums_in_registers_start_at_their_zero_points(words: str, level: str, starts: bool) -> None:
    line = "--dt=u8:s8:u8 --attr-zero-points=src:common:3 --stag=axb --dtag=axb mb1ic64ih8oc32oh8kh1"
    with interning():
        config = Config.parse(f"--target={level} {words} --offsets=sums")
        plan = plan_for(parse_problem(line).canonical(), config, target(level))
    assert ("start_sums" in [step.name for step in plan.kernels[-1].pipeline]) == starts
