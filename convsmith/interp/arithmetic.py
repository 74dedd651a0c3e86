"""Arithmetic on values: numpy scalars and vectors of the value's own type; every operation rounds once."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from convsmith.ir.types import BF16, F32, F64, S32, DType


def _better(beats: Any) -> Any:
    """Return a max or min whose result is ``b`` if ``beats(b, a)`` or ``b`` is NaN, otherwise ``a``.

    numpy's own maximum leaves open which of two zeros of opposite sign it returns.
    """

    def better(a: Any, b: Any) -> Any:
        return np.asarray(np.where(beats(b, a) | (b != b), b, a))[()]

    return better


def _high_product(a: Any, b: Any) -> Any:
    """Return ``a * b / 2**31`` of two s32, rounded once to nearest, ties up, and saturated."""
    whole = (a.astype(np.int64) * b.astype(np.int64) + 2**30) >> 31
    return np.minimum(whole, 2**31 - 1).astype(np.int32)[()]


BINARY: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "mulh": _high_product,
    "div": np.divide,
    "max": _better(np.greater),
    "min": _better(np.less),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
}
"""Binary operations; integers wrap; ``div`` is for floating point only."""

UNARY: dict[str, Any] = {"round": np.rint, "floor": np.floor, "sqrt": np.sqrt, "abs": np.abs, "neg": np.negative}

COMPARISONS: dict[str, Any] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def fma(a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c`` rounded once; integers wrap."""
    if c.dtype in (np.float16, np.float32):
        return _fma_in_double(a, b, c)
    if c.dtype == np.float64:
        return np.vectorize(_fma64, otypes=[np.float64])(a, b, c)[()]
    return a * b + c


def _fma_in_double(a: Any, b: Any, c: Any) -> Any:
    """Return the fma of f16 or f32 operands, computed in double precision.

    The product is exact in double; the sum is rounded to odd there, so that the second rounding is correct.
    """
    if not (a.ndim or b.ndim or c.ndim):
        exact = _exact_sum(float(a) * float(b), float(c))
        if exact is not None:
            return c.dtype.type(exact)
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = np.asarray(product + addend)
    rounded_addend = total - product
    error = (product - (total - rounded_addend)) + (addend - rounded_addend)
    if not error.any():
        return total.astype(c.dtype)[()]
    even = (total.view(np.int64) & 1) == 0
    adjust = np.isfinite(total) & np.isfinite(error) & (error != 0) & even
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where(adjust, np.nextafter(total, toward), total).astype(c.dtype)[()]


def _exact_sum(a: float, b: float) -> float | None:
    """Return ``a + b`` if a double holds it exactly, otherwise None."""
    total = a + b
    rounded_b = total - a
    return total if (a - (total - rounded_b)) + (b - rounded_b) == 0 else None


def _fma64(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if not exact:
        return a * b + c
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def cast(a: Any, to: DType) -> Any:
    """Return ``a`` converted to ``to``.

    A conversion to a float rounds to nearest even.  A conversion to an integer rounds to nearest even, turns NaN to 0
    and saturates.
    """
    dtype = np.dtype(to.numpy)
    if a.dtype == dtype:
        return a
    if a.itemsize <= 2 and (to is F32 or to is F64 or (to is S32 and a.dtype.kind in "iu")):
        return a.astype(dtype)  # which holds all values of the smaller type
    if to.kind == "float":
        wide = a.astype(np.float64)
        return _to_odd(wide).astype(dtype) if to is BF16 or to.bits == 8 else wide.astype(dtype)
    wide = a.astype(np.float64)
    return np.clip(np.rint(np.where(np.isnan(wide), 0, wide)), *to.limits).astype(dtype)[()]


def _to_odd(a: Any) -> Any:
    """Return doubles in single precision, rounded to odd, so that a second rounding, to a smaller float, is correct."""
    a = np.asarray(a)
    out = a.astype(np.float32)
    bits = out.view(np.int32) - (np.abs(out) > np.abs(a)) | (out != a)
    return np.where(np.isnan(a), out, bits.view(np.float32))[()]


def sum_groups(a: Any, group: int) -> Any:
    """Return the sum of each group of 2**n lanes, adding the upper half to the lower half until one lane is left."""
    a = a.reshape(-1, group)
    while group > 1:
        group //= 2
        a = a[:, :group] + a[:, group:]
    return a[0, 0] if len(a) == 1 else a[:, 0]
