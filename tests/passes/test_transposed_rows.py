"""Tiles some of whose elements are absent: those that the transposition in registers reads as vectors, and others."""

from __future__ import annotations

import pytest

from convsmith.ir.parse import parse_kernel
from convsmith.passes.transpose import transpose

TEXT = """kernel k(a: bf16[2, 8], dst: bf16[4, 2, 2])
  for k in 0 .. 4:
    for n in 0 .. 2:
      for q in 0 .. 2:
        dst[k, n, q] = (a[n, k * 2 + q] if {cond} else bf16(0.0))
"""


@pytest.mark.parametrize(
    ("cond", "transposed"),
    [
        ("k * 2 + q - 1 >= 0", True),
        ("-k * 2 - q + 6 >= 0", True),
        ("k * 2 + q - 1 >= 0 and -k * 2 - q + 5 >= 0", True),
        ("-n >= 0", True),
        ("-q >= 0", False),  # every other element of a row
        ("-q >= 0 and -k * 2 - q + 3 >= 0", False),
    ],
)
def test_elements_that_exist_are_a_run_of_a_row(cond: str, transposed: bool) -> None:
    kernel = parse_kernel(TEXT.format(cond=cond))
    assert (transpose(kernel, ("k", "n", "q"), (2, 4)) != kernel) == transposed
