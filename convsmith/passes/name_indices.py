"""Code motion of indices: hoists loop-invariant indices, and computes common subexpressions once."""

from __future__ import annotations

from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import For, Kernel, Let, Stmt
from convsmith.ir.walk import bound_in, variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.lets import Fresh, costly, name_all
from convsmith.passes.scope import each_body


class _LeaveLoops(Rewriter):
    """Names loop-invariant expressions before the outermost loop in which they are invariant."""

    def __init__(self, fresh: Fresh) -> None:
        super().__init__()
        self.fresh = fresh

    def visit_For(self, loop: For) -> Stmt:
        if not (found := costly(loop.body)):
            return loop
        inside = bound_in(loop)
        return self._below(name_all(loop, [e for e in found if not variables_of(e) & inside], self.fresh))

    def _below(self, s: Stmt) -> Stmt:
        if isinstance(s, Let):
            return Let(s.var, s.value, self._below(s.body))
        return self._For(s) if isinstance(s, For) else self.stmt(s)


class _ShareIndices(Rewriter):
    """Names common subexpressions at the innermost place where all their variables are in scope."""

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
def name_indices(kernel: Kernel) -> Kernel:
    """Bind each costly index that is loop-invariant, or occurs more than once, to a variable.

    A loop-invariant index is bound before the outermost loop in which it is invariant; one that occurs more than once,
    where its own variables are in scope.

    Before::

        kernel k(a: f32[8], dst: f32[8, 4])
          for i in 0 .. 8:
            for j in 0 .. 2:
              for k in max(-i + 2, 0) .. min(-i + 8, 3):
                dst[i, j] = a[i + k]
            for k in max(-i + 2, 0) .. 3:
              dst[i, 3] = a[k]

    After ``name_indices()``::

        kernel k(a: f32[8], dst: f32[8, 4])
          for i in 0 .. 8:
            let com0 = max(-i + 2, 0):
              let inv0 = min(-i + 8, 3):
                let inv1 = com0:
                  for j in 0 .. 2:
                    for k in inv1 .. inv0:
                      dst[i, j] = a[i + k]
              for k in com0 .. 3:
                dst[i, 3] = a[k]
    """

    def body(s: Stmt) -> Stmt:
        if not costly(s):
            return s
        s = _LeaveLoops(Fresh("inv", variables_of(s))).stmt(s)
        return _ShareIndices(Fresh("com", variables_of(s) | bound_in(s))).common(s)

    return each_body(kernel, body)
