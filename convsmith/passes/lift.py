"""Hoist loads of pointers out of perfectly nested loops."""

from __future__ import annotations

from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import For, Kernel, PointerLoad, Stmt
from convsmith.ir.threads import has_effects
from convsmith.ir.walk import variables_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import with_body


class _Lift(Rewriter):
    def visit_For(self, loop: For) -> Stmt:
        out = self._For(loop)
        if not isinstance(out, For) or not isinstance(out.body, PointerLoad):
            return out
        at = out.body
        if any(out.var in variables_of(i) for i in (*at.index, at.offset, *at.zero_at)):
            return out
        if has_effects(at.body):
            return out
        inner = For(out.var, out.lo, out.hi, at.body, out.kind, out.carried)
        return PointerLoad(at.buffer, at.table, at.index, at.offset, at.source, at.zero, at.zero_at, inner)


@stages(*LOOPS)
def lift(kernel: Kernel) -> Kernel:
    """Hoist each load from a pointer table out of the loops that contain nothing else and do not change it.

    Before::

        kernel k(a: f32[24], a_row: ptr[3, 2], a_0: f32[4], c: f32[12])
          for x in 0 .. 3:
            for k in 0 .. 2:
              for i in 0 .. 4:
                at a_row[x, k] + 0 in a or a_0[0] as a_at: f32[4]:
                  c[i + x * 4] = c[i + x * 4] + a_at[i]

    After ``lift()``::

        kernel k(a: f32[24], a_row: ptr[3, 2], a_0: f32[4], c: f32[12])
          for x in 0 .. 3:
            for k in 0 .. 2:
              at a_row[x, k] + 0 in a or a_0[0] as a_at: f32[4]:
                for i in 0 .. 4:
                  c[i + x * 4] = c[i + x * 4] + a_at[i]
    """
    return with_body(kernel, _Lift().stmt(kernel.body))
