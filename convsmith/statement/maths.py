"""Exponentials and logarithms in f32 as IR values: polynomials on a reduced range, without branches.

NaN gives NaN.  ``fit`` in a docstring is the maximum relative error of the polynomial in exact arithmetic.
"""

from __future__ import annotations

import math

from convsmith.ir.types import F32, F64, S32
from convsmith.ir.value import Binary, Bits, Cast, Fma, Unary, Value, Where, const, dtype_of

_MAGIC = 1.5 * 2.0**23
"""Added to a number below 2**22, it rounds the number to an integer and leaves the integer in the sum's low bits."""

_EXP = (
    1.0, 1.0, 0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.008368710055947304,
    0.0013814610429108143,
)  # fmt: skip
_EXPM1 = (1.0, 0.4999999701976776, 0.1666654348373413, 0.04166720062494278, 0.00836651399731636, 0.0013882520142942667)
_LOG1P = (
    1.0, -0.4999993145465851, 0.33330512046813965, -0.2495858520269394, 0.1969539225101471, -0.15355369448661804,
    0.10680510848760605, -0.05766400322318077, 0.020204348489642143, -0.003318420145660639,
)  # fmt: skip
_LOG = (
    0.3333333134651184, -0.250008225440979, 0.20001226663589478, -0.16623356938362122, 0.14201761782169342,
    -0.131601944565773, 0.12761549651622772, -0.07634429633617401,
)  # fmt: skip
_LOG2 = (
    2.885390081777848, 0.9617966941168936, 0.577077941248624, 0.41220937334517305, 0.31990042013729225,
    0.2829797590026294,
)  # fmt: skip
_EXP2 = (
    0.999999999999762, 0.693147180546515, 0.2402265069888241, 0.05550410939339949, 0.009618128542487121,
    0.0013333452063421663, 0.00015403851978338027, 1.5309737195856286e-05, 1.3175813925984664e-06,
)  # fmt: skip


def f32(value: float) -> Value:
    return const(F32, value)


def s32(value: int) -> Value:
    return const(S32, value)


def add(a: Value, b: Value) -> Value:
    return Binary("add", a, b)


def sub(a: Value, b: Value) -> Value:
    return Binary("sub", a, b)


def mul(a: Value, b: Value) -> Value:
    return Binary("mul", a, b)


def div(a: Value, b: Value) -> Value:
    return Binary("div", a, b)


def clamp(x: Value, low: Value, high: Value) -> Value:
    return Binary("min", Binary("max", x, low), high)


def polynomial(x: Value, coefficients: tuple[float, ...]) -> Value:
    """Return the sum of ``coefficients[n] * x**n``."""
    *lower, last = [const(dtype_of(x), c) for c in coefficients]
    out: Value = last
    for c in reversed(lower):
        out = Fma(out, x, c)
    return out


def _reduced(x: Value, sign: int = 1, low: Value | None = None, bias: int = 127) -> tuple[Value, Value]:
    """Return ``sign * r`` and bits that end in n + bias, for ``sign * x = n * log(2) + r`` with the nearest integer n.

    ``low`` is a correction that is added to r.
    """
    shifted = Fma(x, f32(sign / math.log(2)), f32(_MAGIC + bias))
    n = sub(shifted, f32(_MAGIC + bias))
    high = 0.693145751953125
    r = Fma(n, f32(-sign * high), x)
    r = Fma(n, f32(sign * (high - math.log(2))), r)
    return r if low is None else add(r, low), Bits(S32, shifted)


def _exponent(bits: Value) -> Value:
    """Return the float whose exponent field is the low part of ``bits``."""
    return Bits(F32, Binary("shl", bits, s32(23)))


def exp_within(x: Value, sign: int = 1, low: Value | None = None) -> Value:
    """Return exp(sign * (x + low)) for results from 2**-126 to 2**127; ``low`` is a small correction.  fit 3e-9."""
    r, bits = _reduced(x, sign, low)
    return mul(polynomial(r, tuple(c * sign**n for n, c in enumerate(_EXP))), _exponent(bits))


def exp(x: Value, high: float = 89.0) -> Value:
    """Return exp(min(x, high)), including infinity, denormals and zero.  fit 3e-9.

    The power of two is a product of two floats, because the extreme powers are not representable.
    """
    r, bits = _reduced(clamp(x, f32(-104.0), f32(high)), bias=2 * 127)
    half = Binary("shr", bits, s32(1))
    return mul(mul(polynomial(r, _EXP), _exponent(half)), _exponent(sub(bits, half)))


def exp_of_negative(x: Value) -> Value:
    """Return exp(x) for x <= 0, and 0 for results below 2**-126.  fit 3e-9.

    The least argument has the power -127, whose exponent field is that of zero.
    """
    r, bits = _reduced(Binary("max", x, f32(-127 * math.log(2))))
    return mul(polynomial(r, _EXP), _exponent(bits))


def exp2_of_negative(x: Value) -> Value:
    """Return 2**x for x <= 0, and 0 for results below 2**-126.  fit 1e-8.

    The distance to the nearest integer is exact.
    """
    shift = f32(_MAGIC + 127)
    shifted = add(Binary("max", x, f32(-127.0)), shift)
    r = sub(Binary("max", x, f32(-127.0)), sub(shifted, shift))
    terms = tuple(c * math.log(2) ** n for n, c in enumerate(_EXP))
    return mul(polynomial(r, terms), _exponent(Bits(S32, shifted)))


