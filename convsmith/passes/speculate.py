"""Compute sums that no store uses, if that saves a test for each of their terms."""

from __future__ import annotations

from collections.abc import Iterator

from convsmith.arith.simplify import simplify
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Index, Var, conj, is_true, parts_of
from convsmith.ir.stmt import Alloc, AtomicAdd, Block, For, If, Kernel, Stmt, Store
from convsmith.ir.value import Binary, Load, Select, Value
from convsmith.ir.walk import bound_in, variables_of, walk
from convsmith.passes.accesses import reads_any
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import is_only_sum
from convsmith.passes.scope import ScopedRewriter, are_inside, with_body


class _Speculate(ScopedRewriter):
    def __init__(self) -> None:
        super().__init__()
        self.unused: dict[Buffer, tuple[tuple[Index, ...], frozenset[Cond]]] = {}
        """For an array of sums, the index of each read of it, and conditions that every read requires."""

    def visit_Alloc(self, s: Alloc) -> Stmt:
        if s.buffer.scope == "register":
            reads = list(_reads(s.body, s.buffer, ()))
            if reads and all(index == reads[0][0] for index, _ in reads):
                common = frozenset.intersection(*(frozenset(conds) for _, conds in reads))
                own = bound_in(s.body)
                place = frozenset(i for i in reads[0][0] if isinstance(i, Var))
                self.unused[s.buffer] = reads[0][0], frozenset(c for c in common if variables_of(c) & own <= place)
        return self._Alloc(s)

    def visit_Store(self, s: Store) -> Stmt:
        index, conds = self.unused.get(s.buffer, ((), frozenset[Cond]()))
        if not conds or index != s.index or not is_only_sum(s):
            return s
        assert isinstance(s.value, Binary)
        term = s.value.b
        if not isinstance(term, Select) or not are_inside(term.yes, self.ranges):
            return s
        unused = {simplify(c, self.ranges) for c in conds}
        cond = conj(c for c in parts_of(term.cond) if simplify(c, self.ranges) not in unused)
        made = term.yes if is_true(cond) else Select(cond, term.yes, term.no)
        return Store(s.buffer, s.index, Binary("add", s.value.a, made), s.lanes)


def _reads(s: Stmt, buffer: Buffer, conds: tuple[Cond, ...]) -> Iterator[tuple[tuple[Index, ...], tuple[Cond, ...]]]:
    """Yield the index and the conditions of each read of ``buffer``, except the reads of its own accumulation."""
    if isinstance(s, If):
        yield from _reads(s.body, buffer, (*conds, *parts_of(s.cond)))
    elif isinstance(s, Block):
        for x in s.stmts:
            yield from _reads(x, buffer, conds)
    elif isinstance(s, (Store, AtomicAdd)):
        value: Value = s.value
        if isinstance(s, Store) and s.buffer is buffer and is_only_sum(s):
            assert isinstance(value, Binary)
            value = value.b
        if reads_any(value, {buffer}):
            yield from ((x.index, conds) for x in walk(value) if isinstance(x, Load) and x.buffer is buffer)
    elif isinstance(s, (For, Alloc)):
        yield from _reads(s.body, buffer, conds)
    elif any(getattr(x, "buffer", None) is buffer for x in walk(s)):
        yield (), ()


@stages(*LOOPS)
def speculate(kernel: Kernel) -> Kernel:
    """Drop conditions from the terms of sums that are unused if the condition does not hold.

    All loads of such a term must be within their buffers.

    Before::

        kernel k(a: f32[8, 3], dst: f32[5])
          alloc acc: f32[8] @register:
            for i in 0 .. 8:
              acc[i] = 0.0
            for k in 0 .. 3:
              for i in 0 .. 8:
                acc[i] = acc[i] + (a[i, k] if -i + 4 >= 0 else 0.0)
            for i in 0 .. 8:
              if -i + 4 >= 0:
                dst[i] = acc[i]

    After ``speculate()``::

        kernel k(a: f32[8, 3], dst: f32[5])
          alloc acc: f32[8] @register:
            for i in 0 .. 8:
              acc[i] = 0.0
            for k in 0 .. 3:
              for i in 0 .. 8:
                acc[i] = acc[i] + a[i, k]
            for i in 0 .. 8:
              if -i + 4 >= 0:
                dst[i] = acc[i]

    """
    return with_body(kernel, _Speculate().stmt(kernel.body))
