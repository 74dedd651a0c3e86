"""Choose the width of indices: 32 bits where every index, bound and offset of the kernel is proved to fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from convsmith.arith.ranges import Unbounded, interval
from convsmith.ir.index import Index, Var
from convsmith.ir.stmt import For, Kernel, Stmt
from convsmith.ir.walk import walk
from convsmith.passes.scope import ScopedRewriter


class _Widest(ScopedRewriter):
    """The largest magnitude of any index, in a kernel that has no functions and carries no pointers."""

    def __init__(self) -> None:
        super().__init__()
        self.widest = 0

    def expr(self, e: Any) -> Any:
        for x in walk(e):
            if isinstance(x, Index) and type(x) is not Var:
                try:
                    lo, hi = interval(x, self.ranges)
                except Unbounded:
                    lo, hi = -(1 << 62), 1 << 62
                for _, c in x.terms:
                    self.widest = max(self.widest, abs(c))
                self.widest = max(self.widest, -lo, hi, abs(x.const))
        return e

    def For(self, s: For) -> Stmt:
        return self._For(s)


def narrow_index(kernel: Kernel) -> Kernel:
    """Set ``index_bits`` to 32 or 64.

    Ranges are known before outlining, so this comes before it: what a function is given and what it
    computes are parts of offsets that were proved here.
    """
    w = _Widest()
    w.stmt(kernel.body)
    size = max((b.size for b in kernel.params), default=0)
    return replace(kernel, index_bits=32 if max(w.widest, size) < 1 << 31 else 64)
