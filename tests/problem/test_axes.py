"""The sizes of an axis that a line leaves out, by counting positions of a window; and scales, by fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import floor

import numpy as np
import pytest

from convsmith.diag.errors import UsageError
from convsmith.problem import parse_problem
from convsmith.problem.integer_steps import scaled_up


def positions(fine: int, k: int, s: int, d: int, p: int) -> int:
    """The starts of a window, a stride apart, from which all of its taps lie within the padded axis."""
    reach = (k - 1) * (d + 1)
    return len([x for x in range(0, fine + 2 * p, s) if x + reach < fine + 2 * p])


@pytest.mark.parametrize(("s", "d"), list(product((1, 2, 3), (0, 1))))
def test_an_output_size_follows(s: int, d: int) -> None:
    """Where no window fits, an image with pixels is refused; one without any needs padding for its window."""
    for i, k, p in product(range(6), (1, 2, 3), (0, 1, 2)):
        keff = (k - 1) * (d + 1) + 1
        line = f"mb1ic4ih{i}oc4kh{k}sh{s}dh{d}ph{p}"
        found = positions(i, k, s, d, p)
        if found or (i == 0 and 2 * p - keff == -1):
            assert parse_problem(line).o[0] == found, line  # type: ignore[attr-defined]
        elif i:
            with pytest.raises(UsageError, match=f"{max(keff - 2 * p, 0)}"):
                parse_problem(line)


@pytest.mark.parametrize(("s", "d"), list(product((1, 2, 3), (0, 1))))
def test_an_output_size_of_a_deconvolution_follows(s: int, d: int) -> None:
    for i, k, p in product(range(1, 6), (1, 2, 3), (0, 1, 2)):
        out = (i - 1) * s + (k - 1) * (d + 1) + 1 - 2 * p
        line = f"--deconv mb1ic4ih{i}oc4kh{k}sh{s}dh{d}ph{p}"
        if out > 0:
            assert parse_problem(line).o[0] == out, line  # type: ignore[attr-defined]
        else:
            with pytest.raises(UsageError, match="so no oh follows"):
                parse_problem(line)


@pytest.mark.parametrize("words", ["kh0", "kh3sh0", "kh3dh-1", "kh3ph-1"])
def test_sizes_that_are_not_legal_are_named(words: str) -> None:
    with pytest.raises(UsageError):
        parse_problem(f"mb1ic4ih5oc4{words}")


@pytest.mark.parametrize("exponent", [-60, -33, -31, -24, -2, -1, 0, 1, 7, 22, 23, 24, 25, 30, 40])
def test_a_product_with_a_scale_rounds_once(exponent: int) -> None:
    """To the nearest, ties up, and saturated: of scales with whole parts, fractions, and both."""
    x = np.array([0, 1, -1, 2, -2, 3, -3, 5, 127, -128, 65537, 2**30 + 1, 2**31 - 1, -(2**31)], np.int64)
    for part in (1.0, 1.5, 1.25, 1 + 2.0**-23, 2 - 2.0**-23):
        scale = np.float32(part * 2.0**exponent)
        exact = [floor(int(n) * Fraction(float(scale)) + Fraction(1, 2)) for n in x]
        found = scaled_up(x, np.full(x.shape, scale))
        assert found.tolist() == [min(max(n, -(2**31)), 2**31 - 1) for n in exact], scale
