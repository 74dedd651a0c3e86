"""Remove ``let``s that nothing uses, and those that only rename a variable or a constant."""

from __future__ import annotations

from convsmith.ir.index import Var
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import Kernel, Let, Stmt
from convsmith.ir.walk import statements_of, variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import each_body


class _UnusedLet(Rewriter):
    def visit_Let(self, s: Let) -> Stmt:
        body = self.stmt(s.body)
        if s.value.is_const or type(s.value) is Var:
            return substitute(body, {s.var: s.value})  # type: ignore[no-any-return]
        if s.var not in variables_of(body):
            return body
        return s if body is s.body else Let(s.var, s.value, body)


@stages(*FLATTENED, ensures=TENSORISED)
def unused_let(kernel: Kernel) -> Kernel:
    """Remove every unnecessary ``let``, innermost first.

    Before::

        kernel k(a: f32[6], dst: f32[6])
          for t in 0 .. 6:
            let g = 0:
              let i = t // 2:
                let j = t % 2:
                  dst[g + i * 2] = a[t]

    After ``unused_let()``::

        kernel k(a: f32[6], dst: f32[6])
          for t in 0 .. 6:
            let i = t // 2:
              dst[i * 2] = a[t]
    """

    def body(s: Stmt) -> Stmt:
        return _UnusedLet().stmt(s) if any(isinstance(x, Let) for x in statements_of(s)) else s

    return each_body(kernel, body)
