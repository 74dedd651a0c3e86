"""A rewriter that makes statements access another buffer, at another place."""

from __future__ import annotations

from collections.abc import Callable

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Alloc, Stmt, Store
from convsmith.ir.value import Load, Value
from convsmith.layout.block import LayoutBlock

Place = tuple[Index, ...]


def with_slots(old: Buffer, count: int) -> Buffer:
    """Return ``old`` with a leading dim of ``count`` slots, which have the layout of ``old`` and are adjacent in
    memory.
    """
    blocks = (LayoutBlock(0, count, old.size), *(b._replace(dim=b.dim + 1) for b in old.blocks))
    return Buffer(old.name, old.dtype, (count, *old.shape), blocks, old.scope)


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

    def visit_Alloc(self, s: Alloc) -> Stmt:
        return Alloc(self.new, self.stmt(s.body)) if s.buffer is self.old else self._Alloc(s)
