"""A copy evaluates the conditions of its footprint, however they are written: none is left at the reads of the copy."""

from __future__ import annotations

from oracles import assert_same_results

from convsmith.ir.parse import parse_kernel
from convsmith.passes.stage import stage


def test_conditions_of_a_fused_tap_are_those_of_the_copy() -> None:
    """``t // 2 + i - 1 >= 0`` simplifies to a condition that divides nothing."""
    kernel = parse_kernel(
        """\
kernel k(a: f32[3, 5, 2], b: f32[6], c: f32[3, 5])
  for n in 0 .. 3:
    for i in 0 .. 5:
      for t in 0 .. 6:
        c[n, i] = c[n, i] + (a[n, i + t // 2 - 1, t % 2] * b[t] if t + i * 2 - 2 >= 0 and -t - i * 2 + 11 >= 0 else 0.0)
"""
    )
    staged = stage(kernel, "a", "n")
    assert str(staged).count(" if ") == 1, "the one in the copy"
    assert_same_results(kernel, staged)
