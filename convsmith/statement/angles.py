"""Sines, cosines and arctangents in f32 as IR values: polynomials on a reduced range; angles are reduced in f64."""

from __future__ import annotations

import math

from convsmith.ir.types import F32, F64, S32
from convsmith.ir.value import Binary, Bits, Cast, Fma, Unary, Value, Where, const
from convsmith.problem.eltwise import MOST_ANGLE
from convsmith.statement.maths import add, div, f32, mul, polynomial, s32, sub, with_sign_of

__all__ = ["arctangent", "sine"]

_SINE = (-0.16666654611, 0.0083321608736, -0.00019515295891)
"""Coefficients of x**2 in (sin(x) - x) / x**3."""
_COSINE = (0.04166664568298827, -0.001388731625493765, 2.443315711809948e-05)
"""Coefficients of x**2 in (cos(x) - 1 + x**2 / 2) / x**4."""
_QUARTER = (1.5707963267948966, 6.123233995736766e-17)
"""A quarter of a turn, as the sum of two numbers of f64."""
_ARCTANGENT = (-0.333329491539, 0.199777106478, -0.138776856032, 0.0805374449538)
"""Coefficients of x**2 in (atan(x) - x) / x**3, up to the tangent of a sixteenth of a turn."""


def sine(x: Value, quarters: int) -> Value:
    """Return sin(x + quarters * pi / 2); NaN from `MOST_ANGLE` on.

    Up to there, the nearest multiple of a quarter turn has few enough bits for its distance from x to be exact to the
    last bit of f32, so the error is at most 2 units in the last place.
    """
    size = Unary("abs", x)
    wide = Cast(F64, Where("lt", size, f32(MOST_ANGLE), x, f32(0.0)))
    turns = Unary("round", mul(wide, const(F64, 2 / math.pi)))
    rest: Value = wide
    for part in _QUARTER:
        rest = Fma(turns, const(F64, -part), rest)
    r, n = Cast(F32, rest), add(Cast(S32, turns), s32(quarters))
    square = mul(r, r)
    of_sine = Fma(mul(square, r), polynomial(square, _SINE), r)
    of_cosine = Fma(mul(square, square), polynomial(square, _COSINE), Fma(square, f32(-0.5), f32(1.0)))
    is_odd = Binary("and", n, s32(1))
    found = Where("ne", is_odd, s32(0), of_cosine, of_sine)
    sign = Binary("shl", Binary("and", n, s32(2)), s32(30))
    signed = Bits(F32, Binary("xor", Bits(S32, found), sign))
    return Where("lt", size, f32(MOST_ANGLE), signed, f32(math.nan))


def arctangent(x: Value) -> Value:
    """Return atan(x) as an eighth, or a quarter, of a turn plus atan((a - 1) / (a + 1)), or atan(-1 / a), for
    magnitudes a beyond the tangents of a sixteenth and of three sixteenths of a turn.
    """
    size = Unary("abs", x)
    near, far = f32(math.tan(math.pi / 8)), f32(math.tan(3 * math.pi / 8))
    one = f32(1.0)

    def by_range(least: Value, middle: Value, most: Value) -> Value:
        return Where("gt", size, far, most, Where("gt", size, near, middle, least))

    y = div(by_range(size, sub(size, one), f32(-1.0)), by_range(one, add(size, one), size))
    start = by_range(f32(0.0), f32(math.pi / 4), f32(math.pi / 2))
    square = mul(y, y)
    return with_sign_of(x, add(start, Fma(mul(square, y), polynomial(square, _ARCTANGENT), y)))
