"""One offset in place of coordinates: the same elements, whatever the blocks."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.ir.parse import parse_kernel
from convsmith.passes.flatten import flatten

FORMS = [
    "f32[6, 8]", "f32[6, 8] = 1:8:6 0:6:1", "f32[6, 8] = 0:6:8 1:2:4 1:4:1", "f32[6, 8] = 1:2:24 0:6:4 1:4:1",
    "f32[6, 8] = 0:3:16 1:2:8 1:2:4 0:2:2 1:2:1", "f32[6, 8] = 0:6:11 1:8:1", "f32[6, 8] = 0:2:40 1:3:12 0:4:3 1:3:1",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_blocks_of_every_kind(form: str) -> None:
    kernel = parse_kernel(f"""kernel k(a: {form}, d: f32[8, 6])
  for i in 0 .. 6:
    for j in 0 .. 8:
      d[j, i] = a[i, j] + 1.0
      a[i, j] = d[j, i] * 2.0
""")
    made = flatten(kernel)
    assert "a[i, j]" not in str(made)
    assert_same_results(kernel, made)
