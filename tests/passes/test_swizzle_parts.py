"""Rotated rows whose parts are single elements: every element keeps its row, and columns spread over all of them."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.diag.errors import ConfigError
from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.passes.swizzle import swizzle

TEXT = """
kernel k(a: f32[4, 4], dst: f32[4, 4])
  alloc a_s: f32[4, 4] @shared:
    for i in 0 .. 4:
      for j in 0 .. 4:
        a_s[i, j] = a[i, j]
    for i in 0 .. 4:
      for j in 0 .. 4:
        dst[i, j] = a_s[j, i]
"""


@pytest.mark.parametrize("elements", [1, 2, 4])
def test_parts_of_every_size(elements: int) -> None:
    kernel = swizzle(parse_kernel(TEXT), "a_s", elements)
    a = np.arange(16, dtype=np.float32)
    arrays = {"a": a, "dst": np.zeros_like(a)}
    run(kernel, arrays)
    assert np.array_equal(arrays["dst"].reshape(4, 4), a.reshape(4, 4).T)


@pytest.mark.parametrize("elements", [0, -1, 3, 8])
def test_parts_that_are_not_legal(elements: int) -> None:
    with pytest.raises(ConfigError, match=f"swizzle: parts of {elements} elements; legal"):
        swizzle(parse_kernel(TEXT), "a_s", elements)
