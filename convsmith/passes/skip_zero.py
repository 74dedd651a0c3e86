"""Skip terms that are absent: ``acc = acc + (p if c else 0)`` becomes ``if c: acc = acc + p``."""

from __future__ import annotations

from convsmith.ir.stmt import If, Kernel, Stmt, Store
from convsmith.ir.value import Binary, Const, Load, Select
from convsmith.ir.walk import Rewriter
from convsmith.passes.scope import with_body


class _SkipZero(Rewriter):
    def Store(self, s: Store) -> Stmt:
        v = s.value
        if isinstance(v, Binary) and v.op == "add" and isinstance(v.b, Select):
            here, term = v.a, v.b
            same = isinstance(here, Load) and here.buffer is s.buffer and here.index == s.index
            if same and isinstance(term.no, Const) and term.no.value == 0:
                return If(term.cond, Store(s.buffer, s.index, Binary("add", here, term.yes), s.lanes))
        return s


def skip_zero(kernel: Kernel) -> Kernel:
    """Guard the statement instead of selecting zero, so that the guard can be moved and resolved."""
    return with_body(kernel, _SkipZero().stmt(kernel.body))
