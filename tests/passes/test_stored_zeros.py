"""Packed operands that hold zeros in the place of absent elements, and copies of them as vectors."""

from __future__ import annotations

import pytest

from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.passes.derive_packing import derive_packing
from convsmith.passes.fuse import fuse

MASKED = """kernel k(a: f32[6], b: f32[6], c: f32[3])
  for t in 0 .. 3:
    for i in 0 .. 6:
      c[t] = c[t] + (a[i + t - 1] * b[i] if i + t - 1 >= 0 and -i - t + 6 >= 0 else 0.0)
"""


@pytest.mark.parametrize("filled", [False, True])
def test_a_kernel_tests_no_element_for_which_zeros_are_packed(filled: bool) -> None:
    with interning():
        kernel = derive_packing(parse_kernel(MASKED), ("a",), "a_p", filled=filled)
        (pack,) = kernel.packs
        assert ("if" in str(kernel).partition("pack ")[0]) != filled
        assert "a_p[t, i] = (a[i + t - 1] if i + t - 1 >= 0 and -i - t + 6 >= 0 else 0.0)" in str(pack)


def test_what_another_operand_decides_is_tested() -> None:
    """Zeros of ``b`` cannot depend on the taps, which do not index it."""
    with interning():
        kernel = derive_packing(parse_kernel(MASKED), ("b",), "b_p", filled=True)
        assert "if i + t - 1 >= 0" in str(kernel).partition("pack ")[0]


PAIRS = """kernel k(a: f32[12], b: f32[12])
  for i in 0 .. 6:
    for j in 0 .. 2:
      b[i * 2 + j] = (a[i * 2 + j] if -i + 3 >= 0 and i * 2 + j - 1 >= 0 else 0.0)
"""


def test_conditions_of_the_outer_loop_are_divided() -> None:
    with interning():
        kernel = parse_kernel(PAIRS)
        assert str(fuse(kernel, "i", "j", "j", "nowhere")) == str(kernel)
        text = str(fuse(kernel, "i", "j", "j", "conditions"))
    assert "for j in 0 .. 12" in text and "b[j] = (a[j] if" in text and "j // 2" in text
