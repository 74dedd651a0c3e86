"""Sums that depend on each other, or write the same element, are not joined."""

from __future__ import annotations

import pytest

from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.passes.sum_together import sum_together


def two_sums(first: str, second: str, start: str = "0.0") -> Kernel:
    """Two write-backs, each with its last statement."""
    text = "kernel k(a: f32[8], b: f32[8])\n"
    for n, store in enumerate((first, second)):
        text += f"  alloc total: f32[] @register:\n    total[] = {start}\n"
        text += f"    total[] = total[] + sum(a[{4 * n}]{{4}})\n    {store}\n"
    return parse_kernel(text)


def test_neighbours_are_joined() -> None:
    assert "b[1]{2} = sums(a[0]{4}, a[4]{4})" in str(sum_together(two_sums("b[1] = total[]", "b[2] = total[]"), 4))


@pytest.mark.parametrize(
    ("first", "second", "start"),
    [
        ("b[1] = total[] + b[0]", "b[2] = total[] + b[1]", "0.0"),
        ("b[1] = total[]", "b[1] = total[]", "0.0"),
        ("b[1] = total[]", "b[2] = total[]", "1.0"),
    ],
    ids=["reads-what-the-first-wrote", "same-element", "does-not-start-at-zero"],
)
def test_these_are_left(first: str, second: str, start: str) -> None:
    kernel = two_sums(first, second, start)
    assert sum_together(kernel, 4) is kernel
