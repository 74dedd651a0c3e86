"""Start integer sums at what the result subtracts from them.

A zero point is subtracted from each sum. If the sum starts at the negative number instead of at zero, the subtraction
takes no instruction per element, because a register needs a first value anyway. Integers wrap, so the order of their
terms does not change a sum.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from convsmith.ir.buffer import Buffer
from convsmith.ir.rewrite import replace_value
from convsmith.ir.stmt import Alloc, Block, For, Kernel, Stmt, Store, block
from convsmith.ir.value import Binary, Const, Load, Value
from convsmith.ir.walk import children, loads_of, statements_of, walk
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import LoopRewriter, perfect_nest, require_loops, with_body, wrap


def _difference(v: Value, acc: Buffer) -> Binary | None:
    """Return the difference in ``v`` of an element of ``acc`` and another value, if ``v`` uses ``acc`` only there."""
    users = [x for x in walk(v) if any(isinstance(y, Load) and y.buffer is acc for y in children(x))]
    if len(users) != 1 or not isinstance(users[0], Binary) or users[0].op != "sub":
        return None
    return None if any(x.buffer is acc for x in loads_of(users[0].b)) else users[0]


def _is_zero(v: Value) -> bool:
    return isinstance(v, Const) and v.value == 0


class _StartSums(LoopRewriter):
    def __init__(self, names: Sequence[str], written: Collection[Buffer]) -> None:
        super().__init__()
        self.names, self.written = list(names), written

    def visit_For(self, loop: For) -> Stmt:
        chain, body = perfect_nest(loop)
        if [x.var.name for x in chain] != self.names:
            return self._For(loop)
        if not isinstance(body, Alloc) or body.buffer.dtype.kind == "float" or not isinstance(body.body, Block):
            return loop
        first, *between, last = body.body.stmts
        if not (isinstance(first, Store) and isinstance(last, Store) and _is_zero(first.value)):
            return loop
        added, value = first.value, last.value
        while (found := _difference(value, body.buffer)) is not None:
            if any(x.buffer in self.written for x in loads_of(found.b)):
                break
            added, value = Binary("sub", added, found.b), replace_value(value, found, found.a)
        if value is last.value:
            return loop
        adding = Store(first.buffer, first.index, Binary("add", Load(body.buffer, first.index, None), added))
        parts = (first, adding, *between, Store(last.buffer, last.index, value))
        return wrap(chain, Alloc(body.buffer, block(*parts)))


@stages(*LOOPS)
def start_sums(kernel: Kernel, names: Sequence[str]) -> Kernel:
    """Subtract what the result subtracts from the sums of the loops ``names`` from their first values instead.

    Sums of floats stay, and differences with elements that the kernel writes.

    Before::

        kernel k(a: s8[5, 3], p: s32[5], dst: s32[5])
          for i in 0 .. 5:
            alloc acc: s32[] @register:
              acc[] = s32(0)
              for k in 0 .. 3:
                acc[] = acc[] + cast(s32, a[i, k])
              dst[i] = acc[] - p[i]

    After ``start_sums(("i",))``::

        kernel k(a: s8[5, 3], p: s32[5], dst: s32[5])
          for i in 0 .. 5:
            alloc acc: s32[] @register:
              acc[] = s32(0)
              acc[] = acc[] + (s32(0) - p[i])
              for k in 0 .. 3:
                acc[] = acc[] + cast(s32, a[i, k])
              dst[i] = acc[]
    """
    require_loops(kernel, names, "start_sums")
    written = {x.buffer for x in statements_of(kernel.body) if isinstance(x, Store)}
    return with_body(kernel, _StartSums(names, written).stmt(kernel.body))
