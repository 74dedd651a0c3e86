"""Steps in s32 arithmetic as rows of one table: the parameters that each reads, and its meaning in numpy.

These steps requantise integer sums exactly. Sums and operands are 32-bit integers, held in int64 arrays here; a result
outside 32 bits wraps around, unless a row says otherwise. The steps are the parts of gemmlowp's output stages:
`s32_mulh` followed by `s32_rshift` is gemmlowp's multiplication by a fixed-point number. `s32_scale` and `s32_scale_up`
are XNNPACK's multiplications by an f32 scale, of the requantisations that it calls fp32 and rndnu.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convsmith.diag.record import record

__all__ = ["INTEGER_STEPS", "LIMITS", "IntegerStep", "array_of", "normalised", "wrapped"]

Array = np.ndarray[Any, Any]

LIMITS = (-(2**31), 2**31 - 1)
"""Smallest and largest 32-bit integer."""


@record(frozen=True)
class IntegerStep:
    """A step. `parameters` names the numbers that it reads, each within its `limits`; `apply(x, *numbers)` computes it.

    A step with one parameter may read that parameter from an array instead. The numbers are of type `dtype`.
    """

    parameters: tuple[str, ...]
    limits: tuple[tuple[float, float], ...]
    apply: Callable[..., Array]
    dtype: str = "s32"

    def operand(self, values: Any) -> Array:
        """Return numbers of this step as the array that `apply` reads."""
        return np.asarray(values, np.int64 if self.dtype == "s32" else np.float32)


def array_of(value: Any) -> Array:
    """Return `value` as an array; if numpy cannot convert it (lists of different lengths), or elements of it are
    masked, an array that holds None.
    """
    if np.ma.is_masked(value):
        return np.asarray(None)
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        return np.asarray(None)


def wrapped(x: Array) -> Array:
    """Return the integers of `x` modulo 2**32, in the range of s32."""
    result: Array = (x + 2**31) % 2**32 - 2**31
    return result


def high_product(a: Array, b: Array | int) -> Array:
    """Return a * b / 2**31 rounded to nearest, ties up, saturated (only (-2**31)**2 saturates)."""
    product: Array = a * b
    result: Array = np.minimum((product + 2**30) >> 31, LIMITS[1])
    return result


def rounding_shift(x: Array, e: Array | int) -> Array:
    """Return x / 2**e rounded to nearest, ties away from zero."""
    unit = np.left_shift(np.int64(1), e)
    result: Array = (x + (unit >> 1) - ((x < 0) & (unit > 1))) >> e
    return result


def saturating_shift(x: Array, e: int) -> Array:
    """Return x * 2**e, saturated."""
    result: Array = np.clip(x << e, *LIMITS)
    return result


def rescaled(x: Array, numerator: int, denominator: int) -> Array:
    """Return x * numerator / denominator rounded to nearest, saturated; an odd denominator has no ties."""
    result: Array = np.clip((2 * x * numerator + denominator) // (2 * denominator), *LIMITS)
    return result


def scaled(x: Array, scale: Array) -> Array:
    """Return the product of x and scale, both in f32, rounded to nearest even, saturated."""
    with np.errstate(over="ignore"):
        product = np.rint(x.astype(np.float32) * np.float32(scale))
    result: Array = np.clip(product.astype(np.float64), *LIMITS).astype(np.int64)
    return result


def scaled_up(x: Array, scale: Array) -> Array:
    """Return the exact product of x and scale rounded to nearest, ties up, saturated."""
    fraction, exponent = np.frexp(np.float32(scale))
    whole = x * (fraction.astype(np.float64) * 2**24).astype(np.int64)  # of 55 bits, in units of 2**-bits
    bits = 24 - exponent.astype(np.int64)
    some = np.clip(bits, 1, 58)  # beyond 56 bits, all that is left rounds to zero
    rounded = (whole + (np.int64(1) << some - 1)) >> some
    exact = x.astype(np.float64) * np.float64(np.float32(scale))
    result: Array = np.where(bits > 0, np.clip(rounded, *LIMITS), np.clip(exact, *LIMITS).astype(np.int64))
    return result


def normalised(amplitude: int) -> tuple[int, int, int, int]:
    """Return (m, e, n, f) with 1 / amplitude = m / 2**31 / 2**e and amplitude = n / 2**31 * 2**f."""
    inverse, down = 1.0 / amplitude, 0
    while inverse < 0.5:
        inverse, down = inverse * 2, down + 1
    size, up = float(amplitude), 0
    while size >= 1.0:
        size, up = size / 2, up + 1
    fixed = [min(int(x * 2**31 + 0.5), LIMITS[1]) for x in (inverse, size)]
    return fixed[0], down, fixed[1], up


def tanh(x: Array, zero: int, amplitude: int) -> Array:
    """Return zero + amplitude * tanh((x - zero) / amplitude) in fixed point, bit for bit as gemmlowp computes it.

    Beyond 8 amplitudes from `zero` the result is zero plus or minus one amplitude.
    """
    inverse, down, size, up = normalised(amplitude)
    centred = wrapped(high_product(wrapped(x - zero), inverse) << 28 - down)
    inside = zero + (high_product(_tanh(centred), size) >> 31 - up)
    result: Array = np.where(x >= zero + 8 * amplitude, zero + amplitude, wrapped(inside))
    return np.where(x <= zero - 8 * amplitude, zero - amplitude, result)


def _tanh(a: Array) -> Array:
    """Return tanh of `a` (3 integer bits) as a number with 0 integer bits.

    It is sign(a) * (1 - e) / (1 + e) with e = exp(-2 * abs(a)); three Newton steps compute the quotient.
    """
    below = np.where(a < 0, a, wrapped(-a))
    half = (_exp_of_negative(below) >> 1) + 2**30
    x = 1515870810 + high_product(half, -1010580540)
    for _ in range(3):
        x = wrapped(x + saturating_shift(high_product(x, wrapped(2**29 - high_product(half, x))), 2))
    t = saturating_shift(wrapped(x - 2**29), 2)
    return np.where(a == 0, 0, np.where(a < 0, -t, t))


def _exp_of_negative(a: Array) -> Array:
    """Return exp(a) for `a` <= 0 with 4 integer bits: a series around -1/8, times one factor per bit above it."""
    quarter = 2**25
    low = (a & quarter - 1) - quarter
    x = saturating_shift(low, 4) + 2**28
    x2 = high_product(x, x)
    x3, x4 = high_product(x2, x), high_product(x2, x2)
    series = rounding_shift(high_product(rounding_shift(x4, 2) + x3, 715827883) + x2, 1)
    result = 1895147668 + high_product(x + series, 1895147668)
    remainder = wrapped(low - a)
    for bit, factor in enumerate((1672461947, 1302514674, 790015084, 290630308, 39332535, 720401)):
        result = np.where(remainder & quarter << bit, high_product(result, factor), result)
    return np.where(a == 0, LIMITS[1], result)


_SHIFTS = (0, 31)
_FINITE = (-float(np.finfo(np.float32).max), float(np.finfo(np.float32).max))

INTEGER_STEPS: dict[str, IntegerStep] = {
    "s32_add": IntegerStep(("addend",), (LIMITS,), lambda x, y: wrapped(x + y)),
    "s32_mul": IntegerStep(("factor",), (LIMITS,), lambda x, y: wrapped(x * y)),
    "s32_mulh": IntegerStep(("factor",), (LIMITS,), high_product),
    "s32_shl": IntegerStep(("bits",), (_SHIFTS,), lambda x, y: wrapped(x << y)),
    "s32_rshift": IntegerStep(("bits",), (_SHIFTS,), rounding_shift),
    "s32_and": IntegerStep(("mask",), (LIMITS,), lambda x, y: x & y),
    "s32_max": IntegerStep(("low",), (LIMITS,), np.maximum),
    "s32_min": IntegerStep(("high",), (LIMITS,), np.minimum),
    "s32_rescale": IntegerStep(("numerator", "denominator"), ((1, 2**16), (1, 2**16)), rescaled),
    "s32_scale": IntegerStep(("scale",), (_FINITE,), scaled, "f32"),
    "s32_scale_up": IntegerStep(("scale",), (_FINITE,), scaled_up, "f32"),
    "s32_tanh": IntegerStep(("zero", "amplitude"), (LIMITS, (1, 2**27)), tanh),
}
