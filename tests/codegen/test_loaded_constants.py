"""Constants of epilogues in WebAssembly, which are loaded; larger numbers; and multiply-adds of vectors."""

from __future__ import annotations

import re

import pytest

import convsmith as cs

LINE = "mb1ic8ih4oc8kh3ph1"
ZERO, SIX = (rf"= load float, ptr @convsmith\.constant\.float\.0x{x}0{{9}}" for x in ("0000000", "4018000"))


def text_of(line: str, name: str) -> str:
    return cs.compile(line, target=name, threads=1).llvm()


@pytest.mark.parametrize("name, loads", [("wasm32+relaxed", True), ("wasm32", True), ("generic", False)])
def test_the_constants_of_an_epilogue(name: str, loads: bool) -> None:
    plain, clipped = text_of(LINE, name), text_of(f"--attr-post-ops=clip:0:6 {LINE}", name)
    for number in (ZERO, SIX):
        assert not re.findall(number, plain)
        per_function = [len(re.findall(number, x)) for x in clipped.split("\ndefine ")]
        assert max(per_function) == loads, "one load serves a tile"
    assert re.findall(r"phi <4 x float> \[ splat \(float 0\w*\), ", clipped), "sums begin with constants"


@pytest.mark.parametrize("name, calls", [("wasm32+relaxed", True), ("generic", False)])
def test_larger_numbers(name: str, calls: bool) -> None:
    text = text_of(f"--attr-post-ops=clip:-1:6 {LINE}", name)
    for word in ("max", "min"):
        assert (f"@llvm.wasm.p{word}.v4f32(<4 x float> %" in text) == calls


def test_a_loop_that_stores_loads_constants_ahead() -> None:
    text = text_of(f"--attr-post-ops=swish:1 {LINE}", "wasm32+relaxed")
    loops = [x for x in re.split(r"\n(?=\S+:\n)", text) if "fdiv <4 x float>" in x]
    assert loops and not any("@convsmith.constant" in x or "splat (float" in x for x in loops)


@pytest.mark.parametrize("name, function", [("wasm32+relaxed", "wasm.relaxed.madd"), ("wasm32", "fmuladd")])
def test_multiply_adds_of_functions(name: str, function: str) -> None:
    """Those of vectors are one function; scalars have two operations, and a rounding error rounds once."""
    swish, gelu = (text_of(f"--attr-post-ops={x} {LINE}", name) for x in ("swish:1", "gelu_erf"))
    assert len(re.findall(rf"@llvm\.{function}\.v4f32\(<4 x float> %\S+, <4 x float> %\S+, <4 x float> %", swish)) > 8
    assert "@llvm.fma." not in swish and "@llvm.fma.v4f32" in gelu


@pytest.mark.parametrize("slope, is_maximum", [(0.25, True), (1.0, True), (1.5, False), (-0.25, False)])
def test_a_slope_of_at_most_one_is_a_maximum(slope: float, is_maximum: bool) -> None:
    text = text_of(f"--attr-post-ops=relu:{slope} {LINE}", "generic")
    compared = re.findall(r"fcmp olt <4 x float> %\S+, (%|splat)", text)
    assert compared and set(compared) == {"%" if is_maximum else "splat"}
