"""Sums that depend on each other, or write the same element, are not joined."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.passes.sum_together import sum_together


def two_sums(first: str, second: str, start: str = "0.0", add: str = "total[] + sum(a[@]{4})") -> Kernel:
    """Two write-backs, each with its last statement; ``@`` stands for the place of what is added up."""
    text = "kernel k(a: f32[16], b: f32[16], c: f32[16])\n"
    for n, store in enumerate((first, second)):
        text += f"  alloc total: f32[] @register:\n    total[] = {start}\n"
        text += f"    total[] = {add.replace('@', str(4 * n))}\n    {store}\n"
    return parse_kernel(text)


def test_neighbours_are_joined() -> None:
    assert "b[1]{2} = sums(a[0]{4}, a[4]{4})" in str(sum_together(two_sums("b[1] = total[]", "b[2] = total[]"), 4))


JOINED = {
    "reversed": ("b[4] = total[]", "b[2] = total[]", {}),
    "operands-of-each": ("b[1] = total[] + c[3]", "b[2] = total[] + c[9]", {}),
    "one-operand": ("b[1] = max(total[] * c[3], 1.0)", "b[2] = max(total[] * c[3], 1.0)", {}),
    "products": ("b[1] = total[]", "b[2] = total[]", {"add": "total[] + sum(a[@]{4} * c[@]{4})"}),
}


@pytest.mark.parametrize("name", JOINED)
def test_what_differs_by_distances_is_joined(name: str) -> None:
    first, second, rest = JOINED[name]
    kernel = two_sums(first, second, **rest)
    made = sum_together(kernel, 4)
    assert "alloc" not in str(made) and "sums(" in str(made)
    assert_same_results(kernel, made)


READS = "total[] + sum(b[@]{4})"
LEFT = {
    "reads-what-the-first-wrote": ("b[1] = total[] + b[0]", "b[2] = total[] + b[1]", {}),
    "adds-up-what-the-first-wrote": ("b[5] = total[]", "b[6] = total[]", {"add": READS}),
    "adds-up-a-product-with-what-the-first-wrote": (
        "b[5] = total[]", "b[6] = total[]", {"add": "total[] + sum(a[@]{4} * b[@]{4})"}
    ),
    "same-element": ("b[1] = total[]", "b[1] = total[]", {}),
    "another-buffer": ("b[1] = total[]", "c[2] = total[]", {}),
    "does-not-start-at-zero": ("b[1] = total[]", "b[2] = total[]", {"start": "1.0"}),
    "takes-the-greatest": ("b[1] = total[]", "b[2] = total[]", {"add": "max(total[], sum(a[@]{4}))"}),
    "multiplies": ("b[1] = total[]", "b[2] = total[]", {"add": "total[] * sum(a[@]{4})"}),
    "constants-alone": ("b[1] = 1.0", "b[2] = 2.0", {}),
    "other-constants": ("b[1] = total[] + 1.0", "b[2] = total[] + 2.0", {}),
    "other-operators": ("b[1] = total[] + c[1]", "b[2] = total[] * c[2]", {}),
    "other-functions": ("b[1] = round(total[])", "b[2] = floor(total[])", {}),
    "other-kinds": ("b[1] = total[] + c[1]", "b[2] = total[] + 1.0", {}),
    "other-operands": ("b[1] = total[] + c[1]", "b[2] = total[] + a[2]", {}),
    "other-comparisons": (
        "b[1] = where(total[] < c[1], 1.0, 2.0)", "b[2] = where(total[] <= c[2], 1.0, 2.0)", {}
    ),
    "sides-exchanged": ("b[1] = total[] - c[1]", "b[2] = c[2] - total[]", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_these_are_left(name: str) -> None:
    first, second, rest = LEFT[name]
    kernel = two_sums(first, second, **rest)
    assert sum_together(kernel, 4) is kernel


def test_places_that_vary_are_left() -> None:
    kernel = parse_kernel("""kernel k(a: f32[16], b: f32[16])
  for i in 0 .. 2:
    alloc total: f32[] @register:
      total[] = 0.0
      total[] = total[] + sum(a[0]{4})
      b[i] = total[]
    alloc total: f32[] @register:
      total[] = 0.0
      total[] = total[] + sum(a[4]{4})
      b[i * 2 + 4] = total[]
""")
    assert sum_together(kernel, 4) is kernel


@pytest.mark.parametrize("lanes", [2, 3, 4])
def test_rows_are_cut_at_the_lanes(lanes: int) -> None:
    text = "kernel k(a: f32[24], b: f32[5])\n"
    for n in range(5):
        text += f"  alloc total: f32[] @register:\n    total[] = 0.0\n    total[] = total[] + sum(a[{4 * n}]{{4}})\n"
        text += f"    b[{n}] = total[] * 2.0\n"
    kernel = parse_kernel(text)
    made = sum_together(kernel, lanes)
    assert_same_results(kernel, made)
    assert str(made).count("sums(") == 5 // lanes + (5 % lanes > 1)
