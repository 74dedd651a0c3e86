"""Zeros behind loops of sums, and larger numbers, in WebAssembly: functions that compilers neither share nor relax."""

from __future__ import annotations

import re

import pytest

import convsmith as cs

LINE = "mb1ic8ih4oc8kh3ph1"
ZEROS = r"= call <16 x i8> @llvm\.wasm\.swizzle"


def text_of(line: str, name: str) -> str:
    return cs.compile(line, target=name, threads=1).llvm()


@pytest.mark.parametrize("name, calls", [("wasm32+relaxed", True), ("wasm32", True), ("generic", False)])
def test_the_zeros_of_an_epilogue(name: str, calls: bool) -> None:
    plain, clipped = text_of(LINE, name), text_of(f"--attr-post-ops=clip:0:6 {LINE}", name)
    assert not re.findall(ZEROS, plain) and bool(re.findall(ZEROS, clipped)) == calls
    assert re.findall(r"phi <4 x float> \[ splat \(float 0\w*\), ", clipped), "sums begin with constants"


@pytest.mark.parametrize("name, calls", [("wasm32+relaxed", True), ("generic", False)])
def test_larger_numbers(name: str, calls: bool) -> None:
    text = text_of(f"--attr-post-ops=clip:-1:6 {LINE}", name)
    assert not re.findall(ZEROS, text), "no number is zero"
    for word in ("max", "min"):
        assert (f"@llvm.wasm.p{word}.v4f32(<4 x float> %" in text) == calls


def test_zeros_of_a_map_are_constants() -> None:
    """No loop adds up before them: a loop of vectors would compute them again and again."""
    text = text_of("--attr-post-ops=relu mb1ic1ih4oc8kh1ph0", "wasm32+relaxed")
    assert "pmax" in text and not re.findall(ZEROS, text)


@pytest.mark.parametrize("slope, is_maximum", [(0.25, True), (1.0, True), (1.5, False), (-0.25, False)])
def test_a_slope_of_at_most_one_is_a_maximum(slope: float, is_maximum: bool) -> None:
    text = text_of(f"--attr-post-ops=relu:{slope} {LINE}", "generic")
    compared = re.findall(r"fcmp olt <4 x float> %\S+, (%|splat)", text)
    assert compared and set(compared) == {"%" if is_maximum else "splat"}
