"""Pixels that multiply the same elements, by copies of the packed operand that lie further on."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.diag.errors import ConfigError
from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.passes.share_terms import share_terms


def nest(pixels: int, terms: int, taps: int, step: int = 1) -> Kernel:
    return parse_kernel(f"""kernel k(a: u8[32], b_p: s8[{terms}, 2], c: s32[{pixels}, 2])
  for i in 0 .. {pixels}:
    for l in 0 .. 2:
      for q in 0 .. {terms}:
        c[i, l] = c[i, l] + cast(s32, a[i * {step} + q]) * cast(s32, b_p[q, l])
pack k_pack_b(b: s8[{taps}, 2], b_p: s8[{terms}, 2])
  for q in 0 .. {terms}:
    for l in 0 .. 2:
      b_p[q, l] = (b[q, l] if -q + {taps - 1} >= 0 else s8(0))
""")


def result(kernel: Kernel) -> np.ndarray:
    """The sums of random integers, after the operand is packed."""
    (pack,) = kernel.packs
    memory = {
        b.name: np.random.default_rng(0).integers(0, 9, b.size).astype(b.dtype.numpy)
        for b in (*kernel.params, *pack.params[:1])
    }
    memory["c"][:] = 0
    run(pack, {b.name: memory[b.name] for b in pack.params})
    run(kernel, {b.name: memory[b.name] for b in kernel.params})
    assert memory["c"].any()
    return memory["c"]


@pytest.mark.parametrize(
    ("pixels", "terms", "taps", "count", "step"), [(2, 4, 3, 2, 1), (4, 4, 3, 2, 1), (3, 4, 2, 3, 1), (5, 4, 2, 2, 2)]
)
def test_pixels_share_elements(pixels: int, terms: int, taps: int, count: int, step: int) -> None:
    """Groups of pixels, of which the last one may be short, read the elements of their first pixel alone."""
    kernel = nest(pixels, terms, taps, step)
    made = share_terms(kernel, "b_p", "i", "q", count, step, "l")
    assert f"i // {count}" in str(made)
    assert made.params[1].shape == (terms, count, 2)
    np.testing.assert_array_equal(result(made), result(kernel))


@pytest.mark.parametrize(
    ("kernel", "count", "step", "text"),
    [
        (nest(2, 4, 4), 2, 1, "no term that is zero|need 5 terms"),
        (nest(3, 4, 3), 3, 1, "need 5 terms"),
        (nest(2, 4, 2, 2), 2, 1, "by 1 steps"),
    ],
    ids=["no room", "too many pixels", "another step"],
)
def test_what_is_refused(kernel: Kernel, count: int, step: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        share_terms(kernel, "b_p", "i", "q", count, step)
