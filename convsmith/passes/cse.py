"""Common-subexpression elimination on indices."""

from __future__ import annotations

from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import For, Kernel, Let, Stmt
from convsmith.ir.walk import bound_in, variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.lets import Fresh, costly, name_all
from convsmith.passes.scope import each_body


class _Cse(Rewriter):
    def __init__(self, fresh: Fresh) -> None:
        super().__init__()
        self.fresh = fresh

    def common(self, s: Stmt) -> Stmt:
        """Name the expressions that occur at least twice in ``s`` and use no variable bound inside it."""
        twice = [e for e, n in costly(s).items() if n > 1]
        if not twice:  # nor does a statement inside of ``s`` have one
            return s
        inside = bound_in(s)
        return self.stmt(name_all(s, [e for e in twice if not variables_of(e) & inside], self.fresh))

    def visit_For(self, loop: For) -> Stmt:
        body = self.common(loop.body)
        return loop if body is loop.body else For(loop.var, loop.lo, loop.hi, body, loop.kind, loop.carried)

    def visit_Let(self, s: Let) -> Stmt:
        body = self.common(s.body)
        return s if body is s.body else Let(s.var, s.value, body)


@stages(*FLATTENED, ensures=TENSORISED)
def cse(kernel: Kernel) -> Kernel:
    """Bind each costly index that occurs more than once to a variable, where its own variables are in scope.

    Before::

        kernel k(a: f32[8], dst: f32[8, 2])
          for i in 0 .. 8:
            for k in max(-i + 2, 0) .. 3:
              dst[i, 0] = a[k]
            for k in max(-i + 2, 0) .. 3:
              dst[i, 1] = a[k + 1]

    After ``cse()``::

        kernel k(a: f32[8], dst: f32[8, 2])
          for i in 0 .. 8:
            let com0 = max(-i + 2, 0):
              for k in com0 .. 3:
                dst[i, 0] = a[k]
              for k in com0 .. 3:
                dst[i, 1] = a[k + 1]
    """

    def body(s: Stmt) -> Stmt:
        if not costly(s):
            return s
        return _Cse(Fresh("com", variables_of(s) | bound_in(s))).common(s)

    return each_body(kernel, body)
