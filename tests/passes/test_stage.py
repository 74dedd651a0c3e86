"""A copy evaluates the conditions of its footprint, however they are written: none is left at the reads of the copy."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.diag.errors import ConfigError
from convsmith.ir.parse import parse_kernel
from convsmith.passes.compute_at import compute_at
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


def test_a_copy_holds_elements_of_the_type_to_which_they_are_converted() -> None:
    """No conversion is left at the reads of the copy; the zeros around the image are of that type too."""
    kernel = parse_kernel(
        """\
kernel k(a: f16[2, 3], b: f32[2], c: f32[2, 4])
  for n in 0 .. 2:
    for i in 0 .. 4:
      for k in 0 .. 2:
        c[n, i] = c[n, i] + (cast(f32, a[n, i + k - 1]) * b[k] if i + k - 1 >= 0 and -i - k + 3 >= 0 else 0.0)
"""
    )
    staged = stage(kernel, "a", "n", None, 0, "cache", 1, False, False, True)
    assert "alloc a_s: f32[1, 5] @cache" in str(staged)
    assert str(staged).count("cast(") == 1, "the one in the copy"
    assert_same_results(kernel, staged)


def test_a_converted_copy_has_elements_of_one_type() -> None:
    kernel = parse_kernel(
        """\
kernel k(a: f16[2, 3], c: f32[2, 3], d: f64[2, 3])
  for n in 0 .. 2:
    for i in 0 .. 3:
      c[n, i] = cast(f32, a[n, i])
      d[n, i] = cast(f64, a[n, i])
"""
    )
    with pytest.raises(ConfigError, match="read as f32, f64; legal is one type"):
        stage(kernel, "a", "n", None, 0, "cache", 1, False, False, True)


COPIES = """\
kernel k(a: s32[9], b: s32[9])
  alloc t: s32[9] @cache:
    for x in 0 .. 9:
      t[x] = a[x] + s32(1)
    for i in 0 .. 2:
      for k in 0 .. 4:
        b[k + i * 4] = t[k + i * 4]
      for k in 4 .. 5:
        b[k + i * 4] = t[k + i * 4] * s32(2)
"""


def test_the_footprint_holds_what_all_loops_of_a_name_read() -> None:
    """Copies of a loop, which `cut` makes for example, have one name and run over different parts of its range."""
    kernel = parse_kernel(COPIES)
    assert_same_results(kernel, compute_at(kernel, "t", "i", False))
    unfused = parse_kernel(COPIES.replace("t[k + i * 4]", "a[k + i * 4]"))
    assert_same_results(unfused, stage(unfused, "a", "i"))
