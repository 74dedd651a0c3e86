"""Element-wise algorithms as values."""

from __future__ import annotations

from collections.abc import Callable

from convsmith.ir.types import DType
from convsmith.ir.value import Binary, Unary, Value, Where, const


def _relu(x: Value, alpha: float, beta: float, t: DType) -> Value:
    if alpha == 0:
        return Binary("max", x, const(t, 0))
    return Where("lt", x, const(t, 0), Binary("mul", x, const(t, alpha)), x)


def _clip(x: Value, alpha: float, beta: float, t: DType) -> Value:
    return Binary("min", Binary("max", x, const(t, alpha)), const(t, beta))


def _round(x: Value, alpha: float, beta: float, t: DType) -> Value:
    return Unary("round", x)


ELEMENTWISE: dict[str, Callable[[Value, float, float, DType], Value]] = {
    "relu": _relu, "clip": _clip, "clip_v2": _clip, "round": _round,
}  # fmt: skip
