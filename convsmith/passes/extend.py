"""Run a loop up to a multiple of its tile; the added iterations store nothing."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, as_index, conj
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Alloc, For, If, Kernel, Stmt, Store
from convsmith.ir.value import Binary, Const, Select, Value, const
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import is_only_sum
from convsmith.passes.scope import LoopRewriter, extent, require_loops, with_body


class _Extend(LoopRewriter):
    def __init__(self, loop: str, multiple: int) -> None:
        super().__init__()
        self.loop, self.multiple = loop, multiple

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        if loop.lo is not as_index(0):
            raise ConfigError("bounds", f"extend: loop {loop.var} starts at {loop.lo}; legal are loops from 0")
        hi = as_index(-(-extent(loop, self.ranges) // self.multiple) * self.multiple)
        if hi is loop.hi:
            return loop
        return For(loop.var, loop.lo, hi, _Guard(loop.var < loop.hi).stmt(loop.body), loop.kind, loop.carried)


class _Guard(Rewriter):
    """Guards stores: a term of a sum is zero where ``cond`` does not hold, and other stores are dropped.

    The store of a constant first value to an iteration's own memory is not guarded.
    """

    def __init__(self, cond: Cond) -> None:
        super().__init__()
        self.cond = cond
        self.own: set[Buffer] = set()

    def visit_Alloc(self, s: Alloc) -> Stmt:
        self.own.add(s.buffer)
        return self._Alloc(s)

    def visit_Store(self, s: Store) -> Stmt:
        if s.buffer in self.own and isinstance(s.value, Const):
            return s
        if s.buffer.in_registers and is_only_sum(s):
            assert isinstance(s.value, Binary)
            return Store(s.buffer, s.index, Binary("add", s.value.a, present(self.cond, s.value.b, s.buffer)), s.lanes)
        return If(self.cond, s)

    def visit_AtomicAdd(self, s: Stmt) -> Stmt:
        return If(self.cond, s)

    visit_AsyncCopy = visit_AtomicAdd


def present(cond: Cond, term: Value, acc: Buffer) -> Value:
    """Return ``term`` if ``cond`` also holds, otherwise zero of the type of ``acc``."""
    zero = const(acc.dtype, 0)
    if isinstance(term, Select) and term.no is zero:
        return Select(conj((term.cond, cond)), term.yes, zero)
    return Select(cond, term, zero)


@stages(*LOOPS)
def extend(kernel: Kernel, loop: str, multiple: int) -> Kernel:
    """Run ``loop`` up to the next ``multiple``, so that tiles of that size are whole; added iterations store nothing.

    A loop whose end depends on outer loops runs to its largest end. A term that an added iteration adds to registers is
    zero.

    Before::

        kernel k(a: f32[5, 3], dst: f32[5])
          for i in 0 .. 5:
            alloc acc: f32[] @register:
              acc[] = 0.0
              for k in 0 .. 3:
                acc[] = acc[] + a[i, k]
              dst[i] = acc[]

    After ``extend("i", 4)``::

        kernel k(a: f32[5, 3], dst: f32[5])
          for i in 0 .. 8:
            alloc acc: f32[] @register:
              acc[] = 0.0
              for k in 0 .. 3:
                acc[] = acc[] + (a[i, k] if -i + 4 >= 0 else 0.0)
              if -i + 4 >= 0:
                dst[i] = acc[]
    """
    require_loops(kernel, (loop,), "extend")
    if multiple < 1:
        raise ConfigError("tile-size", f"extend: loop {loop} to a multiple of {multiple}; legal is at least 1")
    return with_body(kernel, _Extend(loop, multiple).stmt(kernel.body))