def expm1_of_negative(x: Value) -> Value:
    """Return exp(x) - 1 for x <= 0.  fit 2e-8."""
    r, bits = _reduced(Binary("max", x, f32(-18.0)))
    scale = _exponent(bits)
    return Fma(scale, mul(r, polynomial(r, _EXPM1)), sub(scale, f32(1.0)))


def log1p_of_fraction(x: Value) -> Value:
    """Return log(1 + x) for x in 0 .. 1.  fit 6e-9."""
    return mul(x, polynomial(x, _LOG1P))


def _split(x: Value) -> tuple[Value, Value]:
    """Return (e, m) with x = ``2**e * m`` for positive x; m in f32 lies between sqrt(1/2) and sqrt(2), e is s32."""
    small = (x, f32(2.0**-126))
    bits = Bits(S32, Where("lt", *small, mul(x, f32(2.0**24)), x))
    e = Binary("shr", sub(bits, s32(0x3F3504F3)), s32(23))
    m = Bits(F32, sub(bits, Binary("shl", e, s32(23))))
    return sub(e, Where("lt", *small, s32(24), s32(0))), m


def _with_ends_of_log(x: Value, inside: Value) -> Value:
    """Return ``inside`` for finite positive x, and the logarithm's value for zero, infinity and negative x."""
    nan, inf = (const(F32, v) for v in (math.nan, math.inf))
    low = Where("eq", x, f32(0.0), f32(-math.inf), nan)
    return Where("gt", x, f32(0.0), Where("lt", x, inf, inside, x), low)


def log(x: Value) -> Value:
    """Return the natural logarithm; -inf at zero, NaN below.  fit 6e-9."""
    e, m = _split(x)
    f, n = sub(m, f32(1.0)), Cast(F32, e)
    high = 0.693359375
    square = mul(f, f)
    tail = mul(mul(square, f), polynomial(f, _LOG))
    tail = Fma(n, f32(math.log(2) - high), tail)
    total = add(Fma(square, f32(-0.5), tail), f)
    return _with_ends_of_log(x, Fma(n, f32(high), total))


def with_sign_of(x: Value, size: Value) -> Value:
    """Return the positive ``size`` with the sign of ``x``, both in f32."""
    sign = Binary("and", Bits(S32, x), s32(-(2**31)))
    return Bits(F32, Binary("or", Bits(S32, size), sign))


def power_of_size(x: Value, exponent: float) -> Value:
    """Return ``abs(x) ** exponent`` for a non-zero exponent, in f64 up to the last step.  fit 1e-12."""
    size = Unary("abs", x)
    at_zero, at_infinity = (0.0, math.inf) if exponent > 0 else (math.inf, 0.0)
    inside = _power_inside(size, const(F64, exponent))
    inside = Where("eq", size, f32(math.inf), f32(at_infinity), inside)
    return Where("ne", x, x, x, Where("eq", size, f32(0.0), f32(at_zero), inside))


def _power_inside(size: Value, exponent: Value) -> Value:
    """Return ``size ** exponent`` for finite positive sizes in f32 and exponents in f64."""
    e, m32 = _split(size)
    m, one = Cast(F64, m32), const(F64, 1.0)
    s = div(sub(m, one), add(m, one))
    series = Fma(s, polynomial(mul(s, s), _LOG2), Cast(F64, e))
    y = clamp(mul(series, exponent), const(F64, -252.0), const(F64, 254.0))
    n = Unary("round", y)
    p = Cast(F32, polynomial(sub(y, n), _EXP2))
    biased = add(Cast(S32, n), s32(2 * 127))
    half = Binary("shr", biased, s32(1))
    return mul(mul(p, _exponent(half)), _exponent(sub(biased, half)))


def power(x: Value, exponent: Value) -> Value:
    """Return ``x ** exponent`` of values in f32, with the signs and the ends of C's pow, in f64 up to the last step.

    fit 1e-12.
    """
    size, zero, one, inf, nan = Unary("abs", x), f32(0.0), f32(1.0), f32(math.inf), f32(math.nan)
    found = _power_inside(size, Cast(F64, exponent))
    found = Where("eq", size, zero, Where("gt", exponent, zero, zero, inf), found)
    found = Where("eq", size, inf, Where("gt", exponent, zero, inf, zero), found)
    found = Where("eq", size, one, Where("eq", exponent, exponent, one, nan), found)
    halved = mul(exponent, f32(0.5))
    is_odd = Where("eq", Unary("floor", exponent), exponent, one, zero)
    is_odd = Where("eq", Unary("floor", halved), halved, zero, is_odd)
    signed = with_sign_of(x, found)
    outside = Where("eq", Unary("floor", exponent), exponent, found, Where("gt", x, f32(-math.inf), nan, found))
    found = Where("ne", is_odd, zero, signed, Where("lt", x, zero, outside, found))
    found = Where("ne", exponent, exponent, nan, Where("ne", x, x, nan, found))
    return Where("eq", x, one, one, Where("eq", exponent, zero, one, found))
