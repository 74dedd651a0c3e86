"""Steps in s32 arithmetic as IR values: one row per step of ``problem/integer_steps.py``, bit for bit.

A number with n integer bits is fixed-point with the unit 2**(n - 31).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from convsmith.ir.types import F32, F64, S32
from convsmith.ir.value import Binary, Cast, Const, Fma, Unary, Value, Where, const
from convsmith.problem.integer_steps import LIMITS, normalised


def s32(value: int) -> Const:
    """Return an s32 constant."""
    return const(S32, value)


def integer_step(alg: str, x: Value, *operands: Value | float) -> Value:
    """Return the step `alg` applied to the s32 value `x`; operands are numbers, or one value for a step with one
    parameter.
    """
    return _STEPS[alg](x, *operands)


def _binary(op: str, x: Value, y: Value | int) -> Value:
    return Binary(op, x, y if isinstance(y, Value) else s32(y))


_add, _mulh = partial(_binary, "add"), partial(_binary, "mulh")


def _shl(x: Value, bits: Value | int) -> Value:
    return Binary("shl", x, _within_width(bits))


def _within_width(bits: Value | int) -> Value:
    """Return the bits of a shift; the low 5 bits of a number from an array."""
    return Binary("and", bits, s32(31)) if isinstance(bits, Value) else s32(bits)


def _rounding_shift(x: Value, bits: Value | int) -> Value:
    """Return ``x >> bits`` rounded to nearest, ties away from zero.

    The shift rounds down; one is added if the remainder exceeds a half, or equals it and x is not negative.
    """
    if isinstance(bits, int):
        if not bits:
            return x
        n: Value = s32(bits)
        mask: Value = s32((1 << bits) - 1)
        half: Value = s32((1 << bits - 1) - 1)
    else:
        n = _within_width(bits)
        mask = Binary("sub", Binary("shl", s32(1), n), s32(1))
        half = Binary("shr", mask, s32(1))
    most = Binary("sub", half, Binary("shr", x, s32(31)))
    up = Where("gt", Binary("and", x, mask), most, s32(1), s32(0))
    return Binary("add", Binary("shr", x, n), up)


def _saturating_shift(x: Value, bits: int) -> Value:
    low, high = LIMITS
    above = Where("gt", x, s32(high >> bits), s32(high), Binary("shl", x, s32(bits)))
    return Where("lt", x, s32(low >> bits), s32(low), above)


def _rescale(x: Value, numerator: Value | int, denominator: Value | int) -> Value:
    """Return the quotient computed in f64.

    The product is exact in f64, and the quotient's distance from a tie exceeds its rounding error.
    """
    assert isinstance(numerator, int) and isinstance(denominator, int)
    product = Binary("mul", Cast(F64, x), const(F64, numerator))
    return Cast(S32, Binary("div", product, const(F64, denominator)))


def _scale(x: Value, scale: Value | float) -> Value:
    return Cast(S32, Binary("mul", Cast(F32, x), _f32(scale)))


def _scale_up(x: Value, scale: Value | float) -> Value:
    """Return ``floor(x * scale + 1/2)`` exactly: the product is a double and its rounding error."""
    a, b = Cast(F64, x), Cast(F64, _f32(scale))
    product = Binary("mul", a, b)
    error = Fma(a, b, Unary("neg", product))
    whole = Unary("floor", product)
    half = Binary("sub", Binary("sub", product, whole), const(F64, 0.5))
    up = Where("ge", half, Unary("neg", error), const(F64, 1), const(F64, 0))
    return Cast(S32, Binary("add", whole, up))


def _f32(value: Value | float) -> Value:
    return value if isinstance(value, Value) else const(F32, value)


def _tanh(x: Value, zero: Value | int, amplitude: Value | int) -> Value:
    assert isinstance(zero, int) and isinstance(amplitude, int)
    inverse, down, size, up = normalised(amplitude)
    centred = Binary("shl", _mulh(_add(x, -zero), inverse), s32(28 - down))
    inside = _add(Binary("shr", _mulh(_tanh_of_fixed(centred), size), s32(31 - up)), zero)
    below = Where("le", x, s32(zero - 8 * amplitude), s32(zero - amplitude), inside)
    return Where("ge", x, s32(zero + 8 * amplitude), s32(zero + amplitude), below)


def _tanh_of_fixed(a: Value) -> Value:
    """Return tanh of ``a`` (3 integer bits) as a number with 0 integer bits: (1 - e) / (1 + e) by Newton's division."""
    zero = s32(0)
    below = Where("lt", a, zero, a, Binary("sub", zero, a))
    half = _add(Binary("shr", _exp_of_negative(below), s32(1)), 2**30)
    x: Value = _add(_mulh(half, -1010580540), 1515870810)
    for _ in range(3):
        error = Binary("sub", s32(2**29), _mulh(half, x))
        x = _add(x, _saturating_shift(_mulh(x, error), 2))
    t = _saturating_shift(_add(x, -(2**29)), 2)
    return Where("eq", a, zero, zero, Where("lt", a, zero, Binary("sub", zero, t), t))


def _exp_of_negative(a: Value) -> Value:
    """Return exp(a) for ``a`` <= 0 with 4 integer bits: a series around -1/8, times one factor per bit above it."""
    quarter = 2**25
    low = _add(Binary("and", a, s32(quarter - 1)), -quarter)
    x = _add(Binary("shl", low, s32(4)), 2**28)
    x2 = _mulh(x, x)
    x3, x4 = _mulh(x2, x), _mulh(x2, x2)
    third = _mulh(_add(_rounding_shift(x4, 2), x3), 715827883)
    series = _rounding_shift(_add(third, x2), 1)
    result = _add(_mulh(_add(x, series), 1895147668), 1895147668)
    remainder = Binary("sub", low, a)
    for bit, factor in enumerate((1672461947, 1302514674, 790015084, 290630308, 39332535, 720401)):
        present = Binary("and", remainder, s32(quarter << bit))
        result = Where("ne", present, s32(0), _mulh(result, factor), result)
    return Where("eq", a, s32(0), s32(LIMITS[1]), result)


_STEPS: dict[str, Callable[..., Value]] = {
    "s32_add": _add,
    "s32_mul": partial(_binary, "mul"),
    "s32_mulh": _mulh,
    "s32_shl": _shl,
    "s32_rshift": _rounding_shift,
    "s32_and": partial(_binary, "and"),
    "s32_max": partial(_binary, "max"),
    "s32_min": partial(_binary, "min"),
    "s32_rescale": _rescale,
    "s32_scale": _scale,
    "s32_scale_up": _scale_up,
    "s32_tanh": _tanh,
}
