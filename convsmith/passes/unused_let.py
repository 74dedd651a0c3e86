"""Remove ``let``s that nothing uses, and those that only rename a variable or a constant."""

from __future__ import annotations

from convsmith.ir.index import Var
from convsmith.ir.stmt import Kernel, Let, Stmt
from convsmith.ir.walk import Rewriter, substitute, variables_of
from convsmith.passes.scope import each_body


class _UnusedLet(Rewriter):
    def Let(self, s: Let) -> Stmt:
        body = self.stmt(s.body)
        if s.value.is_const or type(s.value) is Var:
            return substitute(body, {s.var: s.value})  # type: ignore[no-any-return]
        if s.var not in variables_of(body):
            return body
        return s if body is s.body else Let(s.var, s.value, body)


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
    return each_body(kernel, lambda s: _UnusedLet().stmt(s))
