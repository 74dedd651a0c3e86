"""Element-wise algorithms as rows of one table: the parameters that each reads, and its meaning in numpy.

Meanings are oneDNN's, for an array of floating-point numbers. Every operation rounds to the type of that array, and NaN
stays NaN. `clip_v2` differs from `clip` only in its gradient at the bounds. `atan`, `erf`, `floor`, `sin` and `cos` are
ONNX's; oneDNN has none. A sine or a cosine of a number from `MOST_ANGLE` on is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from convsmith.diag.record import record

__all__ = ["ALGORITHMS", "MOST_ANGLE", "Algorithm"]

MOST_ANGLE = 2.0**30
"""Magnitude from which no angle has a sine: neighbouring numbers of f32 are 64 apart."""

Array = np.ndarray[tuple[int, ...], Any]


@record(frozen=True)
class Algorithm:
    """An element-wise function. `parameters` names the numbers that it reads; `apply(x, alpha, beta)` computes it in
    numpy.
    """

    parameters: tuple[str, ...]
    apply: Callable[[Array, float, float], Array]
    ordered: bool = False
    """Whether alpha must not exceed beta."""
    divides: bool = False
    """Whether the algorithm divides by alpha, so that alpha must not be 0."""
    transcendental: bool = False
    """Whether two correct implementations may differ in the last bits."""


def _relu(x: Array, alpha: float, beta: float) -> Array:
    return np.maximum(x, 0) if alpha == 0 else np.where(x > 0, x, x * alpha)


def _clip(x: Array, alpha: float, beta: float) -> Array:
    return np.minimum(np.maximum(x, alpha), beta)


def _logistic(x: Array, alpha: float, beta: float) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def _hardsigmoid(x: Array, alpha: float, beta: float) -> Array:
    return _clip(x * alpha + beta, 0, 1)


def _erf(x: Array, alpha: float, beta: float) -> Array:
    found: Any = np.frompyfunc(math.erf, 1, 1)(x.astype(np.float64))
    return np.asarray(found).astype(x.dtype)


def _gelu_erf(x: Array, alpha: float, beta: float) -> Array:
    result: Array = x * 0.5 * (1 + _erf(x.astype(np.float64) * math.sqrt(0.5), 0, 0).astype(x.dtype))
    return result


def _gelu_tanh(x: Array, alpha: float, beta: float) -> Array:
    result: Array = x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))
    return result


def _soft_relu(x: Array, alpha: float, beta: float) -> Array:
    result: Array = np.logaddexp(x.dtype.type(0), x * alpha) / alpha
    return result


def _of_angle(function: Callable[[Array], Any], x: Array) -> Array:
    return np.where(np.abs(x) < MOST_ANGLE, function(x.astype(np.float64)), np.nan).astype(x.dtype)


ALGORITHMS: dict[str, Algorithm] = {
    "relu": Algorithm(("slope",), _relu),
    "clip": Algorithm(("low", "high"), _clip, ordered=True),
    "clip_v2": Algorithm(("low", "high"), _clip, ordered=True),
    "abs": Algorithm((), lambda x, a, b: np.abs(x)),
    "atan": Algorithm((), lambda x, a, b: np.arctan(x), transcendental=True),
    "cos": Algorithm((), lambda x, a, b: _of_angle(np.cos, x), transcendental=True),
    "elu": Algorithm(("alpha",), lambda x, a, b: np.where(x > 0, x, np.expm1(x) * a), transcendental=True),
    "erf": Algorithm((), _erf, transcendental=True),
    "exp": Algorithm((), lambda x, a, b: np.exp(x), transcendental=True),
    "floor": Algorithm((), lambda x, a, b: np.floor(x)),
    "gelu_erf": Algorithm((), _gelu_erf, transcendental=True),
    "gelu_tanh": Algorithm((), _gelu_tanh, transcendental=True),
    "hardsigmoid": Algorithm(("alpha", "beta"), _hardsigmoid),
    "hardswish": Algorithm(("alpha", "beta"), lambda x, a, b: x * _hardsigmoid(x, a, b)),
    "linear": Algorithm(("alpha", "beta"), lambda x, a, b: x * a + b),
    "log": Algorithm((), lambda x, a, b: np.log(x), transcendental=True),
    "logistic": Algorithm((), _logistic, transcendental=True),
    "mish": Algorithm((), lambda x, a, b: x * np.tanh(_soft_relu(x, 1, 0)), transcendental=True),
    "pow": Algorithm(("alpha", "beta"), lambda x, a, b: np.power(x, b) * a, transcendental=True),
    "round": Algorithm((), lambda x, a, b: np.rint(x)),
    "sin": Algorithm((), lambda x, a, b: _of_angle(np.sin, x), transcendental=True),
    "soft_relu": Algorithm(("alpha",), _soft_relu, divides=True, transcendental=True),
    "sqrt": Algorithm((), lambda x, a, b: np.sqrt(x)),
    "square": Algorithm((), lambda x, a, b: x * x),
    "swish": Algorithm(("alpha",), lambda x, a, b: x * _logistic(x * a, 0, 0), transcendental=True),
    "tanh": Algorithm((), lambda x, a, b: np.tanh(x), transcendental=True),
}
