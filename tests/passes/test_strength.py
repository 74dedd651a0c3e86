"""Pointers that a loop carries start where its first iteration accesses, and step with it."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.ir.parse import parse_kernel
from convsmith.passes.strength import strength_reduce

HEAD = "kernel k(a: f32[64], d: f32[64])\n"


@pytest.mark.parametrize("lo", [0, 1, 3])
@pytest.mark.parametrize("access", ["i * 3 + 2", "i * 4 + j", "j * 8 - i + 6", "i // 2 + i", "(i + j) // 2 + i", "i"])
def test_loops_from_elsewhere(lo: int, access: str) -> None:
    body = f"  for j in 0 .. 3:\n    for i in {lo} .. 6:\n      d[j * 16 + i] = a[{access}] + d[i * 2 + 1]\n"
    kernel = parse_kernel(HEAD + body)
    made = strength_reduce(kernel)
    assert "carrying" in str(made)
    assert_same_results(kernel, made)


def test_a_loop_within_moves_what_it_carries() -> None:
    loops = "  for n in 1 .. 3:\n    for i in n .. 5:\n      for j in 1 .. 3:\n"
    kernel = parse_kernel(f"{HEAD}{loops}        d[n * 20 + i * 4 + j * 2] = a[i * 8 + j + n]\n")
    assert_same_results(kernel, strength_reduce(kernel))


def test_parallel_and_unrolled_loops_carry_nothing() -> None:
    for kind in ("parallel", "unrolled"):
        kernel = parse_kernel(f"{HEAD}  for i in 0 .. 3 #{kind}:\n    d[i * 2] = a[i]\n")
        assert strength_reduce(kernel) is kernel


def test_no_loop_carries_a_pointer_to_an_array_that_it_allocates() -> None:
    loops = "  for n in 1 .. 3:\n    alloc t: f32[32] @cache:\n"
    filled = "      for i in 0 .. 32:\n        t[i] = a[i]\n"
    read = "      for i in 0 .. 4:\n        d[n * 8 + i] = t[n * 4 + i * 2]\n"
    kernel = parse_kernel(f"{HEAD}{loops}{filled}{read}")
    made = strength_reduce(kernel)
    assert "t.i: t = n * 4" in str(made) and "t.n" not in str(made)
    assert_same_results(kernel, made)
