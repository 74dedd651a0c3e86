"""Simplification of indices, conditions and the indices within values, under ranges of variables.

The rules are rows of :mod:`convsmith.arith.rules`.  Tests hold three laws: an expression that cannot be simplified is
returned as the same object; simplification is idempotent; the result is equal for all values within the ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convsmith.arith.ranges import Range, Ranges, try_interval
from convsmith.arith.rules import BY_ROOT
from convsmith.ir.index import Cond, Eq0, FloorDiv, Ge0, Index, Max, Min, Mod, Var, as_index, false
from convsmith.ir.intern import nodes
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.walk import variables_of

_NO_RANGES: Mapping[Var, Range] = {}


class Simplifier(Rewriter):
    """A rewriter that applies the rules to every index and condition under fixed ranges."""

    def __init__(self, ranges: Ranges = _NO_RANGES) -> None:
        super().__init__()
        self.ranges = ranges

    def _to_fixpoint(self, node: Any) -> Any:
        kind = type(node)
        node = self.rebuild(node)
        if type(node) is not kind:
            return self.expr(node)
        rules = BY_ROOT.get(kind)
        if rules:
            for rule in rules:
                out = rule.apply(node, self.ranges)
                if out is not None:
                    return self.expr(out)
        return node

    def visit_Var(self, v: Var) -> Index:
        r = self.ranges.get(v)
        return as_index(r[0]) if r is not None and r[0] == r[1] else v

    def atom(self, a: Index) -> Index:
        return self.visit_Var(a) if type(a) is Var else self.expr(a)

    def visit_FloorDiv(self, e: FloorDiv) -> Index:
        return self._to_fixpoint(e)  # type: ignore[no-any-return]

    def visit_Mod(self, e: Mod) -> Index:
        return self._to_fixpoint(e)  # type: ignore[no-any-return]

    def visit_Min(self, e: Min) -> Index:
        return self._to_fixpoint(e)  # type: ignore[no-any-return]

    def visit_Max(self, e: Max) -> Index:
        return self._to_fixpoint(e)  # type: ignore[no-any-return]

    def visit_Ge0(self, c: Ge0) -> Cond:
        return self._to_fixpoint(c)  # type: ignore[no-any-return]

    def visit_Eq0(self, c: Eq0) -> Cond:
        r = try_interval(self.expr(c.arg), self.ranges)
        if r is not None and (r[0] > 0 or r[1] < 0):
            return false()
        return self._to_fixpoint(c)  # type: ignore[no-any-return]


def simplify(e: Any, ranges: Ranges = _NO_RANGES) -> Any:
    """Return the simplest form of the index, condition or value ``e`` that the rules reach.

    ``ranges`` maps variables to their lowest and highest value; a variable without a range may be any integer. The
    table of nodes keeps the result for the ranges of the variables of ``e``, because passes simplify most expressions
    again.
    """
    known = nodes()
    key = (simplify, e, *map(ranges.get, variables_of(e)))
    out = known.get(key)
    if out is None:
        out = known[key] = Simplifier(ranges).expr(e)
    return out
