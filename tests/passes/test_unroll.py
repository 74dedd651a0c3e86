"""Unrolled kernels compute what they did; names that go away have the value of their own scope, and no other."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.walk import loops_of
from convsmith.passes.unroll import unroll

HEAD = "kernel k(a: f32[64], d: f32[64])\n"
KERNELS = {
    "constant": """
  for i in 0 .. 3 #unrolled:
    let j = i * 2:
      d[j + 1] = a[j] + a[j // 2 + 3]
""",
    "siblings": """
  let j = 1:
    d[j + 4] = a[j % 2 + j]
  let j = 2:
    d[j + 4] = a[j % 2 + j]
""",
    "varying-then-constant": """
  for n in 0 .. 3:
    let j = n * 3:
      d[j + 20] = a[j * 2 + n]
    let j = 2:
      d[j + 20] = a[j * 2 + n]
    d[n] = a[n + 1]
""",
    "constant-then-varying": """
  for n in 0 .. 3:
    let j = 2:
      d[j + 20] = a[j * 2 + n]
    let j = n * 3:
      d[j + 20] = a[j * 2 + n]
""",
    "loop-then-constant": """
  for j in 0 .. 3:
    d[j + 20] = a[j * 2]
  let j = 7:
    d[j + 20] = a[j * 2]
  for j in 4 .. 6 #unrolled:
    d[j + 20] = a[j * 2] + a[j // 2]
  for j in 9 .. 11:
    d[j + 20] = a[j * 2] + a[j // 2]
""",
    "loop-then-constant-in-another": """
  for i in 0 .. 2 #unrolled:
    for j in 0 .. 3:
      d[j + i * 8] = a[j * 2 + i]
    for j in 4 .. 6 #unrolled:
      d[j + i * 8] = a[j * 2 + i]
    let j = 7:
      d[j + i * 8] = a[j * 2 + i]
""",
    "in-a-division": """
  for i in 0 .. 4 #unrolled:
    for n in 0 .. 3:
      let j = i // 2:
        if (n + i) % 2 + j >= 1:
          d[(n + j) // 2 * 8 + i + j] = a[max(n, i) + j * 4]
      d[(n + i) // 2 + 40] = a[min(n, i) + 8]
""",
    "from-below": """
  for i in -2 .. 2 #unrolled:
    for j in i .. 2 #unrolled:
      d[i * 4 + j + 16] = a[i - j + 8]
""",
    "never": """
  for i in 3 .. 3 #unrolled:
    d[i] = a[i]
  d[5] = a[i0 + 3] + a[6]
""".replace("i0 + ", ""),
}


@pytest.mark.parametrize("name", KERNELS)
def test_unrolled_kernels_compute_the_same(name: str) -> None:
    with interning():
        kernel = parse_kernel(HEAD + KERNELS[name].lstrip("\n"))
        made = unroll(kernel)
        assert all(loop.kind != "unrolled" for loop in loops_of(made.body))
        assert made is not kernel
        assert_same_results(kernel, made)


def test_iterations_run_in_their_order() -> None:
    kernel = parse_kernel(HEAD + "  for i in 0 .. 3 #unrolled:\n    d[i + 1] = d[i] + a[i]\n    d[i] = d[i + 1]\n")
    assert_same_results(kernel, unroll(kernel))


@pytest.mark.parametrize("budget", [5, 6])
def test_the_budget_counts_statements(budget: int) -> None:
    body = "  for i in 0 .. 3 #unrolled:\n    for j in 0 .. 2 #unrolled:\n      d[i] = a[j]\n"
    kernel = parse_kernel(HEAD + body)
    if budget == 6:
        assert_same_results(kernel, unroll(kernel, budget=budget))
        return
    with pytest.raises(ConfigError, match="more than 5 statements; loops i, j are too long") as error:
        unroll(kernel, budget=budget)
    assert error.value.code == "unroll-budget"
