"""Terms move between partial sums only where nothing tells the partial sums apart."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.diag.errors import ConfigError
from convsmith.ir.parse import parse_kernel
from convsmith.passes.rebase import rebase

SUM = """kernel k(a: f32[8], d: f32[2])
  alloc acc: f32[4] @register:
    for l in 0 .. 4:
      acc[l] = 0.0
    for k in 0 .. 2:
      for m in 1 .. 4:
        acc[m] = acc[m] + a[k * 4 + m]
    alloc total: f32[] @register:
      total[] = 0.0
      for n in 0 .. 4:
        total[] = total[] + acc[n]
      d[0] = total[]
"""


def test_terms_move_where_all_partial_sums_are_added_up() -> None:
    before = parse_kernel(SUM)
    after = rebase(before, "m")
    assert "for m in 0 .. 3:" in str(after)
    assert_same_results(before, after)


@pytest.mark.parametrize(
    "old, new, why",
    [
        ("for n in 0 .. 4", "for n in 1 .. 4", r"acc\[m\] = ... and total\[\] = total\[\] \+ acc\[n\]"),
        ("total[] + acc[n]", "total[] + acc[n] * acc[n]", r"and total\[\] = total\[\] \+ acc\[n\] \* acc\[n\]"),
        ("d[0] = total[]", "d[0] = total[] + acc[2]", r"and d\[0\] = total\[\] \+ acc\[2\]"),
        ("    for k in 0 .. 2:", "    acc[0] = 1.0\n    for k in 0 .. 2:", r"and acc\[0\] = 1.0"),
        ("acc[m] = acc[m]", "acc[m // 2] = acc[m // 2]", "a sum of which one coordinate is the loop"),
    ],
    ids=["not-the-first", "not-a-total", "one-alone", "set-alone", "not-a-coordinate"],
)
def test_a_statement_that_tells_partial_sums_apart_is_refused(old: str, new: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        rebase(parse_kernel(SUM.replace(old, new)), "m")
