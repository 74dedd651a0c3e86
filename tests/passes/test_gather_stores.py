"""Iterations keep their order where what they write may be read, or written twice, or is done otherwise."""

from __future__ import annotations

import pytest

from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.passes.gather_stores import gather_stores


def two_places(first: str = "d[i * 2]{2}", second: str = "d[i * 2 + 8]{2}", read: str = "a", turns: int = 2) -> Kernel:
    """A loop whose iterations write in two places."""
    return parse_kernel(f"""kernel k(a: f32[16], d: f32[16])
  for i in 0 .. {turns}:
    alloc t: f32[4] @register:
      t[0]{{4}} = {read}[i * 4]{{4}}
      {first} = t[0]{{2}}
      {second} = t[2]{{2}}
""")


def test_stores_of_a_place_follow_each_other() -> None:
    """Only the active lanes of partial vectors count."""
    text = str(gather_stores(two_places("d[i * 2]{4/2}"), "i", 4))
    places = ["d[0]{4/2}", "d[2]{4/2}", "d[8]{2}", "d[10]{2}"]
    assert sorted(places, key=text.index) == places
    assert max(text.index("t.0[0]{4} ="), text.index("t.1[0]{4} =")) < text.index(places[0])


@pytest.mark.parametrize(
    "kernel",
    [
        two_places("d[i]{2}"),
        two_places(second="d[i * 2 + 2]{2}"),
        two_places("d[i * 2]{2:2}"),
        two_places(read="d"),
        two_places("a[i * 2]{2}"),
        two_places(turns=5),
        two_places(turns=1),
    ],
    ids=["overlap", "same-place", "strided", "reads-it", "two-buffers", "too-long", "once"],
)
def test_these_are_left(kernel: Kernel) -> None:
    assert gather_stores(kernel, "i", 4) is kernel
