"""Values of indices and conditions: of numbers, of arrays of them, and by Python's own arithmetic."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from convsmith.arith.evaluate import evaluate, holds
from convsmith.arith.simplify import simplify
from convsmith.ir.index import Cond, Index, Var, conj, eq, floordiv, maximum, minimum, mod, quotient
from convsmith.ir.index import product as index_product

A, B, C = Var("a"), Var("b"), Var("c")
POINTS = list(product(range(-4, 5), range(-3, 4), (1, 2, 5)))
CASES = [
    (A * 2 - B + 3, lambda a, b, c: a * 2 - b + 3), (floordiv(A + B, 3), lambda a, b, c: (a + b) // 3),
    (mod(A - B, 4), lambda a, b, c: (a - b) % 4), (minimum(A, B, C * 2), lambda a, b, c: min(a, b, c * 2)),
    (maximum(A - 1, B, C), lambda a, b, c: max(a - 1, b, c)), (quotient(A + 7, C), lambda a, b, c: (a + 7) // c),
    (index_product(index_product(A, B), C), lambda a, b, c: a * b * c), (A >= B, lambda a, b, c: a >= b),
    (eq(A, B), lambda a, b, c: a == b), (conj((A >= 0, B >= 1, C < 3)), lambda a, b, c: a >= 0 and b >= 1 and c < 3),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_arrays_and_numbers_agree(number: int) -> None:
    e, right = CASES[number]
    a, b, c = (np.array(column) for column in zip(*POINTS))

    def value(values: dict[Var, object]) -> object:
        return evaluate(e, values) if isinstance(e, Index) else holds(e, values)

    truth = [right(*point) for point in POINTS]
    assert [value(dict(zip((A, B, C), point))) for point in POINTS] == truth
    assert np.array_equal(np.asarray(value({A: a, B: b, C: c})), truth)


@pytest.mark.parametrize("ranges", [(0, 0), (-1, 0), (0, 1), (2, 3), (-2, 2)])
def test_equalities(ranges: tuple[int, int]) -> None:
    conditions: list[Cond] = [eq(A, 0), eq(A * 2, B), eq(A + B, 1), eq(mod(A, 2), 0), eq(floordiv(A, 2), B)]
    known = {A: ranges, B: (0, 1)}
    for cond in conditions:
        simple = simplify(cond, known)
        for a, b in product(range(ranges[0], ranges[1] + 1), (0, 1)):
            assert holds(simple, {A: a, B: b}) == holds(cond, {A: a, B: b}), (cond, simple, a, b)
