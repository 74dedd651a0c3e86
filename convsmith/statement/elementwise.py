"""Element-wise functions as IR values: one row per forward eltwise algorithm of oneDNN, and some of ONNX.

``elementwise(alg, x, alpha, beta)`` applies an algorithm to a value of type f32 or f64; the error function and
algorithms with exponentials or logarithms exist in f32 only.  The error is at most 4 units in the last place (5 for
mish, 6 for erf and gelu_erf), or 2**-126 (2**-126 * abs(x) for a product with x).  Rounding the argument y of the
exponential, where y is not x itself (swish and soft_relu with a factor, gelu_tanh), adds up to abs(y) units,
2.5 * abs(y) for gelu_tanh.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from convsmith.diag.errors import UnsupportedError
from convsmith.ir.types import F32, DType
from convsmith.ir.value import Binary, Fma, Unary, Value, Where, const, dtype_of
from convsmith.statement.angles import arctangent, sine
from convsmith.statement.maths import (
    add,
    clamp,
    div,
    exp,
    exp_within,
    expm1_of_negative,
    f32,
    log,
    log1p_of_fraction,
    mul,
    polynomial,
    power_of_size,
    sub,
    with_sign_of,
)


def _relu(x: Value, alpha: float, beta: float, t: DType) -> Value:
    if alpha == 0:
        return Binary("max", x, const(t, 0))
    scaled = mul(x, const(t, alpha))
    # A maximum is one instruction on most machines.
    return Where("lt", x, scaled if 0 < alpha <= 1 else const(t, 0), scaled, x)


def _clip(x: Value, alpha: float, beta: float, t: DType) -> Value:
    return clamp(x, const(t, alpha), const(t, beta))


def _linear(x: Value, alpha: float, beta: float, t: DType) -> Value:
    return Fma(x, const(t, alpha), const(t, beta))


def _hardsigmoid(x: Value, alpha: float, beta: float, t: DType) -> Value:
    return clamp(_linear(x, alpha, beta, t), const(t, 0), const(t, 1))


def _hardswish(x: Value, alpha: float, beta: float, t: DType) -> Value:
    return mul(x, _hardsigmoid(x, alpha, beta, t))


def _scaled(x: Value, factor: float) -> Value:
    return x if factor == 1 else mul(x, f32(factor))


def _logistic(x: Value, alpha: float, beta: float, t: DType) -> Value:
    return div(f32(1.0), add(exp_within(clamp(x, f32(-88.0), f32(87.33)), -1), f32(1.0)))


def _times_logistic(x: Value, y: Value) -> Value:
    """Return ``x / (1 + exp(-y))``; the exponential is infinite below -88.4, and limited above 87.33."""
    return div(x, add(exp_within(clamp(y, f32(-89.0), f32(87.33)), -1), f32(1.0)))


def _swish(x: Value, alpha: float, beta: float, t: DType) -> Value:
    return _times_logistic(x, _scaled(x, alpha))


def _tanh(x: Value, alpha: float, beta: float, t: DType) -> Value:
    """Return ``abs(m / (m + 2))`` with m = exp(-2 * abs(x)) - 1, with the sign of x."""
    m = expm1_of_negative(mul(Unary("abs", x), f32(-2.0)))
    return with_sign_of(x, Unary("abs", div(m, add(m, f32(2.0)))))


_UPPER_TAIL = (
    0.11968666315078735, 0.11957234889268875, 0.11023121327161789, 0.07840831577777863, 0.0961054116487503,
    -0.07933204621076584, 0.19167928397655487, -0.2281378209590912, 0.11240459233522415, -0.020617954432964325,
)  # fmt: skip


def _gelu_erf(x: Value, alpha: float, beta: float, t: DType) -> Value:
    """Return ``max(x, 0) - a * q`` with a = abs(x) and q the tail of the normal distribution beyond a.

    q is exp(-a**2 / 2) times a polynomial in 1 / (1 + 0.3 * a), fitted to 4e-9; the rounding error of a**2 is
    compensated. The exponential is multiplied last, and a is limited, so that no product is denormal: denormal operands
    are about a hundred times slower on a CPU.
    """
    a = Binary("min", Unary("abs", x), f32(13.14))
    square = mul(a, a)
    lost = Fma(a, a, Unary("neg", square))
    bell = exp_within(mul(square, f32(0.5)), -1, mul(lost, f32(0.5)))
    u = div(f32(1.0), Fma(a, f32(0.3), f32(1.0)))
    tail = mul(bell, mul(mul(a, u), polynomial(u, _UPPER_TAIL)))
    return sub(Binary("max", x, f32(0.0)), tail)


_ERF = (
    (1.128379225730896, 0.1907833367586136, 0.052790213376283646, 0.003779585240408778, 0.00028480778564698994,
     2.041969082711148e-06),
    (1.0, 0.5024101734161377, 0.11425726860761642, 0.014997394755482674, 0.0011652061948552728, 3.800403283094056e-05),
)  # fmt: skip
"""Coefficients of x**2 in the numerator and the denominator of erf(x) / x: a rational minimax fit up to 3.92."""


def _erf(x: Value, alpha: float, beta: float, t: DType) -> Value:
    """Return x times a quotient of polynomials in x**2; beyond 3.92, where erf rounds to 1, x is limited."""
    y = clamp(x, f32(-3.92), f32(3.92))
    above, below = (polynomial(mul(y, y), coefficients) for coefficients in _ERF)
    return clamp(mul(y, div(above, below)), f32(-1.0), f32(1.0))


def _gelu_tanh(x: Value, alpha: float, beta: float, t: DType) -> Value:
    """Return x * (1 + tanh(u)) / 2 as x * logistic(2 u)."""
    factor = 2 * math.sqrt(2 / math.pi)
    return _times_logistic(x, mul(x, Fma(mul(x, x), f32(factor * 0.044715), f32(factor))))


def _elu(x: Value, alpha: float, beta: float, t: DType) -> Value:
    below = expm1_of_negative(Binary("min", x, f32(0.0)))
    return Where("gt", x, f32(0.0), x, _scaled(below, alpha))


def _exp(x: Value, alpha: float, beta: float, t: DType) -> Value:
    return exp(x)


def _log(x: Value, alpha: float, beta: float, t: DType) -> Value:
    return log(x)


def _soft_relu(x: Value, alpha: float, beta: float, t: DType) -> Value:
    """Return log(1 + exp(alpha * x)) / alpha; the exponential takes a negative argument, so that it stays below 1."""
    size = Binary("min", Unary("abs", _scaled(x, alpha)), f32(87.33))
    log_term = log1p_of_fraction(exp_within(size, -1))
    line = Binary("max" if alpha > 0 else "min", x, f32(0.0))
    return add(line, log_term) if alpha == 1 else Fma(log_term, f32(1 / alpha), line)


def _mish(x: Value, alpha: float, beta: float, t: DType) -> Value:
    """Return x * tanh(log(1 + e)) with e = exp(x), as x * w / (w + 2) with w = e * (e + 2)."""
    e = exp(x, 30.0)
    w = mul(e, add(e, f32(2.0)))
    return mul(x, div(w, add(w, f32(2.0))))


def _pow(x: Value, alpha: float, beta: float, t: DType) -> Value:
    """Return alpha * x**beta with the signs of C's pow; small integer exponents by multiplication."""
    size = abs(beta)
    if beta == 0:
        return const(t, alpha)
    if size == 0.5:
        # pow(-0.0, 0.5) is 0.0 and pow(-inf, 0.5) is inf.
        minus_infinity = const(t, -math.inf)
        power: Value = Unary("sqrt", add(x, const(t, 0.0)))
        power = Where("eq", x, minus_infinity, const(t, math.inf), power)
    elif beta == -1:
        power = x
    elif -2 <= beta <= 6 and size == int(size):
        power = _whole_power(x if beta > 0 else div(const(t, 1), x), int(size))
    else:
        return _general_power(x, alpha, beta, t)
    if beta in (-1, -0.5):
        return div(const(t, alpha), power)
    return power if alpha == 1 else mul(power, const(t, alpha))


