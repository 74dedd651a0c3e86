"""The reference of gemmlowp's products against fractions, entry by entry, and what its arguments may be."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import floor

import numpy as np
import pytest

from convsmith.diag.errors import UsageError
from convsmith.problem.low_precision import (
    FULL,
    NEAREST,
    centred,
    check_bits,
    check_reach,
    check_rounding,
    check_seed,
    drawn,
    greatest,
    low_precision_reference,
    requantised,
)


def nearest(x: Fraction) -> int:
    """Ties away from zero."""
    return floor(abs(x) + Fraction(1, 2)) * (1 if x >= 0 else -1)


def entry(row: list[int], column: list[int], offsets: tuple[int, int], bits: tuple[int, int], rest: int) -> int:
    """One entry of a product of u8 matrices; every rounding term is `rest`."""
    tops = [2**b - 1 for b in bits]
    left, right = (
        [v if b == 8 else (v * top + rest) // 255 for v in values] for values, b, top in zip((row, column), bits, tops)
    )
    sums = sum(a * b for a, b in zip(left, right))
    return (
        nearest(Fraction(sums * 255 * 255, tops[0] * tops[1]))
        + nearest(Fraction(sum(left) * offsets[1] * 255, tops[0]))
        + nearest(Fraction(sum(right) * offsets[0] * 255, tops[1]))
        + offsets[0] * offsets[1] * len(row)
    )


@pytest.mark.parametrize("bits", [(8, 8), (7, 5), (8, 5), (7, 8), (1, 1)])
@pytest.mark.parametrize("types", list(product((np.uint8, np.int8), repeat=2)))
def test_products(bits: tuple[int, int], types: tuple[type, type]) -> None:
    """Signed entries are unsigned ones with an offset that is 128 less."""
    rng = np.random.default_rng(0)
    rows, columns = rng.integers(0, 256, (3, 7)), rng.integers(0, 256, (7, 4))
    offsets = rng.integers(-200, 200, 3), rng.integers(-200, 200, 4)
    below = [128 * (t is np.int8) for t in types]
    lhs, rhs = ((x - b).astype(t) for x, b, t in zip((rows, columns), below, types))
    found = low_precision_reference(lhs, rhs, offsets[0], offsets[1], (), bits)
    for m, n in product(range(3), range(4)):
        own = int(offsets[0][m]) - below[0], int(offsets[1][n]) - below[1]
        assert found[m, n] == entry(rows[m].tolist(), columns[:, n].tolist(), own, bits, NEAREST), (m, n)


def test_probabilistic_rounding_draws_lhs_first() -> None:
    rng = np.random.default_rng(5)
    left, right = (rng.integers(0, FULL, shape, np.int64) for shape in ((2, 3), (3, 4)))
    found = drawn(((2, 3), (3, 4)), (7, 5), 5)
    assert np.array_equal(found[0], left) and np.array_equal(found[1], right)  # type: ignore[arg-type]
    one, none = drawn(((2, 3), (3, 4)), (7, 8), 5)
    assert np.array_equal(one, left) and none is None  # type: ignore[arg-type]
    lhs, rhs = np.full((2, 3), 200, np.uint8), np.full((3, 4), 77, np.uint8)
    sums = requantised(centred(lhs), 7, left) @ requantised(centred(rhs), 5, right)
    expected = [[nearest(Fraction(int(x) * 255 * 255, 127 * 31)) for x in row] for row in sums]
    assert low_precision_reference(lhs, rhs, bits=(7, 5), rounding="probabilistic", seed=5).tolist() == expected


def test_entries_of_fewer_bits() -> None:
    values = np.arange(256)
    for bits in range(1, 9):
        assert greatest(bits) == 2**bits - 1
        found = requantised(values, bits)
        assert found.tolist() == [floor(Fraction(int(v) * (2**bits - 1), 255) + Fraction(1, 2)) for v in values]
    assert centred(np.array([-128, 0, 127], np.int8)).tolist() == [0, 128, 255]
    assert centred(np.array([0, 255], np.uint8)).tolist() == [0, 255]


@pytest.mark.parametrize("bits", [(0, 8), (8, 9), (8,), (8, 8, 8), 8, (True, 8), ("8", 8), None])
def test_bits_that_are_not_legal(bits: object) -> None:
    with pytest.raises(UsageError, match="expected the bits of lhs and of rhs, each 1 to 8"):
        check_bits(bits)


def test_arguments() -> None:
    assert check_bits([1, 8]) == (1, 8) and check_rounding("nearest") == "nearest"
    assert check_seed(None) is None and check_seed(np.int8(3)) == check_seed(3) == 3 and check_seed(0) == 0
    for seed in (-1, True, 1.0, "3"):
        with pytest.raises(UsageError, match="expected a whole number of at least 0"):
            check_seed(seed)
    with pytest.raises(UsageError, match="rounding='up' is not legal"):
        check_rounding("up")


@pytest.mark.parametrize(
    ("types", "offsets", "bits", "sizes"),
    [
        (("u8", "u8"), (0, 0), (8, 8), (255, 255)), (("s8", "u8"), (0, 0), (8, 8), (128, 255)),
        (("u8", "s8"), (-100, 0), (8, 8), (155, 128)), (("u8", "u8"), (300, -400), (8, 8), (555, 400)),
        (("s8", "s8"), (0, -100), (8, 8), (128, 228)), (("s8", "u8"), (0, 0), (7, 5), (255, 255)),
        (("s8", "u8"), (-300, 10), (7, 5), (428, 265)),
    ],
)  # fmt: skip
def test_sums_that_may_overflow(
    types: tuple[str, str], offsets: tuple[int, int], bits: tuple[int, int], sizes: tuple[int, int]
) -> None:
    deepest = (2**31 - 1) // (sizes[0] * sizes[1])
    names = {"u8": np.uint8, "s8": np.int8}
    own = tuple(np.array([o]) for o in offsets)
    for depth in (deepest, deepest + 1):
        lhs, rhs = np.empty((0, depth), names[types[0]]), np.empty((depth, 0), names[types[1]])
        if depth == deepest:
            check_reach(lhs, rhs, own, bits)  # type: ignore[arg-type]
            continue
        with pytest.raises(UsageError, match=f"legal is up to 2147483647, such as a depth of {deepest}$"):
            check_reach(lhs, rhs, own, bits)  # type: ignore[arg-type]


def test_offsets_of_no_rows_reach_nothing() -> None:
    empty = np.empty((0, 10**9), np.uint8)
    check_reach(empty, np.empty((10**9, 0), np.uint8), (np.empty(0), np.array([0])))
