"""Choose the width of indices: 32 bits if every index, bound and offset of the kernel provably fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from convsmith.arith.ranges import Range, Unbounded, interval
from convsmith.ir.index import Index, Var
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import LANE, Call, For, Function, Kernel, Stmt
from convsmith.ir.walk import variables_of, walk
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import ScopedRewriter

UNBOUNDED = (-(1 << 62), 1 << 62)
"""Range of an index without a bound."""
NUMBERS = (0, 1 << 12)
"""Range of the numbers of a vector's lanes: a fragment of matrices has fewer elements."""


class _Widest(ScopedRewriter):
    """Computes the largest magnitude of any index and its parts, before strength reduction.

    ``passed`` collects the ranges of the arguments of all calls of each function.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ranges[LANE] = NUMBERS
        self.widest = 0
        self.seen: set[tuple[Any, ...]] = set()
        self.passed: dict[str, list[Range]] = {}

    def expr(self, e: Any) -> Any:
        key = (e, *map(self.ranges.get, variables_of(e)))
        if key in self.seen:
            return e
        self.seen.add(key)
        for x in walk(e):
            if isinstance(x, Index) and type(x) is not Var:
                self.widest = max(self.widest, self.reach(x))
        return e

    def reach(self, x: Index) -> int:
        """Return a bound on the magnitude of every partial sum of ``x``, because an address may be formed from some of
        its terms.
        """
        total = abs(x.const)
        for atom, c in x.terms:
            lo, hi = self.range_of(atom)
            total += abs(c) * max(abs(lo), abs(hi), 1)
        return total

    def visit_For(self, s: For) -> Stmt:
        return self._For(s)

    def visit_Call(self, s: Call) -> Stmt:
        given = [self.range_of(i) for i in (*(start for _, start in s.pointers), *s.indices)]
        known = self.passed.get(s.function, given)
        self.passed[s.function] = [(min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(known, given)]
        return self._Call(s)

    def range_of(self, x: Index) -> Range:
        try:
            return interval(x, self.ranges)
        except Unbounded:
            return UNBOUNDED

    def function(self, f: Function) -> None:
        """Visit the body of ``f``, whose arguments have the ranges of all calls."""
        if f.name in self.passed:
            self.ranges = dict(zip((*(var for var, _ in f.pointers), *f.indices), self.passed[f.name]))
            self.stmt(f.body)


@stages(*FLATTENED, ensures=TENSORISED)
def narrow_index(kernel: Kernel) -> Kernel:
    """Set ``index_bits`` to 32 or 64.

    The pass must run before loops carry pointers, while all ranges are known. Offsets and arguments of functions that
    are outlined later are partial sums of the offsets bounded here. Functions that exist already have the ranges of the
    arguments of all calls, and call no other function.

    Before::

        kernel k(a: f32[600], dst: f32[6])
          for i in 0 .. 6:
            dst[i] = a[i * 100]

    After ``narrow_index()``::

        kernel k(a: f32[600], dst: f32[6]) #i32
          for i in 0 .. 6:
            dst[i] = a[i * 100]
    """
    w = _Widest()
    w.stmt(kernel.body)
    for f in kernel.functions:
        w.function(f)
    size = max((b.size for b in kernel.params), default=0)
    bits = 32 if max(w.widest, size) < 1 << 31 else 64
    return kernel if bits == kernel.index_bits else replace(kernel, index_bits=bits)
