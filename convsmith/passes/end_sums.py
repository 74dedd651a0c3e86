"""Run no loop over the terms of a sum where an outer loop makes all of them absent."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from convsmith.arith.ranges import interval
from convsmith.ir.index import Cond, Eq0, Ge0, Index, Var, conj, is_true, maximum, minimum, parts_of
from convsmith.ir.stmt import For, Kernel, Stmt, Store
from convsmith.ir.value import Binary, Select
from convsmith.ir.walk import variables_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import masked_term
from convsmith.passes.scope import ScopedRewriter, extent, perfect_nest, require_loops, with_body, wrap


class _EndSums(ScopedRewriter):
    def __init__(self, loops: Collection[str], of: Sequence[str]) -> None:
        super().__init__()
        self.loops, self.of = loops, {Var(n) for n in of}

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name not in self.loops:
            return self._For(loop)
        (_, *chain), s = perfect_nest(loop)
        term = masked_term(s) if isinstance(s, Store) else None
        if term is None:
            return self._For(loop)
        assert isinstance(s, Store) and isinstance(s.value, Binary)
        hi, left = loop.hi, []
        for part in parts_of(term.cond):
            runs = self._runs(part) if variables_of(part) <= self.of else None
            if runs is None:
                left.append(part)
            else:
                hi = minimum(hi, maximum(loop.lo + runs * extent(loop, self.ranges), loop.lo))
        cond = conj(left)
        kept = term.yes if is_true(cond) else Select(cond, term.yes, term.no)
        body = wrap(chain, Store(s.buffer, s.index, Binary("add", s.value.a, kept), s.lanes))
        return self._For(For(loop.var, loop.lo, hi, body, loop.kind, loop.carried))

    def _runs(self, cond: Cond) -> Index | None:
        """Return an index that is at least 1 where ``cond`` holds, otherwise at most 0."""
        if isinstance(cond, Ge0):
            return cond.arg + 1
        if not isinstance(cond, Eq0):
            return None
        lo, hi = interval(cond.arg, self.ranges)
        return 1 - cond.arg if lo >= 0 else 1 + cond.arg if hi <= 0 else minimum(1 - cond.arg, 1 + cond.arg)


@stages(*LOOPS)
def end_sums(kernel: Kernel, loops: tuple[str, ...], of: tuple[str, ...]) -> Kernel:
    """Run ``loops`` over the terms of a sum only where the conditions of the terms on the loops ``of`` alone hold.

    Before::

        kernel k(a: f32[5, 3], dst: f32[4])
          for r in 0 .. 2:
            for i in 0 .. 2:
              alloc acc: f32[] @register:
                acc[] = 0.0
                for k in 0 .. 3:
                  acc[] = acc[] + (a[i + k, k] if r % 2 == 0 and i + k - 1 >= 0 else 0.0)
                dst[i * 2 + r] = acc[]

    After ``end_sums(("k",), ("r",))``::

        kernel k(a: f32[5, 3], dst: f32[4])
          for r in 0 .. 2:
            for i in 0 .. 2:
              alloc acc: f32[] @register:
                acc[] = 0.0
                for k in 0 .. min(3, max(-(r % 2) * 3 + 3, 0)):
                  acc[] = acc[] + (a[i + k, k] if i + k - 1 >= 0 else 0.0)
                dst[i * 2 + r] = acc[]
    """
    require_loops(kernel, loops, "end_sums")
    return with_body(kernel, _EndSums(loops, of).stmt(kernel.body))
