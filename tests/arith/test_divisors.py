"""The result of `divisor_of` divides the index for all values of its variables."""

from __future__ import annotations

import random

import pytest

from convsmith.arith.divisors import divisor_of
from convsmith.arith.evaluate import evaluate
from convsmith.ir.index import Var, as_index
from convsmith.ir.parse import parse_index

CASES = {
    "0": 0, "12": 12, "i * 8 + 4": 4, "i * 8 + j * 12": 4, "(i * 6 + 3) % 9": 3, "i * 4 % 6 + 8": 2, "i // 4": 1,
    "i // 4 * 16 + 32": 16, "min(i * 6, j * 4)": 2, "max(i * 6 + 9, 12)": 3, "v * 2 + i * 24": 24, "v + 6": 6,
    "i + 1": 1,
}  # fmt: skip
"""Index text, with divisors; a multiple of 12 is assigned to v."""


@pytest.mark.parametrize("text", CASES)
def test_it_divides_the_index(text: str) -> None:
    index, rng = parse_index(text), random.Random(5)
    divisor = divisor_of(index, {Var("v"): 12})
    assert divisor == CASES[text]
    for _ in range(50):
        env = {Var("i"): rng.randint(-20, 20), Var("j"): rng.randint(-20, 20), Var("v"): 12 * rng.randint(-9, 9)}
        assert evaluate(index, env) % (divisor or 1) == 0
    assert divisor_of(as_index(0), {}) == 0
