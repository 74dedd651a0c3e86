"""Rows of a packed operand that several taps meet are one dim; elements that a tap alone decides keep their own."""

from __future__ import annotations

import pytest

from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.passes.derive_packing import derive_packing
from convsmith.passes.share_taps import share_taps

NEST = """kernel k(a: f32[16], b: f32[6], c: f32[3])
  for t in 0 .. 3:
    for i in 0 .. 6:
      c[t] = c[t] + (a[{row}] if {mask} else 0.0) * b[i]
"""


@pytest.mark.parametrize(
    ("row", "mask", "read"),
    [
        ("i + t - 1", "i + t - 1 >= 0", "a_p[i + t]"),
        ("i + t * 2", "-i - t * 2 + 8 >= 0", "a_p[i + t * 2]"),
        ("i * 2 + t", "-i * 2 - t + 8 >= 0", "a_p[i * 2 + t]"),
        ("i * 2 + t * 2", "-i * 2 - t * 2 + 8 >= 0", "a_p[i + t]"),
        ("i * 2 + t * 3", "-i * 2 - t * 3 + 15 >= 0", "a_p[t, i]"),
        ("i - t + 2", "i - t >= 0", "a_p[t, i]"),
        ("i + t", "t - 1 >= 0", "a_p[t, i]"),
        ("i", "i - 1 >= 0", "a_p[i]"),
    ],
)
def test_taps_share_rows_that_only_their_sum_decides(row: str, mask: str, read: str) -> None:
    with interning():
        kernel = derive_packing(parse_kernel(NEST.format(row=row, mask=mask)), ("a",), "a_p")
        assert read in str(share_taps(kernel, "a_p", "t", "i")).partition("pack ")[0]


BLOCKED = """kernel k(a: f32[16], b: f32[6], c: f32[3])
  for t in 0 .. 3:
    for o in 0 .. 3:
      for i in 0 .. 2:
        c[t] = c[t] + (a[{row}] if {mask} else 0.0) * b[o * 2 + i]
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("row", "mask", "read"),
    [
        ("o * 2 + i + t - 1", "o * 2 + i + t - 1 >= 0", "a_p[i + o * 2 + t]"),
        ("o * 4 + i * 2 + t", "-o * 4 - i * 2 - t + 10 >= 0", "a_p[i * 2 + o * 4 + t]"),
        ("o * 2 + i + t", "-i - t + 2 >= 0", "a_p[t, o, i]"),
        ("i + t", "i >= 0", "a_p[t, i]"),
    ],
)
def test_taps_share_rows_in_blocks(row: str, mask: str, read: str) -> None:
    """The loop over rows may be in tiles; the rows have the place of the loop within a tile."""
    with interning():
        kernel = derive_packing(parse_kernel(BLOCKED.format(row=row, mask=mask)), ("a",), "a_p")
        assert read in str(share_taps(kernel, "a_p", "t", "o", "i")).partition("pack ")[0]
