"""Sums of WebAssembly begin with zeros that no compiler shares with constants; other machines begin with constants."""

from __future__ import annotations

import re

import pytest

import convsmith as cs

LINE = "mb1ic8ih4oc8kh3ph1"


@pytest.mark.parametrize("name, calls", [("wasm32+relaxed", True), ("wasm32", True), ("generic", False)])
@pytest.mark.parametrize("types", ["", "--dt=u8:s8:s32 "])
def test_the_zeros_of_sums(name: str, calls: bool, types: str) -> None:
    text = cs.compile(f"{types}{LINE}", target=name, threads=1).llvm()
    constants = re.findall(r"phi <4 x \w+> \[ (?:splat \(\w+ 0\w*\)|zeroinitializer), ", text)
    assert bool(constants) == (not calls)
    assert bool(re.findall(r"= call <16 x i8> @llvm\.wasm\.swizzle", text)) == calls
