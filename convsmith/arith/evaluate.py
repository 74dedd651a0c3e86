"""Evaluation of indices and conditions for given values of their variables: ints, or numpy arrays of them.

The functions are duck-typed: whatever the mapping holds is added, multiplied and divided with ``// %``; only
``minimum`` and ``maximum`` of more than ints are asked of the caller, so that this package needs no numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convsmith.ir.index import Affine, And, Cond, Eq0, FloorDiv, Ge0, Index, Min, Mod, Never, Var


def evaluate(e: Index, values: Mapping[Var, Any]) -> Any:
    """The value of an index."""
    t = type(e)
    if t is Var:
        return values[e]
    if t is Affine:
        total: Any = e.const
        for atom, c in e.terms:
            total = total + evaluate(atom, values) * c
        return total
    if t is FloorDiv:
        return evaluate(e.num, values) // e.den
    if t is Mod:
        return evaluate(e.num, values) % e.den
    parts = [evaluate(a, values) for a in e.args]  # type: ignore[attr-defined]
    out = parts[0]
    for p in parts[1:]:
        out = _lesser(out, p) if t is Min else -_lesser(-out, -p)
    return out


def _lesser(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return a + (b - a) * (b < a)


def holds(c: Cond, values: Mapping[Var, Any]) -> Any:
    """Whether a condition holds (a bool, or an array of them)."""
    t = type(c)
    if t is Ge0:
        return evaluate(c.arg, values) >= 0
    if t is Eq0:
        return evaluate(c.arg, values) == 0
    if t is Never:
        return False
    assert t is And
    out: Any = True
    for p in c.parts:
        out = out & holds(p, values)
    return out
