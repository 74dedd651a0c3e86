"""Passes that make loops refuse a name that a loop around or within has: an index would mean the wrong one."""

from __future__ import annotations

import pytest

from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.passes.coalesce import coalesce
from convsmith.passes.fuse import fuse
from convsmith.passes.residue import residue
from convsmith.passes.tile import tile

NEST = """kernel k(a: f32[2, 6, 4, 3], b: f32[2, 6, 4, 3])
  for g in 0 .. 2:
    for i in 0 .. 6:
      for j in 0 .. 4:
        for l in 0 .. 3:
          b[g, i, j, l] = a[g, i, j, l]
"""


@pytest.mark.parametrize("name", ["g", "l"])
@pytest.mark.parametrize(
    "rewrite",
    [
        lambda k, name: tile(k, "i", 2, name, "i"), lambda k, name: tile(k, "i", 2, "i.o", name),
        lambda k, name: residue(k, "i", 2, name), lambda k, name: fuse(k, "i", "j", name),
        lambda k, name: coalesce(k, "i", "j", name),
    ],
    ids=["outer", "inner", "remainder", "fused", "coalesced"],
)  # fmt: skip
def test_a_name_that_is_in_use(rewrite, name: str) -> None:  # type: ignore[no-untyped-def]
    with interning(), pytest.raises(ConfigError, match=f"of kernel k is called {name} already") as error:
        rewrite(parse_kernel(NEST), name)
    assert error.value.code == "loop-name"


def test_the_loop_itself_gives_up_its_name() -> None:
    with interning():
        kernel = parse_kernel(NEST)
        assert "for i in 0 .. 3" in str(tile(kernel, "i", 2, "i", "i.i"))
        assert "for j in 0 .. 24" in str(fuse(kernel, "i", "j", "j"))


def test_loops_beside_each_other_may_have_one_name() -> None:
    with interning():
        kernel = parse_kernel(
            "kernel k(a: f32[8], b: f32[8])\n  for i in 0 .. 8:\n    b[i] = 0.0\n"
            "  for i.o in 0 .. 8:\n    b[i.o] = a[i.o]\n"
        )
        assert str(tile(kernel, "i", 4, "i.o", "i.i")).count("for i.o in") == 2
