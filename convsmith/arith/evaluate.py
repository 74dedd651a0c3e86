"""Evaluation of indices and conditions for given values of their variables, which are ints or arrays.

The functions are duck-typed: they use only ``+ - * // %`` and comparisons, so that arrays work without numpy here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convsmith.ir.index import Affine, And, Cond, Eq0, FloorDiv, Ge0, Index, Max, Min, Mod, Never, Prod, Quot, Var


def evaluate(e: Index, values: Mapping[Var, Any]) -> Any:
    """Return the value of ``e``, given the ``values`` of its variables. KeyError if a variable has none."""
    if type(e) is Var:
        return values[e]
    if type(e) is Affine:
        total: Any = e.const
        for atom, c in e.terms:
            total = total + evaluate(atom, values) * c
        return total
    if type(e) is FloorDiv:
        return evaluate(e.num, values) // e.den
    if type(e) is Mod:
        return evaluate(e.num, values) % e.den
    if type(e) is Quot:
        return evaluate(e.num, values) // evaluate(e.den, values)
    assert isinstance(e, (Min, Max, Prod))
    parts = [evaluate(a, values) for a in e.args]
    out = parts[0]
    if type(e) is Prod:
        for p in parts[1:]:
            out = out * p
        return out
    for p in parts[1:]:
        out = _lesser(out, p) if type(e) is Min else -_lesser(-out, -p)
    return out


def _lesser(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return a + (b - a) * (b < a)


def holds(c: Cond, values: Mapping[Var, Any]) -> Any:
    """Return whether ``c`` holds, as a bool or an array of bools."""
    if type(c) is Ge0:
        return evaluate(c.arg, values) >= 0
    if type(c) is Eq0:
        return evaluate(c.arg, values) == 0
    if type(c) is Never:
        return False
    assert type(c) is And
    out: Any = True
    for p in c.parts:
        out = out & holds(p, values)
    return out
