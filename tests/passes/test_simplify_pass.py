"""Ranges of loops and names decide conditions within their scope, and nowhere else."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.passes.simplify import simplify

HEAD = "kernel k(a: f32[64], d: f32[64])\n"
BODIES = {
    "last-value": "  for i in 0 .. 5:\n    if i - 4 >= 0:\n      d[i] = a[i]\n    d[i + 9] = a[i // 4 + 6]\n",
    "first-value": "  for i in 1 .. 5:\n    if i - 2 >= 0:\n      d[i] = a[(i - 1) // 4]\n",
    "varying": "  for i in 0 .. 5:\n"
               "    for j in i .. min(i + 3, 6):\n      if j - 5 >= 0:\n        d[j] = a[max(i, j)]\n",
    "one-after-the-other": "  for i in 0 .. 3:\n    d[i] = a[i // 3]\n  for i in 0 .. 7:\n    d[i + 9] = a[i // 3]\n",
    "same-statement": "  for i in 0 .. 3:\n    d[i] = a[i // 3]\n  for i in 0 .. 7:\n    d[i] = a[i // 3]\n",
    "in-another": "  for i in 0 .. 2:\n    for j in 0 .. 3:\n      d[i] = a[j // 3]\n"
                  "  for j in 3 .. 9:\n    d[j] = a[j // 3]\n",
    "names": "  for i in 0 .. 6:\n    let h = i // 2:\n      if h - 2 >= 0:\n        d[i] = a[h]\n    let h = i:\n"
             "      if h - 3 >= 0:\n        d[i + 9] = a[h]\n",
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_conditions_within_ranges(name: str) -> None:
    with interning():
        kernel = parse_kernel(HEAD + BODIES[name])
        assert_same_results(kernel, simplify(kernel))


@pytest.mark.parametrize("lo", [-1, 0, 3])
@pytest.mark.parametrize("turns", [0, 1, 2])
def test_loops_of_one_iteration(lo: int, turns: int) -> None:
    loops = f"  for i in {lo} .. {lo + turns}:\n    for j in i .. i + {turns}:\n"
    kernel = parse_kernel(f"{HEAD}  d[60] = 5.0\n{loops}      d[i + j + 9] = a[j + 2]\n")
    made = simplify(kernel, keep_unit_loops=False)
    assert ("for " in str(made)) == (turns == 2)
    assert_same_results(kernel, made)
