"""Walks over the body of a nest of threads in the order of execution, with a state that is carried through loops.

A *unit* is a statement that the walk does not descend into. Loops are walked until the state at their start reaches a
fixed point.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from convsmith.arith.dependence import INFINITE, LoopBounds
from convsmith.arith.ranges import Range, try_interval
from convsmith.ir.index import Cond, Var, parts_of
from convsmith.ir.stmt import Alloc, Barrier, Block, For, If, Let, Stmt
from convsmith.ir.walk import statements_of
from convsmith.passes.accesses import Site, sites_within
from convsmith.passes.scope import loop_range
from convsmith.passes.thread_conflicts import EarlierAccess, may_conflict

State = TypeVar("State")
Serial = tuple[LoopBounds, ...]
"""The serial loops around a statement, outermost first; a variable with a value is a loop that runs once."""
Accesses = list[EarlierAccess]


class ThreadWalk(ABC, Generic[State]):
    """A walk over the statements of the ``threads``; ``ranges`` are the ranges of the variables around them."""

    def __init__(self, threads: Serial, ranges: dict[Var, Range]) -> None:
        self.threads, self.ranges = threads, ranges
        self.version = 0
        """Number of decisions; a loop in which a decision is made is walked again."""
        self._sites: dict[Stmt, list[Site]] = {}
        self._bounds: dict[For | Let, LoopBounds] = {}
        self._conflicts: dict[object, bool] = {}
        self._conds: tuple[Cond, ...] = ()

    def is_unit(self, s: Stmt) -> bool:
        """Return whether the walk does not descend into ``s``."""
        return not any(isinstance(x, Barrier) for x in statements_of(s))

    def statement(self, unit: Stmt) -> Stmt:
        """Return the statement that a thread executes for a unit."""
        return unit

    @abstractmethod
    def unit(self, s: Stmt, serial: Serial, state: State) -> State:
        """Return the state after a unit."""

    @abstractmethod
    def joined(self, a: State, b: State) -> State:
        """Return the join of two states, either of which may hold."""

    @abstractmethod
    def carried(self, state: State, loop: LoopBounds) -> State:
        """Return the state at the end of an iteration, as seen from the next iteration."""

    def entered(self, state: State, loop: LoopBounds) -> State:
        """Return the state before a loop, as seen from its first iteration."""
        return state

    def condition(self, s: If, serial: Serial, state: State) -> State:
        """Return the state before the body of a condition."""
        return state

    def walk(self, s: Stmt, serial: Serial, state: State) -> State:
        """Return the state after ``s``."""
        if self.is_unit(s):
            return self.unit(s, serial, state)
        if isinstance(s, Block):
            for x in s.stmts:
                state = self.walk(x, serial, state)
            return state
        if isinstance(s, For):
            return self._loop(s, serial, state)
        if isinstance(s, If):
            outer, self._conds = self._conds, (*self._conds, *parts_of(s.cond))
            state = self.condition(s, serial, state)
            state = self.joined(state, self.walk(s.body, serial, state))
            self._conds = outer
            return state
        if isinstance(s, Let):
            range_ = try_interval(s.value, {**self.ranges, **{x.var: x.range for x in (*self.threads, *serial)}})
            named = self._bounds.setdefault(s, LoopBounds(s.var, s.value, s.value + 1, range_ or (-INFINITE, INFINITE)))
            return self.walk(s.body, (*serial, named), state)
        return self.walk(s.body, serial, state) if isinstance(s, Alloc) else self.unit(s, serial, state)

    def _loop(self, s: For, serial: Serial, state: State) -> State:
        bounds = self._bounds.get(s)
        if bounds is None:
            here = {**self.ranges, **{x.var: x.range for x in (*self.threads, *serial)}}
            bounds = self._bounds[s] = LoopBounds(s.var, s.lo, s.hi, loop_range(s, here))
        start = self.entered(state, bounds)
        while True:
            version = self.version
            out = self.walk(s.body, (*serial, bounds), start)
            again = self.joined(start, self.carried(out, bounds))
            if again == start and version == self.version:
                break
            start = again
        runs = s.lo.is_const and s.hi.is_const and s.lo.const < s.hi.const
        return out if runs else self.joined(state, out)

    def sites(self, unit: Stmt, serial: Serial) -> list[Site]:
        """Return the accesses of a unit."""
        found = self._sites.get(unit)
        if found is None:
            loops = *self.threads, *serial
            found = self._sites[unit] = sites_within(self.statement(unit), loops, self.ranges, self._conds)
        return found

    def conflict(self, a: EarlierAccess, b: Site, serial: Serial, threads: Serial | None = None) -> bool:
        """Return whether ``b`` may access an element that ``a`` accessed before, in another thread unless ``threads``
        is empty.
        """
        threads = self.threads if threads is None else threads
        key = a, b, bool(threads)
        known = self._conflicts.get(key)
        if known is None:
            known = self._conflicts[key] = may_conflict(a, b, serial, threads, self.ranges)
        return known


def later_access(x: EarlierAccess, loop: LoopBounds, most: int = 1) -> EarlierAccess:
    """Return ``x`` as seen from the next iteration of ``loop``; iterations are counted up to ``most``."""
    later = dict(x.later)
    count = later.get(loop.var, 0)
    later[loop.var] = count + 1 if count is not None and count < most else None
    return replace(x, later=frozenset(later.items()))


def all_accesses(a: Iterable[EarlierAccess], b: Iterable[EarlierAccess]) -> Accesses:
    """Return the union of both lists of accesses."""
    return list(dict.fromkeys([*a, *b]))


def bounds_of_threads(nest: Sequence[For]) -> Serial:
    """Return the bounds of loops over threads that start at 0 and run a constant number of times."""
    return tuple(LoopBounds(x.var, x.lo, x.hi, (x.lo.const, x.hi.const - 1)) for x in nest)


class UnorderedPairs(ThreadWalk[Accesses]):
    """Collects in ``found`` the pairs of accesses that may touch one element without a barrier in between."""

    found: set[object]

    def of(self, body: Stmt) -> set[object]:
        """Return the pairs in the body of a nest."""
        self.found = set()
        self.walk(body, (), [])
        return self.found

    def unit(self, s: Stmt, serial: Serial, state: Accesses) -> Accesses:
        if isinstance(s, Barrier):
            passed = s.part != "arrive"
            state = [x for x in state if not passed or not (x.has_arrived or s.part == "whole")]
            return [replace(x, has_arrived=True) for x in state] if s.part == "arrive" else state
        sites = self.sites(s, serial)
        for a in state:
            for b in sites:
                if self.conflict(replace(a, has_arrived=False), b, serial):
                    self.found.add((a.site, a.later, b))
        return all_accesses(state, (EarlierAccess(x, serial) for x in sites))

    def joined(self, a: Accesses, b: Accesses) -> Accesses:
        return all_accesses(a, b)

    def carried(self, state: Accesses, loop: LoopBounds) -> Accesses:
        return [later_access(x, loop) for x in state if loop in x.serial]
