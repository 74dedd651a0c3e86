"""A term that is zero where it is masked is skipped; whatever else a mask chooses stays."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.passes.skip_zero import skip_zero


def masked(store: str) -> Kernel:
    return parse_kernel(f"kernel k(a: f32[8], d: f32[8])\n  for i in 0 .. 6:\n    {store}\n")


def test_a_masked_term_is_skipped() -> None:
    kernel = masked("d[i] = d[i] + (a[i] * 2.0 if i - 2 >= 0 else 0.0)")
    made = skip_zero(kernel)
    assert "if i - 2 >= 0:" in str(made)
    assert_same_results(kernel, made)


@pytest.mark.parametrize(
    "store",
    [
        "d[i] = d[i] + (a[i] if i - 2 >= 0 else 1.0)",
        "d[i] = d[i + 1] + (a[i] if i - 2 >= 0 else 0.0)",
        "d[i] = a[i] + (a[i] if i - 2 >= 0 else 0.0)",
        "d[i] = d[i] * (a[i] if i - 2 >= 0 else 0.0)",
        "d[i] = d[i] - (a[i] if i - 2 >= 0 else 0.0)",
        "d[i] = (a[i] if i - 2 >= 0 else 0.0)",
        "d[i] = d[i] + (0.0 if i - 2 >= 0 else a[i])",
    ],
)
def test_these_are_left(store: str) -> None:
    kernel = masked(store)
    assert skip_zero(kernel) is kernel