def _whole_power(x: Value, n: int) -> Value:
    if n == 1:
        return x
    root = _whole_power(x, n // 2)
    return mul(mul(root, root), x) if n % 2 else mul(root, root)


def _general_power(x: Value, alpha: float, beta: float, t: DType) -> Value:
    _require_single("pow", t)
    power = power_of_size(x, beta)
    if beta % 2 == 1:
        power = with_sign_of(x, power)
    elif beta % 1:
        finite = Where("gt", x, f32(-math.inf), f32(math.nan), power)
        power = Where("lt", x, f32(0.0), finite, power)
    return _scaled(power, alpha)


Function = Callable[[Value, float, float, DType], Value]

_ANY: dict[str, Function] = {
    "relu": _relu,
    "clip": _clip,
    "clip_v2": _clip,
    "linear": _linear,
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "abs": lambda x, alpha, beta, t: Unary("abs", x),
    "sqrt": lambda x, alpha, beta, t: Unary("sqrt", x),
    "round": lambda x, alpha, beta, t: Unary("round", x),
    "floor": lambda x, alpha, beta, t: Unary("floor", x),
    "square": lambda x, alpha, beta, t: mul(x, x),
    "pow": _pow,
}

_SINGLE: dict[str, Function] = {
    "tanh": _tanh,
    "logistic": _logistic,
    "erf": _erf,
    "gelu_erf": _gelu_erf,
    "gelu_tanh": _gelu_tanh,
    "swish": _swish,
    "elu": _elu,
    "exp": _exp,
    "log": _log,
    "mish": _mish,
    "soft_relu": _soft_relu,
    "sin": lambda x, alpha, beta, t: sine(x, 0),
    "cos": lambda x, alpha, beta, t: sine(x, 1),
    "atan": lambda x, alpha, beta, t: arctangent(x),
}

ELEMENTWISE = _ANY | _SINGLE
"""Algorithm name -> function that builds its value; a new algorithm is a new row."""


def elementwise(alg: str, x: Value, alpha: float, beta: float) -> Value:
    """Return the algorithm `alg` applied to `x`. UnsupportedError if it does not exist in the type of `x`."""
    t = dtype_of(x)
    if alg in _SINGLE:
        _require_single(alg, t)
    return ELEMENTWISE[alg](x, alpha, beta, t)


def _require_single(alg: str, t: DType) -> None:
    if t is not F32:
        raise UnsupportedError(f"{alg} on {t} is not available; the nearest is {alg} on f32", code="bad-post-op")
