"""Intervals of index expressions, derived from the ranges of their variables."""

from __future__ import annotations

from collections.abc import Mapping

from convsmith.ir.index import Affine, FloorDiv, Index, Max, Min, Mod, Prod, Quot, Var

Range = tuple[int, int]
"""Lowest and highest value, both inclusive.  If the lowest exceeds the highest, the loop never runs."""

Ranges = Mapping[Var, Range]


class Unbounded(Exception):
    """Raised for a variable without a known range; carries the variable."""


def interval(e: Index, ranges: Ranges) -> Range:
    """Return bounds of ``e``: tight for sums of distinct variables, otherwise conservative.  Unbounded if a range is
    missing.
    """
    if type(e) is Affine:
        lo = hi = e.const
        for atom, c in e.terms:
            r = ranges.get(atom)  # type: ignore[call-overload]
            if r is None:
                r = interval(atom, ranges)
            if c > 0:
                lo += c * r[0]
                hi += c * r[1]
            else:
                lo += c * r[1]
                hi += c * r[0]
        return lo, hi
    if type(e) is Var:
        r = ranges.get(e)
        if r is None:
            raise Unbounded(e)
        return r
    if type(e) is FloorDiv:
        lo, hi = interval(e.num, ranges)
        return lo // e.den, hi // e.den
    if type(e) is Mod:
        lo, hi = interval(e.num, ranges)
        if lo // e.den == hi // e.den:
            return lo % e.den, hi % e.den
        return 0, e.den - 1
    if type(e) is Prod:
        lo, hi = 1, 1
        for a in e.args:
            ends = [x * y for x in (lo, hi) for y in interval(a, ranges)]
            lo, hi = min(ends), max(ends)
        return lo, hi
    if type(e) is Quot:
        ends = [x // max(y, 1) for x in interval(e.num, ranges) for y in interval(e.den, ranges)]
        return min(ends), max(ends)
    if isinstance(e, (Min, Max)):
        parts = [interval(a, ranges) for a in e.args]
        pick = min if type(e) is Min else max
        return pick(p[0] for p in parts), pick(p[1] for p in parts)
    raise TypeError(type(e))


def upper_bound(e: Index, ranges: Ranges) -> int:
    """Return an upper bound of ``e``; a minimum has one if one of its arguments has. Unbounded if there is none."""
    total = e.const
    for atom, c in e.terms:
        if c > 0 and isinstance(atom, Min):
            known = [r[1] for a in atom.args if (r := try_interval(a, ranges)) is not None]
            if not known:
                raise Unbounded(atom)
            total += c * min(known)
        else:
            lo, hi = interval(atom, ranges)
            total += c * (hi if c > 0 else lo)
    return total


def try_interval(e: Index, ranges: Ranges) -> Range | None:
    """Return the interval of ``e``, or None if a variable has no known range."""
    try:
        return interval(e, ranges)
    except Unbounded:
        return None
