"""Functions of one value that other operators of ONNX express: trigonometric and hyperbolic ones, and Hardmax.

Each is accurate to some units in the last place of f32, also near 0, where differences of exponentials cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.onnx.replacement import Replacement

__all__ = ["FUNCTIONS"]


class _Arithmetic:
    """Writes arithmetic on values and constants of the type of the node's input."""

    def __init__(self, w: Replacement) -> None:
        self._w, self.x = w, w.input(0)

    def held(self, number: float) -> str:
        """Return a constant of the input's type."""
        return str(self._w.op("CastLike", self._w.held(np.float32(number)), self.x))

    def op(self, operator: str, *operands: str | float) -> str:
        """Add an operator on values and numbers."""
        return str(self._w.op(operator, *(x if isinstance(x, str) else self.held(x) for x in operands)))

    def end(self, operator: str, *operands: str | float) -> None:
        """Add the operator whose result is that of the node."""
        self._w.end(operator, *(x if isinstance(x, str) else self.held(x) for x in operands))

    def log1p(self, x: str) -> str:
        """Return log(1 + x) as log(u) * x / (u - 1) with u = 1 + x rounded, which has the error of u in both factors.
        """
        u = self.op("Add", x, 1.0)
        difference = self.op("Sub", u, 1.0)
        is_none, is_infinite = self.op("Equal", difference, 0.0), self.op("Equal", u, float("inf"))
        whole = self.op("Div", self.op("Mul", self.op("Log", u), x), self.op("Where", is_none, 1.0, difference))
        return self.op("Where", is_none, x, self.op("Where", is_infinite, u, whole))

    def expm1_below(self, x: str) -> str:
        """Return exp(-|x|) - 1."""
        return self.op("Elu", self.op("Neg", self.op("Abs", x)))

    def signed(self, size: str) -> None:
        """End with a size that has the sign of the input."""
        self.end("Where", self.op("Less", self.x, 0.0), self.op("Neg", size), size)


def _tan(w: Replacement) -> None:
    n = _Arithmetic(w)
    n.end("Div", n.op("Sin", n.x), n.op("Cos", n.x))


def _asin(w: Replacement) -> None:
    """Write the angle whose tangent is x / sqrt((1 - x) * (1 + x))."""
    n = _Arithmetic(w)
    root = n.op("Sqrt", n.op("Mul", n.op("Sub", 1.0, n.x), n.op("Add", n.x, 1.0)))
    n.end("Atan", n.op("Div", n.x, root))


def _acos(w: Replacement) -> None:
    """Write twice the angle whose tangent is sqrt((1 - x) / (1 + x))."""
    n = _Arithmetic(w)
    root = n.op("Sqrt", n.op("Div", n.op("Sub", 1.0, n.x), n.op("Add", n.x, 1.0)))
    n.end("Mul", n.op("Atan", root), 2.0)


def _sinh(w: Replacement) -> None:
    """Write -m * (m + 2) / 2 * exp(|x|), with m = exp(-|x|) - 1, and the sign of x."""
    n = _Arithmetic(w)
    m = n.expm1_below(n.x)
    half = n.op("Exp", n.op("Mul", n.op("Abs", n.x), 0.5))  # exp(|x|) alone is infinite before the result is
    n.signed(n.op("Mul", n.op("Mul", n.op("Mul", n.op("Mul", m, n.op("Add", m, 2.0)), -0.5), half), half))


def _cosh(w: Replacement) -> None:
    n = _Arithmetic(w)
    size = n.op("Abs", n.x)
    half = n.op("Exp", n.op("Mul", size, 0.5))
    n.end("Mul", n.op("Mul", n.op("Add", n.op("Exp", n.op("Mul", size, -2.0)), 1.0), n.op("Mul", half, 0.5)), half)


def _asinh(w: Replacement) -> None:
    """Write log(1 + a + a * a / (1 + sqrt(a * a + 1))), with a = |x|, or log(a) + log(2) where a * a is infinite."""
    n = _Arithmetic(w)
    a = n.op("Abs", n.x)
    square = n.op("Mul", a, a)
    more = n.op("Div", square, n.op("Add", n.op("Sqrt", n.op("Add", square, 1.0)), 1.0))
    far = n.op("Add", n.op("Log", a), float(np.log(2)))
    n.signed(n.op("Where", n.op("Greater", a, 1e9), far, n.log1p(n.op("Add", a, more))))


def _acosh(w: Replacement) -> None:
    """Write log(1 + t + sqrt(t) * sqrt(t + 2)), with t = x - 1, or log(x) + log(2) where 1 + t is t."""
    n = _Arithmetic(w)
    t = n.op("Sub", n.x, 1.0)
    root = n.op("Mul", n.op("Sqrt", t), n.op("Sqrt", n.op("Add", t, 2.0)))
    far = n.op("Add", n.op("Log", n.x), float(np.log(2)))
    n.end("Where", n.op("Greater", n.x, 1e9), far, n.log1p(n.op("Add", t, root)))


def _atanh(w: Replacement) -> None:
    """Write log(1 + 2 * a / (1 - a)) / 2, with a = |x|, and the sign of x."""
    n = _Arithmetic(w)
    a = n.op("Abs", n.x)
    n.signed(n.op("Mul", n.log1p(n.op("Div", n.op("Mul", a, 2.0), n.op("Sub", 1.0, a))), 0.5))


def _hardmax(w: Replacement) -> None:
    """Write 1 at the place of the first maximum along an axis, and 0 elsewhere."""
    shape, axis = w.shape_of(w.input(0)), w.given("axis", -1)
    if not -len(shape) <= axis < len(shape):
        raise UsageError(f"axis {axis} of {len(shape)}; legal are {-len(shape)} to {len(shape) - 1}", code="axis")
    place = w.op("ArgMax", w.input(0), axis=axis, keepdims=0)
    ones = w.op("OneHot", place, w.held(np.array(shape[axis])), w.held(np.array([0, 1], np.float32)), axis=axis)
    w.end("CastLike", ones, w.input(0))


def _global_norm(w: Replacement) -> None:
    """Write the p-th root of the sum of the p-th powers of the sizes of all pixels."""
    p, axes = w.given("p", 2), w.held(np.arange(2, len(w.shape_of(w.input(0)))))
    if p in (1, 2):
        w.end(f"ReduceL{p}", w.input(0), axes, keepdims=1)
        return
    powers = w.op("Pow", w.op("Abs", w.input(0)), w.held(np.float32(p)))
    w.end("Pow", w.op("ReduceSum", powers, axes, keepdims=1), w.held(np.float32(1 / p)))


FUNCTIONS: Mapping[str, Callable[[Replacement], None]] = {
    "Tan": _tan, "Asin": _asin, "Acos": _acos, "Sinh": _sinh, "Cosh": _cosh, "Asinh": _asinh, "Acosh": _acosh,
    "Atanh": _atanh, "Hardmax": _hardmax, "GlobalLpPool": _global_norm,
}  # fmt: skip
"""By ONNX's name, the row that writes the nodes of an operator."""
