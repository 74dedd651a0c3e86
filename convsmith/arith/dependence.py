"""Dependences: iterations of loops in which two accesses touch one element.

The distance of a dependence is, for each loop around both accesses, the iteration of the second minus the iteration of
the first.  :class:`Distances` bounds the distances from the indices, which must be equal: each dim of the buffer gives
an equation, a floor division or modulo another two, and intervals and divisibility narrow the unknowns.  An index that
gives no equation leaves its distances unknown, which is safe: every distance is then possible.

A bounded distance need not occur.  :meth:`Distances.example` searches for two iterations that meet, and also asks the
exact bounds of the loops and the conditions around the accesses.

A stride that is a size of the kernel makes products in an index.  The index is split by these sizes, and each part
gives an equation, because distinct elements of a layout lie at distinct places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from convsmith.arith.evaluate import evaluate, holds
from convsmith.arith.ranges import Range, Ranges, try_interval
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, FloorDiv, Index, Min, Mod, Prod, Var, as_index, product
from convsmith.ir.walk import variables_of

INFINITE = 1 << 62
"""Iterations of a loop that ends at a size known at the call only."""
ROUNDS = 8
"""Rounds of narrowing after which the bounds of the unknowns are used as they are."""
SEARCH = 4000
"""Values that the search for an example gives to unknowns before it stops without an answer."""

Signs = Mapping[Var, int]
"""For some loops, whether the distance is positive (1), negative (-1) or zero (0)."""

_Values = dict[Var, int]
_Equation = tuple[tuple[tuple[int, int], ...], int]
"""Pairs (unknown, coefficient) and the constant, which add up to zero."""


@dataclass(frozen=True, eq=False, slots=True)
class LoopBounds:
    """A loop around accesses: ``var`` runs ``lo .. hi``, which lies within ``range``."""

    var: Var
    lo: Index
    hi: Index
    range: Range


@dataclass(frozen=True, eq=False, slots=True)
class Access:
    """A read or write of ``buffer`` at ``index``, plus a lane of ``lanes`` along the last dim.

    ``loops`` are the loops around the access, outermost first.  ``conds`` hold where the access happens.  An index of
    None is an unknown place.
    """

    buffer: Buffer
    index: tuple[Index, ...] | None
    is_write: bool
    loops: tuple[LoopBounds, ...]
    conds: tuple[Cond, ...] = ()
    lanes: Range = (0, 0)


class Unsettled(Exception):
    """The search for an example ended without an answer."""


def shared_loops(a: Access, b: Access) -> tuple[LoopBounds, ...]:
    """Return the loops that are around both accesses, outermost first."""
    n = 0
    for x, y in zip(a.loops, b.loops):
        if x is not y:
            break
        n += 1
    return a.loops[:n]


def is_injective(a: Access, b: Access) -> bool:
    """Return whether two accesses at one index touch an element only in the same iteration of the same loops.

    This is the common case, and a quick test: True is certain, False is not.
    """
    if a.loops != b.loops or a.index is None or a.lanes != (0, 0) or b.lanes != (0, 0) or not _is_dense(a.buffer):
        return False
    widths = {x.var: x.range[1] - x.range[0] for x in a.loops if x.range[1] > x.range[0]}
    for e in a.index:
        if _is_mixed_radix(e, widths):
            for atom, _ in e.terms:
                widths.pop(atom, None)  # type: ignore[call-overload]
    return not widths


def _is_mixed_radix(e: Index, widths: Mapping[Var, int]) -> bool:
    """Return whether distinct values of the variables, within the widths of their ranges, give distinct indices."""
    reach = 0
    for atom, c in sorted(e.terms, key=_size):
        if type(atom) is not Var or abs(c) <= reach:
            return False
        reach += abs(c) * widths.get(atom, 0)
    return True


def _size(term: tuple[Index, int]) -> int:
    return abs(term[1])


class Distances:
    """Bounds of the distances from ``a`` to ``b`` in the loops around both, where both touch one element.

    ``outer`` are ranges of the variables around all of the loops, which have one value for both.  The buffer is of an
    iteration's own for the ``private`` outermost loops.
    """

    def __init__(self, a: Access, b: Access, outer: Ranges, private: int = 0) -> None:
        self.a, self.b, self.outer = a, b, outer
        self.loops = shared_loops(a, b)
        self._lo: list[int] = []
        self._hi: list[int] = []
        self._equations: list[_Equation] = []
        self._known: dict[object, int] = {}
        self._steps: dict[Var, int] = {}
        self._tiles: list[tuple[dict[int, int], int]] = []
        self._own = tuple({x.var: x.range for x in c.loops[len(self.loops) :]} for c in (a, b))
        self._ranges: dict[Var, Range] = {**outer, **{x.var: x.range for x in self.loops}}
        self.is_possible = all(x.range[0] <= x.range[1] for x in (*a.loops, *b.loops))
        for n, loop in enumerate(self.loops):
            width = 0 if n < private else loop.range[1] - loop.range[0]
            self._steps[loop.var] = self._unknown(loop.var, -width, width)
        self._cut_tiles()
        if self.is_possible and a.index is not None and b.index is not None and _is_dense(a.buffer):
            last = len(a.index) - 1
            for dim, (f, g) in enumerate(zip(a.index, b.index)):
                spread = (a.lanes[0] - b.lanes[1], a.lanes[1] - b.lanes[0]) if dim == last else (0, 0)
                self._equal(f, g, spread)
        self.is_possible = self.is_possible and self._narrow(self._lo, self._hi)

    def bounds(self, loop: Var) -> Range:
        """Return the least and the greatest distance along ``loop``."""
        n = self._steps[loop]
        return self._lo[n], self._hi[n]

    def may(self, signs: Signs) -> bool:
        """Return whether distances of these signs are possible."""
        if not self.is_possible:
            return False
        lo, hi = self._signed(signs)
        return all(x <= y for x, y in zip(lo, hi)) and self._narrow(lo, hi)

    def occur(self, signs: Signs) -> bool:
        """Return whether iterations at distances of these signs touch one element; also true if the search for them
        ends without an answer.
        """
        try:
            return self.may(signs) and self.example(signs) is not None
        except Unsettled:
            return True

    def _signed(self, signs: Signs) -> tuple[list[int], list[int]]:
        """Return the bounds of the unknowns under the signs."""
        lo, hi = list(self._lo), list(self._hi)
        for var, sign in signs.items():
            n = self._steps[var]
            if sign >= 0:
                lo[n] = max(lo[n], sign)
            if sign <= 0:
                hi[n] = min(hi[n], sign)
        return lo, hi

    # -- equations
    def _cut_tiles(self) -> None:
        """Give a sum of loops an unknown of its own, where the last loop ends where the sum does.

        A tile that is cut short keeps the sum in a range that is shorter than the ranges of the loops add up to.
        """
        for loop in self.loops:
            if loop.hi.is_const:
                continue
            for end in _bounds_of(loop.hi):
                past = loop.var - end
                r = try_interval(past, self._ranges)
                if r is not None and len(past.terms) > 1 and all(atom in self._steps for atom, _ in past.terms):
                    total = {self._steps[atom]: c for atom, c in past.terms}  # type: ignore[index]
                    width = max(-1 - r[0], 0)
                    step = self._unknown(("tile", past), -width, width)
                    self._add([(step, -1), *total.items()], 0)
                    self._tiles.append((total, step))

    def _unknown(self, key: object, lo: int, hi: int) -> int:
        n = self._known.get(key)
        if n is None:
            n = self._known[key] = len(self._lo)
            self._lo.append(lo)
            self._hi.append(hi)
        return n

    def _equal(self, f: Index, g: Index, spread: Range) -> None:
        """Let ``f`` in a's iteration, plus something within ``spread``, be ``g`` in b's."""
        if any(type(atom) is Prod for e in (f, g) for atom, _ in e.terms):
            known = self._ranges.keys() | self._own[0].keys() | self._own[1].keys()
            parts, others = _by_sizes(f, known), _by_sizes(g, known)
            zero = as_index(0)
            for sizes in {**parts, **others}:
                self._equal_part(parts.get(sizes, zero), others.get(sizes, zero), (0, 0) if sizes else spread)
        else:
            self._equal_part(f, g, spread)

    def _equal_part(self, f: Index, g: Index, spread: Range) -> None:
        terms: list[tuple[int, int]] = []
        of_b = dict(g.terms)
        for atom, c in f.terms:
            self._terms(atom, c, of_b.pop(atom, 0), terms)
        for atom, c in of_b.items():
            self._terms(atom, 0, c, terms)
        if spread != (0, 0):
            terms.append((self._unknown(("lanes", f, g), *spread), 1))
        self._add(terms, f.const - g.const)

    def _add(self, terms: Sequence[tuple[int, int]], const: int) -> None:
        total: dict[int, int] = {}
        for n, c in terms:
            total[n] = total.get(n, 0) + c
        for tile, step in self._tiles:
            ratios = {divmod(total.get(n, 0), c) for n, c in tile.items()}
            if len(ratios) == 1 and (ratio := ratios.pop())[0] and not ratio[1]:
                total = {n: c for n, c in total.items() if n not in tile} | {step: ratio[0]}
        common = gcd(*total.values())
        if const % common if common else const:
            self.is_possible = False
        self._equations.append((tuple((n, c) for n, c in total.items() if c), const))

    def _terms(self, atom: Index, in_a: int, in_b: int, out: list[tuple[int, int]]) -> None:
        """Append ``in_a * atom`` in a's iteration minus ``in_b * atom`` in b's."""
        used = {atom} if type(atom) is Var else variables_of(atom)
        if any(v in own for own in self._own for v in used):
            for own, c in zip(self._own, (in_a, -in_b)):
                if c:
                    out.append((self._value(atom, own), c))
            return
        if in_a != in_b:
            out.append((self._value(atom, {}), in_a - in_b))
        if in_b and (step := self._step(atom)) is not None:
            out.append((step, -in_b))

    def _value(self, atom: Index, own: Mapping[Var, Range]) -> int:
        """Return the unknown for an atom's value, within the ``own`` loops of one access."""
        ranges = {**self._ranges, **own} if own else self._ranges
        lo, hi = try_interval(atom, ranges) or (-INFINITE, INFINITE)
        if lo > hi:
            self.is_possible = False
        return self._unknown(("value", atom, id(own) if own else 0), lo, hi)

    def _step(self, atom: Index) -> int | None:
        """Return the unknown for b's value of an atom minus a's; None where both are equal."""
        if type(atom) is Var:
            return self._steps.get(atom)
        if not variables_of(atom) & self._steps.keys():
            return None
        if type(atom) is FloorDiv:
            return self._quotient(atom.num, atom.den)[0]
        if type(atom) is Mod:
            return self._quotient(atom.num, atom.den)[1]
        lo, hi = try_interval(atom, self._ranges) or (0, INFINITE)
        return self._unknown(("step", atom), lo - hi, hi - lo)

    def _quotient(self, num: Index, den: int) -> tuple[int, int]:
        """Return the unknowns for the steps of ``num // den`` and ``num % den``."""
        known = ("quotient", num, den) in self._known
        q = self._unknown(("quotient", num, den), -INFINITE, INFINITE)
        r = self._unknown(("remainder", num, den), 1 - den, den - 1)
        if not known:
            steps = [(step, -c) for a, c in num.terms if (step := self._step(a)) is not None]
            self._add([(q, den), (r, 1), *steps], 0)
        return q, r

    def _narrow(self, lo: list[int], hi: list[int]) -> bool:
        """Narrow the bounds of the unknowns until nothing changes; return whether all equations may hold."""
        for _ in range(ROUNDS):
            changed = False
            for terms, const in self._equations:
                low = high = const
                for n, c in terms:
                    low += c * (lo[n] if c > 0 else hi[n])
                    high += c * (hi[n] if c > 0 else lo[n])
                if low > 0 or high < 0:
                    return False
                for n, c in terms:
                    if lo[n] == hi[n]:
                        continue
                    if c > 0:
                        least, most = -((high - c * hi[n]) // c), (c * lo[n] - low) // c
                    else:
                        least, most = -((c * hi[n] - low) // -c), (high - c * lo[n]) // -c
                    if least > lo[n] or most < hi[n]:
                        lo[n], hi[n] = max(lo[n], least), min(hi[n], most)
                        if lo[n] > hi[n]:
                            return False
                        changed = True
            if not changed:
                break
        return True

    # -- examples
    def example(self, signs: Signs) -> tuple[_Values, _Values] | None:
        """Return the variables of a and of b in iterations that touch one element, with distances of these signs.

        None says that there are none.  Raises Unsettled.
        """
        around = {x.var for c in (self.a, self.b) for x in c.loops}
        free = {v for c in (self.a, self.b) for e in _parts(c) for v in variables_of(e)} - around
        if not free <= self.outer.keys() or self.a.index is None or self.b.index is None:
            raise Unsettled
        lo, hi = self._signed(signs)
        budget = iter(range(SEARCH))
        for steps in self._steps_within(list(self._steps.values()), lo, hi, budget):
            distance = {v: steps[n] for v, n in self._steps.items()}
            outer = {v: self.outer[v] for v in sorted(free, key=str)}
            places = {x.var: _moved(x.range, distance[x.var]) for x in self.loops}
            for first in _values({**outer, **places, **self._own[0]}, budget):
                common = {v: first[v] for v in outer} | {v: first[v] + d for v, d in distance.items()}
                if not _happens(self.a, first):
                    continue
                for second in _values({**{v: (x, x) for v, x in common.items()}, **self._own[1]}, budget):
                    if _happens(self.b, second) and self._meet(first, second):
                        return first, second
        return None

    def _meet(self, first: _Values, second: _Values) -> bool:
        assert self.a.index is not None and self.b.index is not None
        if not _is_dense(self.a.buffer):
            return True
        apart = [evaluate(f, first) - evaluate(g, second) for f, g in zip(self.a.index, self.b.index)]
        if not apart:
            return True
        low, high = self.a.lanes[0] - self.b.lanes[1], self.a.lanes[1] - self.b.lanes[0]
        return not any(apart[:-1]) and low <= -apart[-1] <= high

    def _steps_within(
        self, unknowns: list[int], lo: list[int], hi: list[int], budget: Iterator[int]
    ) -> Iterator[list[int]]:
        """Yield values of the unknowns that the equations permit, shortest distances first."""
        lo, hi = list(lo), list(hi)
        if any(x > y for x, y in zip(lo, hi)) or not self._narrow(lo, hi):
            return
        if not unknowns:
            yield lo
            return
        n, *others = unknowns
        for x in sorted(range(lo[n], hi[n] + 1), key=abs) if hi[n] - lo[n] < SEARCH else _outwards(lo[n], hi[n]):
            _spend(budget)
            yield from self._steps_within(others, [*lo[:n], x, *lo[n + 1 :]], [*hi[:n], x, *hi[n + 1 :]], budget)


def _is_dense(buffer: Buffer) -> bool:
    """Return whether no two elements of the buffer have one address."""
    end = 1
    for stride, size in sorted((b.stride, b.size) for b in buffer.blocks if b.size > 1):
        if stride < end:
            return False
        end += (size - 1) * stride
    return True


def _bounds_of(e: Index) -> Iterator[Index]:
    """Yield indices without minima that are at least ``e``."""
    least = next(((atom, c) for atom, c in e.terms if type(atom) is Min and c > 0), None)
    if least is None:
        yield e
        return
    atom, c = least
    for x in atom.args:
        yield from _bounds_of(e - atom * c + x * c)


def _by_sizes(e: Index, known: set[Var]) -> dict[tuple[Var, ...], Index]:
    """Return the factor of each product of sizes in the index; sizes are variables that are not ``known``."""
    out: dict[tuple[Var, ...], Index] = {(): as_index(e.const)}
    for atom, c in e.terms:
        factors = atom.args if type(atom) is Prod else (atom,)
        sizes = tuple(v for v in factors if type(v) is Var and v not in known)
        place = as_index(c)
        for x in factors:
            if x not in sizes:
                place = product(place, x)
        out[sizes] = out.get(sizes, as_index(0)) + place
    return out


def _parts(access: Access) -> Iterator[Index | Cond]:
    yield from access.index or ()
    yield from access.conds
    for x in access.loops:
        yield from (x.lo, x.hi)


def _happens(access: Access, values: _Values) -> bool:
    """Return whether the loops reach the iteration, and the conditions hold."""
    inside = (evaluate(x.lo, values) <= values[x.var] < evaluate(x.hi, values) for x in access.loops)
    return all(inside) and all(holds(c, values) for c in access.conds)


def _moved(r: Range, distance: int) -> Range:
    """Return the range of the values in ``r`` that are still in it after a move by ``distance``."""
    return max(r[0], r[0] - distance), min(r[1], r[1] - distance)


def _outwards(lo: int, hi: int) -> Iterator[int]:
    """Yield the numbers of a long range, starting with the number nearest to zero."""
    start = min(max(lo, 0), hi)
    yield start
    for n in range(1, SEARCH):
        yield from (x for x in (start + n, start - n) if lo <= x <= hi)


def _values(ranges: Mapping[Var, Range], budget: Iterator[int]) -> Iterator[_Values]:
    """Yield all values of the variables within their ranges."""
    if not ranges:
        yield {}
        return
    (var, (lo, hi)), *others = ranges.items()
    for x in range(lo, hi + 1):
        _spend(budget)
        for rest in _values(dict(others), budget):
            yield {var: x, **rest}


def _spend(budget: Iterator[int]) -> None:
    if next(budget, None) is None:
        raise Unsettled
