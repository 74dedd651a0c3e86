"""Let loops over partial sums start at 0; a term may go to any of the partial sums."""

from __future__ import annotations

from convsmith.ir.index import as_index
from convsmith.ir.stmt import For, Kernel, Stmt, Store
from convsmith.ir.value import Binary, Load
from convsmith.ir.walk import Rewriter, substitute
from convsmith.passes.scope import with_body


class _Rebase(Rewriter):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def For(self, loop: For) -> Stmt:
        s = loop.body
        if loop.var.name != self.name or not isinstance(s, Store) or not loop.lo.is_const or loop.lo.const == 0:
            return self._For(loop)
        v, own = s.value, Load(s.buffer, s.index, None)
        if not (isinstance(v, Binary) and v.op == "add" and v.a is own and s.buffer.in_registers):
            return loop
        term = substitute(v.b, {loop.var: loop.var + loop.lo})
        add = Store(s.buffer, s.index, Binary("add", own, term), s.lanes)
        return For(loop.var, as_index(0), loop.hi - loop.lo, add, loop.kind, loop.carried)


def rebase(kernel: Kernel, loop: str) -> Kernel:
    """Let each loop named ``loop`` with constant start run from 0 if each of its iterations adds to a partial sum.

    A partial sum then adds different terms; their total is unchanged.

    Before::

        kernel k(a: f32[8], dst: f32[1])
          alloc acc: f32[4] @register:
            for l in 0 .. 4:
              acc[l] = 0.0
            for k in 0 .. 2:
              for l in 1 .. 4:
                acc[l] = acc[l] + a[k * 4 + l]
            alloc total: f32[] @register:
              total[] = 0.0
              for l in 0 .. 4:
                total[] = total[] + acc[l]
              dst[0] = total[]

    After ``rebase("l")``::

        kernel k(a: f32[8], dst: f32[1])
          alloc acc: f32[4] @register:
            for l in 0 .. 4:
              acc[l] = 0.0
            for k in 0 .. 2:
              for l in 0 .. 3:
                acc[l] = acc[l] + a[k * 4 + l + 1]
            alloc total: f32[] @register:
              total[] = 0.0
              for l in 0 .. 4:
                total[] = total[] + acc[l]
              dst[0] = total[]
    """
    return with_body(kernel, _Rebase(loop).stmt(kernel.body))
