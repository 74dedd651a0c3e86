"""Nests whose buffers have a loop in panels: the loop as two, so that every access moves evenly along each of them."""

from __future__ import annotations

from typing import NamedTuple

from convsmith.arith.simplify import simplify
from convsmith.ir.index import FloorDiv, Index, Mod, Var, as_index
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import For, Store
from convsmith.ir.value import Load
from convsmith.ir.walk import walk

__all__ = ["StoreNest", "panels_of", "split_nest"]


class StoreNest(NamedTuple):
    """Perfectly nested loops and the store in the last."""

    loops: tuple[For, ...]
    store: Store


def panels_of(nest: StoreNest) -> tuple[tuple[int, int], ...]:
    """Return the position of each loop by whose panels an access moves, with the iterations of a panel: the access
    divides the loop's variable by a divisor of its iterations.
    """
    found: dict[Var, int] = {}
    indexes = [i for v in (nest.store, *walk(nest.store.value)) if isinstance(v, (Load, Store)) for i in v.index]
    for atom in (a for i in indexes for a, _ in i.terms if isinstance(a, (FloorDiv, Mod))):
        if isinstance(atom.num, Var):
            found.setdefault(atom.num, atom.den)
    sizes = {x.var: x.hi.const for x in nest.loops if not (x.lo.terms or x.lo.const or x.hi.terms)}
    cut = {v: n for v, n in found.items() if v in sizes and 1 < n < sizes[v] and not sizes[v] % n}
    return tuple((at, cut[x.var]) for at, x in enumerate(nest.loops) if x.var in cut)


def split_nest(nest: StoreNest, at: int, size: int) -> StoreNest:
    """Return ``nest`` with the loop at a position split into a loop over panels of ``size`` and one over a panel."""
    x = nest.loops[at]
    outer, inner = Var(f"{x.var.name}.o"), Var(f"{x.var.name}.i")
    moved = substitute(nest.store, {x.var: outer * size + inner})
    ranges = {outer: (0, x.hi.const // size - 1), inner: (0, size - 1)}
    loops = (For(outer, x.lo, as_index(x.hi.const // size), x.body), For(inner, x.lo, as_index(size), x.body))
    store = _Simplified(ranges).stmt(moved)
    assert isinstance(store, Store)
    return StoreNest((*nest.loops[:at], *loops, *nest.loops[at + 1 :]), store)


class _Simplified(Rewriter):
    """Simplifies the indices of a statement."""

    def __init__(self, ranges: dict[Var, tuple[int, int]]) -> None:
        super().__init__()
        self.ranges = ranges

    def expr(self, e: object) -> object:
        return simplify(e, self.ranges) if isinstance(e, Index) else super().expr(e)
