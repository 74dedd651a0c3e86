"""Intervals against every value: they hold all, and are exact where the variables of a sum are distinct."""

from __future__ import annotations

from itertools import product

import pytest

from convsmith.arith.evaluate import evaluate
from convsmith.arith.ranges import Unbounded, interval, try_interval, upper_bound
from convsmith.ir.index import Index, Var, as_index, floordiv, maximum, minimum, mod, quotient
from convsmith.ir.index import product as index_product

A, B, C = Var("a"), Var("b"), Var("c")
ENDS = [(-3, 2), (-2, -1), (0, 0), (1, 4), (-1, 5), (-4, 0)]
"""Ranges of every sign, and across it."""

EXACT: dict[str, Index] = {
    "sum": A * 2 - B * 3 + 1, "variable": A, "constant": A * 0 + 7, "product": index_product(A, B),
    "product of three": index_product(index_product(A, B), C), "product in a sum": index_product(A, B) * -2 + 3,
    "least": minimum(A, B, 2), "greatest": maximum(A, B * -1, 0), "division": floordiv(A * 3 - B + 1, 2),
    "negative": -A, "division of one": floordiv(A, 3),
}  # fmt: skip
SAFE: dict[str, Index] = {
    "modulo": mod(A * 3 + B, 4), "modulo of one": mod(A, 3), "twice": index_product(A, A) - A,
    "difference of divisions": floordiv(A, 2) - mod(A, 2) * 3, "quotient of a sum": quotient(A * 2 + B, C),
}


def values(e: Index, ranges: dict[Var, tuple[int, int]]) -> list[int]:
    every = product(*(range(low, high + 1) for low, high in ranges.values()))
    return [evaluate(e, dict(zip(ranges, at))) for at in every]


@pytest.mark.parametrize("name", EXACT)
def test_exact(name: str) -> None:
    for a, b in product(ENDS, ENDS):
        ranges = {A: a, B: b, C: (-2, 1)}
        found = values(EXACT[name], ranges)
        assert interval(EXACT[name], ranges) == (min(found), max(found)), ranges


@pytest.mark.parametrize("name", SAFE)
def test_safe(name: str) -> None:
    for a, b in product(ENDS, ENDS):
        ranges = {A: a, B: b, C: (1, 3)}
        found = values(SAFE[name], ranges)
        low, high = interval(SAFE[name], ranges)
        assert low <= min(found) and max(found) <= high, ranges


def test_a_modulo_within_one_turn_is_exact() -> None:
    assert interval(mod(A, 5), {A: (6, 8)}) == (1, 3)
    assert interval(mod(A, 5), {A: (-4, -2)}) == (1, 3)
    assert interval(mod(A, 5), {A: (4, 5)}) == (0, 4)


def test_a_variable_without_a_range() -> None:
    for e in (A, A + 1, mod(A * 2 + B, 3), minimum(A, 3)):
        with pytest.raises(Unbounded):
            interval(e, {B: (0, 1)})
        assert try_interval(e, {B: (0, 1)}) is None
    assert try_interval(B * 2, {B: (0, 1)}) == (0, 2)


def test_a_minimum_is_bounded_by_its_known_arguments() -> None:
    known = {A: (0, 5)}
    assert upper_bound(minimum(A + 2, B * -3 + 7), known) == 7
    assert upper_bound(minimum(A + 2, B, A * 3 - 9), known) == 6
    assert upper_bound(minimum(A + 2, B) * 2 - A, known) == 14
    assert upper_bound(as_index(4), known) == 4
    assert upper_bound(A * -2 + 1, known) == 1
    for e in (B, minimum(B, B * 2), minimum(A, B) * -1, A + B):
        with pytest.raises(Unbounded):
            upper_bound(e, known)
