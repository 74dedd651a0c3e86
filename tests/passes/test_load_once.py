"""Elements that a thread loads once, and products that it adds in one instruction."""

from __future__ import annotations

from oracles import assert_same_results

from convsmith.ir.parse import parse_kernel
from convsmith.passes.form_fma import form_fma
from convsmith.passes.load_once import load_once

HEAD = "kernel k(a: f32[8], b: f32[4], c: f32[8])\n"


def test_what_the_nest_writes_stays() -> None:
    kernel = parse_kernel(f"{HEAD}  for i in 0 .. 4:\n    for j in 0 .. 3:\n      c[i] = c[i] + a[i] * b[j]\n")
    assert load_once(kernel, "c", ("i", "j")) is kernel
    assert_same_results(kernel, load_once(kernel, "a", ("i", "j")))


def test_a_load_that_may_be_outside_stays() -> None:
    term = "(a[i * 3] * b[j] if -i + 2 >= 0 else 0.0)"
    kernel = parse_kernel(f"{HEAD}  for i in 0 .. 4:\n    for j in 0 .. 2:\n      c[i] = c[i] + {term}\n")
    assert load_once(kernel, "a", ("i", "j")) is kernel


def test_an_absent_product_changes_no_sum() -> None:
    kernel = parse_kernel(f"{HEAD}  for i in 0 .. 4:\n    c[i] = c[i] + (a[i] * b[i] if i - 2 >= 0 else 0.0)\n")
    made = form_fma(kernel, ("f32",))
    assert "c[i] = (fma(a[i], b[i], c[i]) if i - 2 >= 0 else c[i])" in str(made)
    assert_same_results(kernel, made)
    assert form_fma(kernel, ("f64",)) is kernel
