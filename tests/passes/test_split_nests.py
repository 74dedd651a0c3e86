"""Nests that read a buffer in panels: the loop over panels and the loop over a panel move every access evenly."""

from __future__ import annotations

import pytest

from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Store
from convsmith.ir.walk import loops_of, statements_of
from convsmith.passes.split_nests import StoreNest, panels_of, split_nest

TEXT = """
kernel k(a: f32[96], dst: f32[96])
  for i in 0 .. 3:
    for j in 0 .. 32:
      dst[i * 32 + j] = a[{index}]
"""


def nest(index: str) -> StoreNest:
    body = parse_kernel(TEXT.format(index=index)).body
    store = next(s for s in statements_of(body) if isinstance(s, Store))
    return StoreNest(tuple(loops_of(body)), store)


def test_an_access_in_panels_moves_evenly_along_both_loops() -> None:
    given = nest("i * 8 + j // 8 * 24 + j % 8")
    assert panels_of(given) == ((1, 8),)
    found = split_nest(given, 1, 8)
    assert [(str(x.var), x.hi.const) for x in found.loops] == [("i", 3), ("j.o", 4), ("j.i", 8)]
    assert str(found.store) == "dst[i * 32 + j.i + j.o * 8] = a[i * 8 + j.i + j.o * 24]"


@pytest.mark.parametrize("index", ["i * 32 + j", "i * 32 + (j + 1) // 8", "i * 32 + j // 5", "i * 32 + j // 32"])
def test_other_accesses_have_no_panels(index: str) -> None:
    assert panels_of(nest(index)) == ()
