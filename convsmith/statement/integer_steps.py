"""Steps in s32 arithmetic as values: one row for each step of ``problem/integer_steps.py``, with the same bits.

Numbers with n integer bits are fixed-point: the unit is 2**(n - 31).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from convsmith.ir.types import F64, S32
from convsmith.ir.value import Binary, Cast, Const, Value, Where, const
from convsmith.problem.integer_steps import LIMITS, normalised


def s32(value: int) -> Const:
    """A constant."""
    return const(S32, value)


def integer_step(alg: str, x: Value, *operands: Value | int) -> Value:
    """The step of that name on an s32 value; its numbers are constants, or another value where it has one."""
    return _STEPS[alg](x, *operands)


def _binary(op: str, x: Value, y: Value | int) -> Value:
    return Binary(op, x, y if isinstance(y, Value) else s32(y))


_add, _mulh = partial(_binary, "add"), partial(_binary, "mulh")


def _shl(x: Value, bits: Value | int) -> Value:
    return Binary("shl", x, _within_width(bits))


def _within_width(bits: Value | int) -> Value:
    """Bits of a shift: of a number from an array, whatever it is, those below 32."""
    return Binary("and", bits, s32(31)) if isinstance(bits, Value) else s32(bits)


def _rounding_shift(x: Value, bits: Value | int) -> Value:
    """The quotient rounded down, and one more where the rest is above a half, or is one and x is not negative."""
    if isinstance(bits, int):
        if not bits:
            return x
        n: Value = s32(bits)
        rest: Value = s32((1 << bits) - 1)
        half: Value = s32((1 << bits - 1) - 1)
    else:
        n = _within_width(bits)
        rest = Binary("sub", Binary("shl", s32(1), n), s32(1))
        half = Binary("shr", rest, s32(1))
    most = Binary("sub", half, Binary("shr", x, s32(31)))
    up = Where("gt", Binary("and", x, rest), most, s32(1), s32(0))
    return Binary("add", Binary("shr", x, n), up)


def _saturating_shift(x: Value, bits: int) -> Value:
    low, high = LIMITS
    above = Where("gt", x, s32(high >> bits), s32(high), Binary("shl", x, s32(bits)))
    return Where("lt", x, s32(low >> bits), s32(low), above)


def _rescale(x: Value, numerator: Value | int, denominator: Value | int) -> Value:
    """By way of f64: the product is exact there, and the quotient lies further from a half than it is rounded."""
    assert isinstance(numerator, int) and isinstance(denominator, int)
    product = Binary("mul", Cast(F64, x), const(F64, numerator))
    return Cast(S32, Binary("div", product, const(F64, denominator)))


def _tanh(x: Value, zero: Value | int, amplitude: Value | int) -> Value:
    assert isinstance(zero, int) and isinstance(amplitude, int)
    inverse, down, size, up = normalised(amplitude)
    centred = Binary("shl", _mulh(_add(x, -zero), inverse), s32(28 - down))
    inside = _add(Binary("shr", _mulh(_tanh_of_fixed(centred), size), s32(31 - up)), zero)
    below = Where("le", x, s32(zero - 8 * amplitude), s32(zero - amplitude), inside)
    return Where("ge", x, s32(zero + 8 * amplitude), s32(zero + amplitude), below)


def _tanh_of_fixed(a: Value) -> Value:
    """Of a number with 3 integer bits, one with none: (1 - e) / (1 + e) by Newton's division."""
    zero = s32(0)
    below = Where("lt", a, zero, a, Binary("sub", zero, a))
    half = _add(Binary("shr", _exp_of_negative(below), s32(1)), 2**30)
    x: Value = _add(_mulh(half, -1010580540), 1515870810)
    for _ in range(3):
        rest = Binary("sub", s32(2**29), _mulh(half, x))
        x = _add(x, _saturating_shift(_mulh(x, rest), 2))
    t = _saturating_shift(_add(x, -(2**29)), 2)
    return Where("eq", a, zero, zero, Where("lt", a, zero, Binary("sub", zero, t), t))


def _exp_of_negative(a: Value) -> Value:
    """exp of a number with 4 integer bits that is not positive: a series at -1/8, and a factor for each bit above."""
    quarter = 2**25
    low = _add(Binary("and", a, s32(quarter - 1)), -quarter)
    x = _add(Binary("shl", low, s32(4)), 2**28)
    x2 = _mulh(x, x)
    x3, x4 = _mulh(x2, x), _mulh(x2, x2)
    third = _mulh(_add(_rounding_shift(x4, 2), x3), 715827883)
    series = _rounding_shift(_add(third, x2), 1)
    result = _add(_mulh(_add(x, series), 1895147668), 1895147668)
    rest = Binary("sub", low, a)
    for bit, factor in enumerate((1672461947, 1302514674, 790015084, 290630308, 39332535, 720401)):
        present = Binary("and", rest, s32(quarter << bit))
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
    "s32_tanh": _tanh,
}
