"""Names for index expressions: given where an expression holds for all uses, taken from no other variable."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from oracles import assert_same_results

from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.passes.cse import cse
from convsmith.passes.hoist import hoist

HEAD = "kernel k(a: f32[64], d: f32[64])\n"
BODIES = {
    "within": "  for i in 0 .. 4:\n    for j in 0 .. 4:\n      d[(i + j) // 2 + i * 8] = a[(i + j) // 2] + a[i // 2]\n",
    "siblings": "  for i in 0 .. 4:\n    for j in 0 .. i // 2:\n      d[i] = a[j]\n    for j in 0 .. i // 2 + 1:\n"
                "      d[i + 8] = a[j // 2 * 3]\n",
    "lets": "  for i in 0 .. 4:\n    let h = i % 3:\n      d[h // 2 + i * 4] = a[h // 2 + i % 3]\n",
    "conditions": "  for i in 0 .. 8:\n    for j in 0 .. 3:\n      if i // 3 - j >= 0:\n        d[i] = a[i // 3 * j]\n",
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("run_pass", [cse, hoist, lambda kernel: hoist(cse(kernel))], ids=["cse", "hoist", "both"])
def test_names_compute_the_same(run_pass: Callable[[Kernel], Kernel], name: str) -> None:
    kernel = parse_kernel(HEAD + BODIES[name])
    assert_same_results(kernel, run_pass(kernel))


def test_what_occurs_once_has_no_name() -> None:
    kernel = parse_kernel(f"{HEAD}  for i in 0 .. 4:\n    d[i // 2] = a[i % 3]\n    d[i + 8] = a[i]\n")
    assert cse(kernel) is kernel


def test_a_value_that_a_statement_shares_counts_once() -> None:
    kernel = parse_kernel(f"{HEAD}  for i in 0 .. 4:\n    d[i] = a[i // 2] * 2.0 + a[i // 2] * 2.0\n")
    text = str(cse(parse_kernel(f"{HEAD}  for i in 0 .. 4:\n    d[i] = a[i // 2] * 2.0 + a[i // 2 + 1] * 2.0\n")))
    assert "let com0 = i // 2" in text
    product = kernel.body.body.value  # type: ignore[attr-defined]
    assert product.a is not product.b or cse(kernel) is kernel


def test_a_name_that_is_taken_is_not_given() -> None:
    text = "  for com0 in 0 .. 4:\n    for i in 0 .. 4:\n      d[com0 * 8 + i // 2] = a[i // 2 + com0]\n"
    kernel = parse_kernel(HEAD + text)
    made = cse(kernel)
    assert "let com1 = i // 2" in str(made)
    assert_same_results(kernel, made)
