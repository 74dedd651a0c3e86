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


def test_transforms_of_a_level_without_fma() -> None:
    """The kernel of each call has none; the one that transforms weights rounds once."""
    line = "--stag=axb --dtag=axb mb1ic16ih8oc16kh3ph1"
    texts = {}
    for name in ("wasm32", "generic"):
        kernel = cs.compile(line, target=name, threads=1, config="--winograd=oh:4,ow:4")
        texts[name] = kernel.ir().partition("\npack ")[0]
    assert "fma(" in texts["generic"] and "fma(" not in texts["wasm32"]
