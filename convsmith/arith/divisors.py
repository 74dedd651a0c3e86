"""Numbers that divide an index whatever its variables are."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod

from convsmith.ir.index import Affine, Index, Max, Min, Mod, Prod, Var

__all__ = ["divisor_of"]


def divisor_of(e: Index, known: Mapping[Var, int]) -> int:
    """Return a number that divides ``e``: 0 for the index 0. ``known`` are divisors of variables."""
    if isinstance(e, Var):
        return known.get(e, 1)
    if isinstance(e, Mod):
        return gcd(divisor_of(e.num, known), e.den)
    if isinstance(e, Prod):
        return prod(divisor_of(x, known) for x in e.args)
    if isinstance(e, (Min, Max)):
        return gcd(*(divisor_of(x, known) for x in e.args))
    if isinstance(e, Affine) or not e.terms:
        return gcd(e.const, *(c * divisor_of(atom, known) for atom, c in e.terms))
    return 1
