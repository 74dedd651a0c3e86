"""Choose the width of indices: 32 bits if every index, bound and offset of the kernel provably fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from convsmith.arith.ranges import Unbounded, interval
from convsmith.ir.index import Index, Var
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import For, Kernel, Stmt
from convsmith.ir.walk import variables_of, walk
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import ScopedRewriter


class _Widest(ScopedRewriter):
    """Computes the largest magnitude of any index and its parts, before outlining and strength reduction."""

    def __init__(self) -> None:
        super().__init__()
        self.widest = 0

        self.seen: set[tuple[Any, ...]] = set()

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
            try:
                lo, hi = interval(atom, self.ranges)
            except Unbounded:
                lo, hi = -(1 << 62), 1 << 62
            total += abs(c) * max(abs(lo), abs(hi), 1)
        return total

    def visit_For(self, s: For) -> Stmt:
        return self._For(s)


@stages(*FLATTENED, ensures=TENSORISED)
def narrow_index(kernel: Kernel) -> Kernel:
    """Set ``index_bits`` to 32 or 64.

    The pass must run before outlining, while all ranges are known; arguments and offsets within functions are partial
    sums of the offsets bounded here.

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
    size = max((b.size for b in kernel.params), default=0)
    bits = 32 if max(w.widest, size) < 1 << 31 else 64
    return kernel if bits == kernel.index_bits else replace(kernel, index_bits=bits)
