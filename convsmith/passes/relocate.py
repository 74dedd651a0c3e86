"""A rewriter that has statements access another buffer, at another place."""

from __future__ import annotations

from collections.abc import Callable

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index
from convsmith.ir.stmt import Alloc, Stmt, Store
from convsmith.ir.value import Load, Value
from convsmith.ir.walk import Rewriter

Place = tuple[Index, ...]


class Relocate(Rewriter):
    """Replaces accesses of ``old`` at an index by accesses of ``new`` at the ``place`` of that index."""

    def __init__(self, old: Buffer, new: Buffer, place: Callable[[Place], Place]) -> None:
        super().__init__()
        self.old, self.new, self.place = old, new, place

    def Load(self, v: Load) -> Value:
        return Load(self.new, self.place(v.index), v.lanes) if v.buffer is self.old else self._Load(v)

    def Store(self, s: Store) -> Stmt:
        if s.buffer is not self.old:
            return self._Store(s)
        return Store(self.new, self.place(s.index), self.expr(s.value), s.lanes)

    def Alloc(self, s: Alloc) -> Stmt:
        return Alloc(self.new, self.stmt(s.body)) if s.buffer is self.old else self._Alloc(s)
