"""Simplify every index and condition under the ranges of the enclosing loops."""

from __future__ import annotations

from typing import Any

from convsmith.arith.simplify import simplify as simplified
from convsmith.ir.index import Affine, Index, Var
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import PIPELINED, THREAD_LOOPS, Block, For, If, Kernel, PointerLoad, Stmt, block
from convsmith.ir.value import Load
from convsmith.passes.contracts import ANY, stages
from convsmith.passes.scope import ScopedRewriter, each_body

_AT_ONCE = ("parallel", *PIPELINED, "grid", *THREAD_LOOPS)
"""Kinds of loops that are kept, even where they run once."""


class _Simplify(ScopedRewriter):
    def __init__(self, keep_unit_loops: bool) -> None:
        super().__init__()
        self.keep_unit_loops = keep_unit_loops

    def expr(self, e: Any) -> Any:
        kind = type(e)
        if (kind is Affine and not e.terms) or (kind is Load and all([self.is_simple(i) for i in e.index])):
            return e
        return simplified(e, self.ranges)

    def is_simple(self, e: Index) -> bool:
        """Return whether an index is a sum of variables none of which has only one value: no rule changes it."""
        for atom, _ in e.terms:
            if type(atom) is not Var or ((r := self.ranges.get(atom)) is not None and r[0] == r[1]):
                return False
        return True

    def visit_For(self, loop: For) -> Stmt:
        out = self._For(loop)
        if not isinstance(out, For):
            return out
        if not out.hi.terms and not out.lo.terms:
            n = out.hi.const - out.lo.const
            if n <= 0 or (isinstance(out.body, Block) and not out.body.stmts):
                return Block(())
            if n == 1 and not self.keep_unit_loops and out.kind not in _AT_ONCE and not out.carried:
                # The simplifier has already replaced most uses of the variable by its only value.
                body = substitute(out.body, {out.var: out.lo})
                return body if body is out.body else self.stmt(body)
        return out

    def visit_Block(self, s: Block) -> Stmt:
        out = tuple(map(self.stmt, s.stmts))
        kept = tuple([x for x in out if not (isinstance(x, Block) and not x.stmts)])
        return s if kept == s.stmts else block(*kept)

    def visit_PointerLoad(self, s: PointerLoad) -> Stmt:
        out = self._PointerLoad(s)
        return Block(()) if isinstance(out, PointerLoad) and isinstance(out.body, Block) and not out.body.stmts else out

    def visit_If(self, s: If) -> Stmt:
        out = self._If(s)
        return Block(()) if isinstance(out, If) and isinstance(out.body, Block) and not out.body.stmts else out


def simplify_stmt(s: Stmt, ranges: dict[Var, tuple[int, int]], keep_unit_loops: bool = True) -> Stmt:
    """Return ``s`` simplified under the ``ranges`` of its free variables."""
    r = _Simplify(keep_unit_loops)
    r.ranges = dict(ranges)
    return r.stmt(s)


@stages(*ANY)
def simplify(kernel: Kernel, keep_unit_loops: bool = True) -> Kernel:
    """Simplify a kernel and remove loops that never run; ``keep_unit_loops=False`` also removes loops that run once.

    Parallel loops are kept, because ``collapse`` turns them into tasks, and so are loops over groups and threads.

    Before::

        kernel k(a: f32[4, 6], dst: f32[24])
          for i in 0 .. 4:
            for j in 0 .. 6:
              if i + j >= 0:
                dst[i * 6 + j] = a[i + j // 6, j % 6]
            for j in 6 .. 6:
              dst[j] = 0.0

    After ``simplify()``::

        kernel k(a: f32[4, 6], dst: f32[24])
          for i in 0 .. 4:
            for j in 0 .. 6:
              dst[i * 6 + j] = a[i, j]
    """
    return each_body(kernel, lambda s: simplify_stmt(s, {}, keep_unit_loops))
