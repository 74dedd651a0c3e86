"""Names for index expressions: given where an expression holds for all uses, taken from no other variable."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.ir.index import Var, as_index
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Let
from convsmith.ir.walk import statements_of
from convsmith.passes.lets import let
from convsmith.passes.name_indices import name_indices

HEAD = "kernel k(a: f32[64], d: f32[64])\n"
BODIES = {
    "within": "  for i in 0 .. 4:\n    for j in 0 .. 4:\n      d[(i + j) // 2 + i * 8] = a[(i + j) // 2] + a[i // 2]\n",
    "siblings": "  for i in 0 .. 4:\n    for j in 0 .. i // 2:\n      d[i] = a[j]\n    for j in 0 .. i // 2 + 1:\n"
                "      d[i + 8] = a[j // 2 * 3]\n",
    "lets": "  for i in 0 .. 4:\n    let h = i % 3:\n      d[h // 2 + i * 4] = a[h // 2 + i % 3]\n",
    "conditions": "  for i in 0 .. 8:\n    for j in 0 .. 3:\n      if i // 3 - j >= 0:\n        d[i] = a[i // 3 * j]\n",
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_names_compute_the_same(name: str) -> None:
    kernel = parse_kernel(HEAD + BODIES[name])
    named = name_indices(kernel)
    assert named is not kernel
    assert_same_results(kernel, named)
    assert_same_results(kernel, name_indices(named))


def test_what_occurs_once_has_no_name() -> None:
    kernel = parse_kernel(f"{HEAD}  for i in 0 .. 4:\n    d[i // 2] = a[i % 3]\n    d[i + 8] = a[i]\n")
    assert name_indices(kernel) is kernel


def test_a_value_that_a_statement_shares_counts_once() -> None:
    kernel = parse_kernel(f"{HEAD}  for i in 0 .. 4:\n    d[i] = a[i // 2] * 2.0 + a[i // 2] * 2.0\n")
    several = parse_kernel(f"{HEAD}  for i in 0 .. 4:\n    d[i] = a[i // 2] * 2.0 + a[i // 2 + 1] * 2.0\n")
    assert "let com0 = i // 2" in str(name_indices(several))
    product = kernel.body.body.value  # type: ignore[attr-defined]
    assert product.a is not product.b or name_indices(kernel) is kernel


def test_a_name_that_is_taken_is_not_given() -> None:
    text = "  for com0 in 0 .. 4:\n    for i in 0 .. 4:\n      d[com0 * 8 + i // 2] = a[i // 2 + com0]\n"
    kernel = parse_kernel(HEAD + text)
    made = name_indices(kernel)
    assert "let com1 = i // 2" in str(made)
    assert_same_results(kernel, made)


def test_a_let_that_is_not_needed_is_left_out() -> None:
    i, j, t = Var("i"), Var("j"), Var("t")
    (store,) = statements_of(parse_kernel(f"{HEAD}  d[i * 2] = a[t]\n").body)
    assert let(j, t % 2, store) is store
    assert str(let(i, as_index(3), store)).strip() == "d[6] = a[t]"
    assert str(let(i, t, store)).strip() == "d[t * 2] = a[t]"
    assert isinstance(let(i, t // 2, store), Let)
