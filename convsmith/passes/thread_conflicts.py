"""Tests whether two threads may access one element, so that only a barrier orders their accesses.

The test is for two accesses within one nest of thread loops, by two different threads. Both accesses happen in the same
iteration of the serial loops around them, or the second happens a number of iterations later. Slots of a buffer are
distinguished exactly: the remainders of a serial loop's variable are enumerated.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import lcm, prod

from convsmith.arith.dependence import Access, Distances, LoopBounds
from convsmith.arith.ranges import Range, Ranges, try_interval
from convsmith.arith.simplify import simplify
from convsmith.ir.index import Eq0, Ge0, Index, Mod, Var, as_index
from convsmith.ir.rewrite import substitute
from convsmith.ir.walk import variables_of, walk
from convsmith.passes.accesses import Site

SLOTS = 64
"""Maximum number of remainders of serial loops that are enumerated; beyond it, accesses are compared by intervals."""

@dataclass(frozen=True, slots=True)
class EarlierAccess:
    """An access that no barrier has followed yet.

    ``serial`` are the serial loops around the statement that it belongs to, outermost first. ``later`` are the loops
    that have begun further iterations since, with their number; None means any positive number. For a loop that was
    entered since, it is the number of the current iteration. ``has_arrived`` states that the thread has since arrived
    at a barrier for which it has not yet waited.
    """

    site: Site
    serial: tuple[LoopBounds, ...]
    later: frozenset[tuple[Var, int | None]] = frozenset()
    has_arrived: bool = False


def may_conflict(
    a: EarlierAccess, b: Site, serial: Sequence[LoopBounds], threads: Sequence[LoopBounds], ranges: Ranges
) -> bool:
    """Return whether access ``b`` of one thread may touch an element that access ``a`` of another thread touched
    before.

    ``threads`` are the loops over threads, the outermost loops of both accesses, and ``serial`` are the serial loops
    around the statement of ``b``, outermost first. Without ``threads``, both accesses may be by one thread. ``ranges``
    are the ranges of the variables around the threads.
    """
    first, second = a.site.access, b.access
    if a.site.storage is not b.storage or not (first.is_write or second.is_write):
        return False
    if a.site.is_atomic and b.is_atomic:
        return False
    later = dict(a.later)
    exact: dict[LoopBounds, int] = {}
    signs: dict[Var, int] = {}
    for x, y in zip(a.serial, serial):
        step = later.get(x.var, 0)
        if x is not y:
            break
        if step is None:
            signs[x.var] = 1
            break
        exact[x] = step
        if step:
            break
    signs |= {x.var: 0 for x in exact}
    begun = {x.var: x.lo + n for x in serial if x not in a.serial and (n := later.get(x.var)) is not None}
    if begun:
        second = _substituted(second, begun, {})
    common = {x.var for x in exact}
    for one, other in _in_step(first, second, exact):
        if _are_apart(one, other, common):
            continue
        one, other = _narrowed(one, other, threads)
        distances = Distances(one, other, ranges)
        if any(distances.may({**signs, **apart}) for apart in _other_threads(threads)):
            return True
    return False


def _are_apart(a: Access, b: Access, common: Container[Var]) -> bool:
    """Return whether the intervals of two accesses are disjoint, for equal values of the ``common`` variables."""
    if a.index is None or b.index is None:
        return False
    own = {x.var: Var(f"{x.var}'") for x in b.loops if x.var not in common}
    ranges = _where_it_happens(a) | {own.get(v, v): r for v, r in _where_it_happens(b).items()}
    last = len(a.index) - 1
    for dim, (f, g) in enumerate(zip(a.index, b.index)):
        apart = try_interval(substitute(g, own) - f, ranges)
        low, high = (a.lanes[0] - b.lanes[1], a.lanes[1] - b.lanes[0]) if dim == last else (0, 0)
        if apart is not None and (apart[0] > high or apart[1] < low):
            return True
    return False


def _narrowed(a: Access, b: Access, threads: Sequence[LoopBounds]) -> tuple[Access, Access]:
    """Return the accesses with loops over threads restricted to the threads that execute one of them."""
    loops: dict[LoopBounds, LoopBounds] = {}
    for x in threads:
        places = [_where_it_happens(c)[x.var] for c in (a, b)]
        range_ = min(r[0] for r in places), max(r[1] for r in places)
        if range_ != x.range:
            loops[x] = LoopBounds(x.var, as_index(range_[0]), as_index(range_[1] + 1), range_)
    return (_substituted(a, {}, loops), _substituted(b, {}, loops)) if loops else (a, b)


def _where_it_happens(a: Access) -> dict[Var, Range]:
    """Return the ranges of the loops' variables, narrowed by conditions on a single variable."""
    ranges: dict[Var, Range] = {x.var: x.range for x in a.loops}
    for c in a.conds:
        if isinstance(c, (Ge0, Eq0)) and len(c.arg.terms) == 1:
            ((atom, factor),) = c.arg.terms
            if isinstance(atom, Var) and atom in ranges:
                low, high = ranges[atom]
                if factor < 0 or isinstance(c, Eq0):
                    high = min(high, c.arg.const // -factor if factor < 0 else -c.arg.const // factor)
                if factor > 0:
                    low = max(low, -(c.arg.const // factor))
                ranges[atom] = low, high
    return ranges


def _other_threads(threads: Sequence[LoopBounds]) -> Iterator[dict[Var, int]]:
    """Yield the signs of distances between two threads that differ; without loops, between any two threads."""
    same: dict[Var, int] = {}
    if not threads:
        yield same
    for x in threads:
        for sign in (1, -1):
            yield {**same, x.var: sign}
        same[x.var] = 0


def _in_step(a: Access, b: Access, steps: Mapping[LoopBounds, int]) -> Iterator[tuple[Access, Access]]:
    """Yield ``a`` and ``b`` in iterations of loops that are ``steps`` apart, as if they were in the same iteration.

    Each remainder of a loop's variable that the indices ask for is a pair of its own.
    """
    moved: dict[Var, Index] = {x.var: x.var + step for x, step in steps.items() if step}
    b = _substituted(b, moved, {}) if moved else b
    dens = {x.var: 1 for x in steps}
    for e in (*(a.index or ()), *(b.index or ())):
        for m in walk(e):
            if isinstance(m, Mod):
                for v in variables_of(m) & dens.keys():
                    dens[v] = lcm(dens[v], m.den)
    cut = [(x, dens[x.var]) for x in steps if dens[x.var] > 1]
    if not cut or prod(n for _, n in cut) > SLOTS:
        yield a, b
        return
    for remainders in product(*(range(n) for _, n in cut)):
        values: dict[Var, Index] = {}
        loops: dict[LoopBounds, LoopBounds] = {}
        for (x, n), r in zip(cut, remainders):
            first, last = -((r - x.range[0]) // n), (x.range[1] - r) // n
            values[x.var] = x.var * n + r
            loops[x] = LoopBounds(x.var, as_index(first), as_index(last + 1), (first, last))
        if all(x.range[0] <= x.range[1] for x in loops.values()):
            yield _substituted(a, values, loops), _substituted(b, values, loops)


def _substituted(access: Access, values: Mapping[Var, Index], loops: Mapping[LoopBounds, LoopBounds]) -> Access:
    """Return the access with other indices and conditions, and with other loops around it."""
    around = tuple(loops.get(x, x) for x in access.loops)
    ranges: dict[Var, Range] = {x.var: x.range for x in around}
    index = access.index
    if index is not None:
        index = tuple(simplify(substitute(i, values), ranges) for i in index)
    conds = tuple(substitute(c, values) for c in access.conds) if values else access.conds
    return replace(access, index=index, loops=around, conds=conds)
