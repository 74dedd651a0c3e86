"""Loop-invariant code motion for indices."""

from __future__ import annotations

from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import For, Kernel, Let, Stmt
from convsmith.ir.walk import bound_in, variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.lets import Fresh, costly, name_all
from convsmith.passes.scope import each_body


class _Hoist(Rewriter):
    def __init__(self, fresh: Fresh) -> None:
        super().__init__()
        self.fresh = fresh

    def visit_For(self, loop: For) -> Stmt:
        found = costly(loop.body)
        if not found:
            return loop
        inside = bound_in(loop)
        still = [e for e in found if not variables_of(e) & inside]
        named = name_all(loop, still, self.fresh)
        return self._below(named)

    def _below(self, s: Stmt) -> Stmt:
        if isinstance(s, Let):
            return Let(s.var, s.value, self._below(s.body))
        return self._For(s) if isinstance(s, For) else self.stmt(s)


@stages(*FLATTENED, ensures=TENSORISED)
def hoist(kernel: Kernel) -> Kernel:
    """Bind each costly loop-invariant index to a variable before the outermost loop in which it is invariant.

    Before::

        kernel k(a: f32[8], dst: f32[8, 4])
          for i in 0 .. 8:
            for j in 0 .. 4:
              for k in max(-i + 2, 0) .. min(-i + 8, 3):
                dst[i, j] = a[i + k]

    After ``hoist()``::

        kernel k(a: f32[8], dst: f32[8, 4])
          for i in 0 .. 8:
            let inv0 = min(-i + 8, 3):
              let inv1 = max(-i + 2, 0):
                for j in 0 .. 4:
                  for k in inv1 .. inv0:
                    dst[i, j] = a[i + k]
    """

    def body(s: Stmt) -> Stmt:
        if not costly(s):
            return s
        return _Hoist(Fresh("inv", variables_of(s))).stmt(s)

    return each_body(kernel, body)
