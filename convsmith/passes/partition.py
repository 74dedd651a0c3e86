"""Index-set splitting: split a loop where conditions or bounds below it change, found by evaluation.

The pass evaluates, for all iterations, every condition, minimum and maximum below the loop that depends on its variable
(and otherwise only on loops inside it). Adjacent iterations with equal outcomes form one piece, which is simplified
under its range. No condition is solved symbolically.

The outcome of a minimum or maximum is the argument that it selects; the outcome of some loops' bounds is their value,
as is that of a minimum or maximum that also depends on a loop inside which is to be split.
Among equal arguments, a constant is selected if the loop then has fewer pieces, as in a loop whose last tile is a full
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np

from convsmith.arith.evaluate import evaluate, holds
from convsmith.arith.ranges import Range, Unbounded
from convsmith.ir.index import Cond, Eq0, Ge0, Index, Max, Min, Var, as_index
from convsmith.ir.intern import Node, nodes
from convsmith.ir.stmt import For, Kernel, Stmt, block
from convsmith.ir.walk import AnyNode, children, loops_of, variables_of
from convsmith.passes.contracts import FLATTENED, LOOPS, stages
from convsmith.passes.scope import ScopedRewriter, has_loop, loop_range, require_loops, with_body
from convsmith.passes.simplify import simplify_stmt

MAX_POINTS = 1 << 20
"""Maximum number of points at which a test is evaluated."""
MAX_TILES = 1 << 16
"""Maximum number of iterations of a loop whose last tile is tested for being a full one."""
MAX_SCALAR_POINTS = 16
"""Maximum number of points at which evaluating numbers is faster than evaluating arrays."""


class _Value(Node):
    """A bound whose outcome is its value."""

    bound: Index


Test = Cond | Index | _Value
Tests = dict[Test, frozenset[Var]]


def _tests(s: Stmt, known: dict[Stmt, Tests], exact: frozenset[str]) -> Tests:
    """Return conditions, minima, maxima and loop bounds below ``s``, with their variables; ``known`` caches results.

    For loops named in ``exact``, the outcome of a bound is its value.
    """
    if s in known:
        return known[s]
    tests: Tests = {}
    for part in children(s):
        if isinstance(part, Stmt):
            tests |= _tests(part, known, exact)
        elif variables_of(part):
            tests |= _tests_within(part)
    if isinstance(s, For):
        valued = s.var.name in exact
        for b in (s.lo, s.hi):
            if b.terms and (valued or not isinstance(b, (Min, Max))):
                tests[_Value(b)] = variables_of(b)
    known[s] = tests
    return tests


def _tests_within(e: AnyNode) -> Tests:
    """Return the conditions, minima and maxima of an expression; the intern table caches them."""
    known = nodes()
    tests: Tests | None = known.get((_tests_within, e))
    if tests is None:
        tests = {e: variables_of(e)} if isinstance(e, (Ge0, Eq0, Min, Max)) else {}
        for part in children(e):
            if type(part) is not Var:
                tests |= _tests_within(part)
        known[_tests_within, e] = tests
    return tests


def _outcomes(test: Test, values: Mapping[Var, Any], constants: bool) -> list[Any]:
    """Return the outcomes of ``test`` for values of its variables, which are ints or arrays over their box; among equal
    arguments, constants are selected if ``constants``.
    """
    if isinstance(test, (Min, Max)):
        evaluated = [evaluate(a, values) for a in test.args]
        first = [constants and (a if isinstance(test, Max) else b).is_const for a, b in pairwise(test.args)]
        return [a < b if strict else a <= b for strict, (a, b) in zip(first, pairwise(evaluated))]
    if isinstance(test, _Value):
        return [evaluate(test.bound, values)]
    assert isinstance(test, Cond)
    return [holds(test, values)]


def _cuts(
    var: Var, r: Range, tests: Tests, inner: dict[Var, Range], constants: bool = False
) -> list[int] | None:  # fmt: skip
    """Return the first iteration of each piece of the loop over ``var``, and its end: the iterations of a piece have
    equal outcomes of ``tests``. None if the box of variables has too many points. Among equal arguments of a minimum or
    maximum, constants are selected if ``constants``.
    """
    count = r[1] - r[0] + 1
    known = inner.keys() | {var}
    decided = {test: names for test, names in tests.items() if var in names and names <= known}
    if not decided or count == 1:
        return [r[0], r[1] + 1]
    if count > MAX_POINTS:
        return None
    changes: set[int] = set()
    for test, names in decided.items():
        found = _changes(test, {var: r} | {v: inner[v] for v in sorted(names - {var}, key=str)}, constants)
        if found is None:
            return None
        changes |= found
    return [r[0], *sorted(changes), r[1] + 1]


def _changes(test: Test, box: dict[Var, Range], constants: bool) -> frozenset[int] | None:
    """Return the iterations of the loop over the first variable of ``box`` at which an outcome of ``test`` differs from
    that of the iteration before, for some values of the other variables. None if the box has too many points.

    The table of nodes keeps the result, because the pieces of a loop have many tests in common.
    """
    known, key = nodes(), (_changes, test, constants, *box.items())
    if key not in known:
        known[key] = _evaluated_changes(test, box, constants)
    return known[key]  # type: ignore[no-any-return]


def _evaluated_changes(test: Test, box: dict[Var, Range], constants: bool) -> frozenset[int] | None:
    (_, (start, _)), *_ = box.items()
    count, *_ = shape = [hi - lo + 1 for lo, hi in box.values()]
    if prod(shape) > MAX_POINTS:
        return None
    if prod(shape) <= MAX_SCALAR_POINTS:
        every = product(*(range(lo, hi + 1) for lo, hi in box.values()))
        outcomes = [_outcomes(test, dict(zip(box, point)), constants) for point in every]
        each = prod(shape[1:])
        rows = [outcomes[n * each : (n + 1) * each] for n in range(count)]
        return frozenset(start + n for n, (a, b) in enumerate(pairwise(rows), 1) if a != b)
    values: dict[Var, np.ndarray] = {}
    for axis, (v, (lo, _)) in enumerate(box.items()):
        grid = np.arange(shape[axis], dtype=np.int64) + lo
        values[v] = grid.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    changes = np.zeros(count - 1, bool)
    for result in _outcomes(test, values, constants):
        if np.ndim(result) and len(result) == count:
            outcome = result.reshape(count, -1)
            changes |= (outcome[1:] != outcome[:-1]).any(1)
    return frozenset((np.flatnonzero(changes) + start + 1).tolist())


class _Partition(ScopedRewriter):
    def __init__(self, names: tuple[str, ...], budget: int, exact: frozenset[str], interior: bool) -> None:
        super().__init__()
        self.names, self.budget, self.exact, self.interior = names, budget, exact, interior
        self.simple = False
        """Names of loops that were split, and of the loops within them."""
        self.tests: dict[Stmt, Tests] = {}
        self.whole: dict[Var, For] = {}
        """The loops of the current nest before any of them was split, if only the interior is simplified."""

    def visit_For(self, loop: For) -> Stmt:
        if not has_loop(loop, self.names):
            return loop
        if loop.var.name not in self.names or loop.carried or not (loop.lo.is_const and loop.hi.is_const):
            return self._For(loop)
        lo, hi = loop.lo.const, loop.hi.const
        if hi <= lo:
            return self._For(loop)
        tests = _tests(loop.body, self.tests, self.exact)
        if self.simple and not any([loop.var in names for names in tests.values()]):
            return self._For(loop)  # one piece, which is already simplified
        inner = dict(self.ranges)
        inner[loop.var] = (lo, hi - 1)
        boxes: dict[Var, Range] = {}
        for x in loops_of(loop.body):
            try:
                r = loop_range(x, inner)
            except Unbounded:
                continue
            known = inner.get(x.var)
            inner[x.var] = boxes[x.var] = (min(r[0], known[0]), max(r[1], known[1])) if known else r
        if any(b[1] < b[0] for b in boxes.values()):
            return self._For(loop)
        shared = self.bounds_of_tiles(loop.var, tests, boxes)
        decided: Tests = {_Value(x) if x in shared else x: names for x, names in tests.items()}
        cuts = _cuts(loop.var, (lo, hi - 1), decided, boxes)
        if cuts is None:
            return self._For(loop)
        if len(cuts) > 2 and hi - lo <= MAX_TILES and any(isinstance(test, (Min, Max)) for test in decided):
            cuts = min(cuts, _cuts(loop.var, (lo, hi - 1), decided, boxes, True) or cuts, key=len)
        if len(cuts) - 1 > self.budget:
            return self._For(loop)
        pieces: list[Stmt] = []
        outer, nest = self.simple, self.whole
        if self.interior and not nest:
            self.whole = {x.var: x for x in loops_of(loop)}
        longest = max(pairwise(cuts), key=lambda piece: piece[1] - piece[0])
        for a, b in pairwise(cuts):
            body = loop.body
            if self.interior and (a, b) != longest:
                general = self.whole[loop.var]
                pieces.append(For(loop.var, as_index(a), as_index(b), general.body, loop.kind))
                continue
            if len(cuts) > 2 or not outer:  # an unsplit loop inside a simplified statement is already simplified
                body = simplify_stmt(body, {**self.ranges, loop.var: (a, b - 1)})
            self.simple = True
            body = self.within(loop.var, (a, b - 1), body)
            self.simple = outer
            whole = body is loop.body and (a, b) == (lo, hi)
            pieces.append(loop if whole else For(loop.var, as_index(a), as_index(b), body, loop.kind, loop.carried))
        self.whole = nest
        return block(*pieces)

    def bounds_of_tiles(self, var: Var, tests: Tests, boxes: Mapping[Var, Range]) -> set[Index]:
        """Return the minima and maxima of ``tests`` that depend on the loop over ``var`` and on one of the loops inside
        that are to be split: bounds of tiles whose number differs between residue classes. Their outcome is their
        value, since otherwise the loops inside have no constant bounds in a piece.
        """
        inside = {v for v in boxes if v.name in self.names}
        return {x for x, names in tests.items() if isinstance(x, (Min, Max)) and var in names and names & inside}


@stages(*LOOPS, *FLATTENED)
def partition(
    kernel: Kernel, loops: tuple[str, ...], budget: int = 8, exact: tuple[str, ...] = (), interior: bool = False
) -> Kernel:
    """Split each of ``loops`` with constant bounds into at most ``budget`` pieces; leave it whole if it needs more.

    Within a piece, every loop named in ``exact`` has constant bounds. With ``interior``, only the longest piece of a
    loop is simplified under its range and split further. All other pieces have the same body, which a function can
    hold once, and the pieces of a nest add up and do not multiply.

    Before::

        kernel k(a: f32[10], dst: f32[10])
          for i.o in 0 .. 3:
            for i.i in 0 .. min(-i.o * 4 + 10, 4):
              dst[i.i + i.o * 4] = a[i.i + i.o * 4]

    After ``partition(("i.o",))``::

        kernel k(a: f32[10], dst: f32[10])
          for i.o in 0 .. 2:
            for i.i in 0 .. 4:
              dst[i.i + i.o * 4] = a[i.i + i.o * 4]
          for i.o in 2 .. 3:
            for i.i in 0 .. 2:
              dst[i.i + 8] = a[i.i + 8]
    """
    require_loops(kernel, loops, "partition")
    pass_ = _Partition(tuple(loops), budget, frozenset(exact), interior)
    return with_body(kernel, pass_.stmt(kernel.body))
