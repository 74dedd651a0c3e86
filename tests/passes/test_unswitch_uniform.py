"""Conditions within a loop that is to become a vector are asked once where its iterations agree, and stay elsewhere."""

from __future__ import annotations

import pytest

from convsmith.ir.parse import parse_kernel
from convsmith.passes.unswitch_uniform import unswitch_uniform

TEXT = """kernel k(a: f32[64], dst: f32[64])
  for i in 0 .. 3:
    for j in 0 .. 8:
      for l in 0 .. 4:
        if {cond} >= 0:
          dst[i * 4 + l] = a[i * 4 + l]
"""


@pytest.mark.parametrize("cond", [
    "-i * 4 - j * 2 - l + 7", "-i * 4 - l + 6", "i * 4 - l * 2 + 7", "-i * 4 - l + j - 1",
])  # fmt: skip
def test_conditions_that_differ_stay(cond: str) -> None:
    kernel = parse_kernel(TEXT.format(cond=cond))
    assert str(unswitch_uniform(kernel, "l")) == str(kernel)


@pytest.mark.parametrize("cond, once", [("-i * 4 - l + 7", "-i + 1"), ("i * 4 + l - 4", "i - 1"), ("3 - i", "3 - i")])
def test_conditions_that_agree_are_asked_once(cond: str, once: str) -> None:
    kernel = parse_kernel(TEXT.format(cond=cond))
    assert str(unswitch_uniform(kernel, "l")) == str(parse_kernel(TEXT.format(cond=once)))
