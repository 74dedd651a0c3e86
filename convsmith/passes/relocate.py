"""A rewriter that has statements access another buffer, at another place."""

from __future__ import annotations

from collections.abc import Callable

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Alloc, Kernel, Stmt, Store
from convsmith.ir.value import Load, Value
from convsmith.passes.scope import with_body

Place = tuple[Index, ...]
Allocation = Alloc
"""Within a rewriter, ``Alloc`` is its method."""


class Relocate(Rewriter):
    """Replaces accesses of ``old`` at an index by accesses of ``new`` at the ``place`` of that index."""

    def __init__(self, old: Buffer, new: Buffer, place: Callable[[Place], Place]) -> None:
        super().__init__()
        self.old, self.new, self.place = old, new, place

    def visit_Load(self, v: Load) -> Value:
        return Load(self.new, self.place(v.index), v.lanes) if v.buffer is self.old else self._Load(v)

    def visit_Store(self, s: Store) -> Stmt:
        if s.buffer is not self.old:
            return self._Store(s)
        return Store(self.new, self.place(s.index), self.expr(s.value), s.lanes)

    def visit_Alloc(self, s: Allocation) -> Stmt:
        return Allocation(self.new, self.stmt(s.body)) if s.buffer is self.old else self._Alloc(s)


class _RelocateAlloc(Rewriter):
    def __init__(self, buffer: str, new: Callable[[Buffer], tuple[Buffer, Callable[[Place], Place]]]) -> None:
        super().__init__()
        self.buffer, self.new = buffer, new

    def visit_Alloc(self, s: Allocation) -> Stmt:
        return Relocate(s.buffer, *self.new(s.buffer)).stmt(s) if s.buffer.name == self.buffer else self._Alloc(s)


def relocated(
    kernel: Kernel, buffer: str, new: Callable[[Buffer], tuple[Buffer, Callable[[Place], Place]]]
) -> Kernel:
    """Return ``kernel`` with the allocated ``buffer`` replaced by the one that ``new`` returns for it, together with
    the place of an element there.
    """
    return with_body(kernel, _RelocateAlloc(buffer, new).stmt(kernel.body))
