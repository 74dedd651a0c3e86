"""Copies through tensor maps: every box, inside and outside of the tensor, element by element."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from convsmith.diag.errors import InternalError
from convsmith.interp import run
from convsmith.ir.parse import parse_kernel

BASE, PLACE, STRIDES, SIZES, BOX = 5, 2, (2, 9), (4, 3), (3, 2)


def copied(at: tuple[int, int], size: int = 8) -> np.ndarray:
    """The shared array after a copy to its element ``PLACE``, of a tensor that begins at element ``BASE``."""
    kernel = parse_kernel(
        f"kernel k(a: f32[40], c: f32[{size}])\n  alloc s: f32[{size}] @shared:\n    for i in 0 .. 1 #pipelined:\n"
        f"      tensor s[{PLACE}] = a[{BASE}] dims({SIZES[0]}:{STRIDES[0]}, {SIZES[1]}:{STRIDES[1]}) "
        f"box({BOX[0]}, {BOX[1]}) at({at[0]}, {at[1]})\n      for w in 0 .. 1 #warp:\n        for l in 0 .. 6 #lane:\n"
        f"          c[l + {PLACE}] = s[l + {PLACE}]\n"
    )
    arrays = {"a": np.arange(1, 41, dtype=np.float32), "c": np.zeros(size, np.float32)}
    run(kernel, arrays)
    return arrays["c"]


@pytest.mark.parametrize("at", list(product(range(-3, 5), range(-2, 4))))
def test_elements_beyond_the_tensor_are_zero(at: tuple[int, int]) -> None:
    wanted = np.zeros(8, np.float32)
    for n, (row, channel) in enumerate(product(range(BOX[1]), range(BOX[0]))):
        x, y = at[0] + channel, at[1] + row
        if 0 <= x < SIZES[0] and 0 <= y < SIZES[1]:
            wanted[PLACE + n] = 1 + BASE + x * STRIDES[0] + y * STRIDES[1]
    np.testing.assert_array_equal(copied(at), wanted)


def test_a_copy_beyond_shared_memory_is_an_error() -> None:
    with pytest.raises(InternalError, match="copies 6 elements to element 2 of 7"):
        copied((0, 0), 7)
