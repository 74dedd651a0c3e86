"""Plans of low-precision products: what tells them apart, and transposed products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convsmith.frontend.low_precision import _key, _Product
from convsmith.problem.low_precision import low_precision_sums
from convsmith.problem.output_stages import AppliedStep

A, B = np.zeros((2, 3), np.uint8), np.zeros((3, 4), np.uint8)


def key(lhs: Any = A, rhs: Any = B, left: Any = 0, right: Any = 0, stages: Any = (), bits: Any = (8, 8),
        words: Any = ("nearest", 0, "row", 1), out: Any = None) -> Any:  # fmt: skip
    return _key(lhs, rhs, left, right, stages, bits, words, out)


def test_what_tells_plans_apart() -> None:
    numbers = np.arange(4)
    keys = [
        key(), key(A.astype(np.int8)), key(np.asfortranarray(np.ones((2, 3), np.uint8))), key(left=1), key(left=1.0),
        key(left=True), key(right=1), key(right=numbers), key(right=numbers + 1), key(right=numbers.astype(np.int32)),
        key(right=numbers.reshape(1, 4)), key(stages=(("bias", numbers),)), key(stages=(("bias", numbers + 1),)),
        key(stages=(("clamp", 0, 5),)), key(stages=(("clamp", 0, 6),)), key(bits=(7, 5)), key(bits=(5, 7)),
        key(words=("probabilistic", 0, "row", 1)), key(words=("probabilistic", 1, "row", 1)),
        key(words=("nearest", 0, "column", 1)), key(words=("nearest", 0, "row", 2)),
        key(out=np.zeros((2, 4), np.int32)), key(out=np.zeros((4, 2), np.int32).T),
    ]  # fmt: skip
    assert all(k is not None for k in keys) and len(set(keys)) == len(keys)
    assert key(np.ones((2, 3), np.uint8), np.ones((3, 4), np.uint8)) == key()
    assert key(right=np.arange(4)) == key(right=numbers)
    assert key(words=("probabilistic", None, "row", 1)) is None  # drawn anew at each call
    assert key(lhs=[[1, 2, 3]]) is None and key(left=[]) is None


@pytest.mark.parametrize("bits", [(8, 8), (7, 5)])
def test_a_transposed_product_is_the_product_of_the_transposed(bits: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    lhs, rhs = rng.integers(0, 256, (3, 5), np.uint8), rng.integers(0, 256, (5, 4), np.uint8)
    left, right = np.arange(3).reshape(3, 1), np.arange(10, 14).reshape(1, 4)
    bias = AppliedStep("s32_add", (np.arange(12).reshape(3, 4),))
    row = AppliedStep("s32_add", (np.arange(4),))
    rests = (rng.integers(0, 255, (3, 5), np.uint8), None)
    product = _Product(lhs, rhs, left, right, (bias, row), "s32", bits, rests)
    other = product.transposed()
    shapes = [x.shape for x in (other.lhs, other.rhs, other.lhs_offset, other.rhs_offset)]
    assert shapes == [(4, 5), (5, 3), (4, 1), (1, 3)]
    assert [step.numbers[0].shape for step in other.steps] == [(4, 3), (4, 1)]

    def sums(p: _Product) -> np.ndarray:
        offsets = (p.lhs_offset.astype(np.int64), p.rhs_offset.astype(np.int64))
        total = low_precision_sums(p.lhs, p.rhs, offsets, p.bits, p.rests)
        for step in p.steps:
            total = total + step.numbers[0]
        return total

    np.testing.assert_array_equal(sums(other).T, sums(product))
    assert other.bits == bits[::-1] and other.rests[0] is None
