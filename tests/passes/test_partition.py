"""Loops of more iterations than can be evaluated stay whole, whether or not something below depends on them."""

from __future__ import annotations

import pytest

from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.passes.partition import partition

MANY = 1 << 40
TAIL = "min(-i * 4 + 4398046511103, 4)"


@pytest.mark.parametrize("inner", ["4", TAIL])
def test_a_loop_of_very_many_iterations_stays_whole(inner: str) -> None:
    with interning():
        kernel = parse_kernel(
            f"kernel k(a: f32[{4 * MANY}])\n  for i in 0 .. {MANY}:\n    for l in 0 .. {inner}:\n"
            "      a[l + i * 4] = 1.0\n"
        )
        assert str(partition(kernel, ("i",))) == str(kernel)
