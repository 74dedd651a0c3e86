"""`split_fma` beside multiply-adds that must round once, and the level that has it."""

from __future__ import annotations

import convsmith as cs
from convsmith.ir.parse import parse_kernel
from convsmith.passes.split_fma import split_fma


def test_a_lost_part_stays() -> None:
    kernel = parse_kernel(
        "kernel k(a: f32[4], dst: f32[4])\n  for i in 0 .. 4:\n    dst[i] = fma(a[i], a[i], neg(a[i] * a[i]))\n"
    )
    assert str(split_fma(kernel)) == str(kernel)


def test_vectors_of_a_register_stay() -> None:
    lines = [
        "dst[i * 4]{4} = fma(a[i * 4]{4}, a[i * 4]{4}, a[i * 4]{4})",
        "dst[i * 4]{2} = fma(a[i * 4]{2}, a[i * 4]{2}, a[i * 4]{2})",
        "dst[i] = fma(a[i], a[i], a[i])",
    ]
    head = "kernel k(a: f32[16], dst: f32[16])\n  for i in 0 .. 4:\n    "
    after = [str(split_fma(parse_kernel(f"{head}{line}\n"), 128)) for line in lines]
    assert ["fma(" in text for text in after] == [True, False, False]


def test_transforms_of_a_level_without_fma() -> None:
    """Those of vectors keep multiply-adds, which the level's function computes."""
    line = "--stag=axb --dtag=axb mb1ic16ih8oc16kh3ph1"
    kernel = cs.compile(line, target="wasm32", threads=1, config="--winograd=oh:4,ow:4")
    transforms = kernel.ir().partition("\npack ")[0]
    assert "fma(" in transforms and "llvm.fmuladd.v4f32" in kernel.llvm()
    assert "llvm.fma.v4f32" not in kernel.llvm()
