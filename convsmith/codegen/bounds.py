"""Bounds of values: the least and the greatest number that a value may be, from the types of the integers in it."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

from convsmith.ir.types import F32, F64, DType
from convsmith.ir.value import Binary, Cast, Const, Fma, Value, Where, dtype_of

Bounds = tuple[float, float]
"""The least and the greatest number of a value that is finite and not NaN."""

_ROUNDING = 2.0**-22
"""Maximum relative distance of a rounded f32 or f64 from the number."""
_GREATEST = {F32: 3.4e38, F64: 1e300}
"""Numbers below which no finite value of a type becomes infinite by rounding."""


def bounds_of(v: Value, known: dict[Value, Bounds | None] | None = None) -> Bounds | None:
    """Return the bounds of a number; None if ``v`` may be infinite, NaN or anything of its type.

    Each bound moves outwards by an f32's rounding. Zero stays zero, because rounding changes no sign. ``known`` caches
    the bounds of shared values.
    """
    known = {} if known is None else known
    if v not in known:
        known[v] = _rounded(_found(v, known), dtype_of(v))
    return known[v]


def _found(v: Value, known: dict[Value, Bounds | None]) -> Bounds | None:
    """Return the bounds of a number before it is rounded."""
    if isinstance(v, Const):
        return (v.value, v.value) if isfinite(v.value) else None
    if isinstance(v, Cast):
        source = dtype_of(v.a)
        return source.limits if source.kind != "float" else bounds_of(v.a, known)
    if isinstance(v, Binary) and v.op in _BINARY:
        return _both(v.op, bounds_of(v.a, known), bounds_of(v.b, known))
    if isinstance(v, Fma):
        product = _both("mul", bounds_of(v.a, known), bounds_of(v.b, known))
        return _both("add", product, bounds_of(v.c, known))
    if isinstance(v, Where):
        yes, no = bounds_of(v.yes, known), bounds_of(v.no, known)
        return None if yes is None or no is None else (min(yes[0], no[0]), max(yes[1], no[1]))
    return None


def _rounded(found: Bounds | None, type_: DType) -> Bounds | None:
    """Return bounds that hold after rounding; None if a number may become infinite, and for integers, which wrap."""
    if found is None or type_ not in _GREATEST:
        return None
    low, high = found[0] - abs(found[0]) * _ROUNDING, found[1] + abs(found[1]) * _ROUNDING
    return (low, high) if max(-low, high) < _GREATEST[type_] else None


def _product(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of a product, which are products of bounds of its factors."""
    found = [x * y for x in a for y in b]
    return min(found), max(found)


_BINARY: dict[str, Callable[[Bounds, Bounds], Bounds]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
}


def _both(op: str, a: Bounds | None, b: Bounds | None) -> Bounds | None:
    """Return the bounds of an operation on two numbers."""
    return None if a is None or b is None else _BINARY[op](a, b)
