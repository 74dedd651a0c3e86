"""Skip absent terms: ``acc = acc + (p if c else 0)`` becomes ``if c: acc = acc + p``."""

from __future__ import annotations

from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import If, Kernel, Stmt, Store
from convsmith.ir.value import Binary
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import masked_term
from convsmith.passes.scope import with_body


class _SkipZero(Rewriter):
    def visit_Store(self, s: Store) -> Stmt:
        term = masked_term(s)
        if term is None:
            return s
        assert isinstance(s.value, Binary)
        return If(term.cond, Store(s.buffer, s.index, Binary("add", s.value.a, term.yes), s.lanes))


@stages(*LOOPS)
def skip_zero(kernel: Kernel) -> Kernel:
    """Guard an accumulation instead of adding a selected zero, so that later passes can move and resolve the guard.

    Before::

        kernel k(src: f32[5], wei: f32[3], dst: f32[5])
          for ow in 0 .. 5:
            alloc acc: f32[] @register:
              acc[] = 0.0
              for kw in 0 .. 3:
                acc[] = acc[] + (src[kw + ow - 1] * wei[kw] if kw + ow - 1 >= 0 and -kw - ow + 5 >= 0 else 0.0)
              dst[ow] = acc[]

    After ``skip_zero()``::

        kernel k(src: f32[5], wei: f32[3], dst: f32[5])
          for ow in 0 .. 5:
            alloc acc: f32[] @register:
              acc[] = 0.0
              for kw in 0 .. 3:
                if kw + ow - 1 >= 0 and -kw - ow + 5 >= 0:
                  acc[] = acc[] + src[kw + ow - 1] * wei[kw]
              dst[ow] = acc[]

    """
    return with_body(kernel, _SkipZero().stmt(kernel.body))
