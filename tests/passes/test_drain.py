"""Nests that write results from memory instead of registers, and nests that stay as they are."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.ir.verify import verify
from convsmith.passes.drain import drain

TEXT = """
kernel k(a: f32[5], dst: f32[5])
  alloc acc: f32[5] @{scope}:
    for i in 0 .. 5:
      acc[i] = a[i]
    for i in 0 .. 5:
      {store}
"""
OWN = ("dst[i] = acc[i]", "dst[i] = acc[i] * acc[i]", "if i - 1 >= 0:\n        dst[i] = acc[i] + a[4 - i]")
OTHERS = (
    "dst[i] = acc[i] * acc[4 - i]", "dst[i] = acc[4 - i] * acc[i]", "dst[i] = acc[4 - i]",
    "acc[i] = acc[i] + a[i]",
)


@pytest.mark.parametrize("store", OWN)
def test_results_of_own_elements_pass_through_memory(store: str) -> None:
    kernel = parse_kernel(TEXT.format(scope="register", store=store))
    new = drain(kernel, ("i",), "m")
    verify(new)
    assert "alloc acc_m: f32[5] @cache" in str(new)
    a = np.random.default_rng(0).normal(0, 1, 5).astype(np.float32)
    found, expected = ({"a": a, "dst": np.zeros(5, np.float32)} for _ in range(2))
    run(new, found)
    run(kernel, expected)
    assert np.array_equal(found["dst"], expected["dst"])


@pytest.mark.parametrize("store", OTHERS)
def test_nests_that_read_other_elements_stay(store: str) -> None:
    """Each of them, in whatever order they are read."""
    kernel = parse_kernel(TEXT.format(scope="register", store=store))
    assert str(drain(kernel, ("i",), "m")) == str(kernel)


def test_memory_stays() -> None:
    kernel = parse_kernel(TEXT.format(scope="cache", store=OWN[0]))
    assert str(drain(kernel, ("i",), "m")) == str(kernel)
