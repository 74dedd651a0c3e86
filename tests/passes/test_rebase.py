"""Terms move between partial sums only where nothing tells the partial sums apart."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.diag.errors import ConfigError
from convsmith.ir.parse import parse_kernel
from convsmith.ir.rewrite import Substitute
from convsmith.ir.stmt import Alloc, Kernel, Stmt
from convsmith.ir.walk import statements_of
from convsmith.passes.rebase import rebase
from convsmith.passes.scope import with_body

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


def test_a_total_may_have_coordinates_of_its_own() -> None:
    total = """    for x in 0 .. 2:
      d[x] = 0.0
      for n in 0 .. 4:
        d[x] = d[x] + acc[n]
"""
    before = parse_kernel(SUM[: SUM.index("    alloc total")] + total)
    after = rebase(before, "m")
    assert "for m in 0 .. 3:" in str(after)
    assert_same_results(before, after)
    apart = parse_kernel(str(before).replace("d: f32[2]", "d: f32[4]").replace("d[x] + acc", "d[n] + acc"))
    with pytest.raises(ConfigError):
        rebase(apart, "m")


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


KEPT = """kernel k(a: f32[8], d: f32[2])
  alloc kept: f32[2, 4] @cache:
    for x in 0 .. 2:
      alloc acc: f32[4] @register:
        for l in 0 .. 4:
          acc[l] = 0.0
        for m in 1 .. 4:
          acc[m] = acc[m] + a[m]
        for l in 0 .. 4:
          kept[x, l] = acc[l]
    for x in 0 .. 2:
      alloc acc: f32[4] @register:
        for l in 0 .. 4:
          acc[l] = kept[x, l]
        for m in 1 .. 4:
          acc[m] = acc[m] + a[m + 4]
        alloc total: f32[] @register:
          total[] = 0.0
          for n in 0 .. 4:
            total[] = total[] + acc[n]
          d[x] = total[]
"""


def kept(old: str = "", new: str = "") -> Kernel:
    """Return a sum in two parts, whose partial sums memory keeps between them; both parts have the same registers."""
    kernel = parse_kernel(KEPT.replace(old, new) if old else KEPT)
    first, other = [s.buffer for s in statements_of(kernel.body) if isinstance(s, Alloc) and s.buffer.name == "acc"]

    class OneBuffer(Substitute):
        def visit_Alloc(self, s: Alloc) -> Stmt:
            return Alloc(first if s.buffer is other else s.buffer, self.stmt(s.body))

    return with_body(kernel, OneBuffer({}, {other: first}).stmt(kernel.body))


def test_terms_move_where_memory_keeps_all_partial_sums() -> None:
    after = rebase(kept(), "m")
    assert str(after).count("for m in 0 .. 3:") == 2
    assert_same_results(kept(), after)


@pytest.mark.parametrize(
    "old, new",
    [
        ("kept[x, l] = acc[l]", "kept[x, l] = acc[l] * 2.0"),
        ("for l in 0 .. 4:\n          kept", "for l in 0 .. 3:\n          kept"),
        ("acc[l] = kept[x, l]", "acc[l] = kept[l % 2, x]"),
        ("d[x] = total[]", "d[x] = total[] + kept[x, 0]"),
        ("kept[x, l] = acc[l]", "kept[0, l % 2] = acc[l]"),
    ],
    ids=["scaled", "not-all", "other-places", "read-alone", "one-place"],
)
def test_memory_that_tells_partial_sums_apart_is_refused(old: str, new: str) -> None:
    with pytest.raises(ConfigError, match="the second does not take all partial sums"):
        rebase(kept(old, new), "m")
