"""Memory that each iteration of a loop allocates, as one array with room for all iterations."""

from __future__ import annotations

from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Alloc, For, Stmt, Store
from convsmith.ir.value import Lanes, Load, Value
from convsmith.ir.walk import statements_of, walk

__all__ = ["with_shared_memory"]


def with_shared_memory(loop: For) -> Stmt | None:
    """Return ``loop`` with the memory that its iterations allocate around it, in which the vectors of consecutive
    iterations are adjacent; None if they allocate none, or access a part of it other than by vectors of one length.
    """
    found = [s.buffer for s in statements_of(loop.body) if isinstance(s, Alloc) and s.buffer.scope == "cache"]
    if not found or not loop.lo.is_const or not loop.hi.is_const:
        return None
    count, made = loop.hi.const - loop.lo.const, {}
    for b in found:
        lanes = _lanes_of(loop.body, b)
        if not lanes or b.size % lanes:
            return None
        made[b] = make_buffer(b.name, b.dtype, (b.size * count,), b.scope), lanes
    body = _Moved(loop, count, made).stmt(loop.body)
    out: Stmt = For(loop.var, loop.lo, loop.hi, body, loop.kind)
    for new, _ in made.values():
        out = Alloc(new, out)
    return out


def _lanes_of(body: Stmt, buffer: Buffer) -> int:
    """Return the lanes of every access of ``buffer``, which are whole vectors at multiples of their length; 0 if there
    are other accesses.
    """
    found = set()
    places: list[tuple[tuple[Index, ...], Lanes | None]] = []
    for x in walk(body):
        if isinstance(x, (Load, Store)) and x.buffer is buffer:
            places.append((x.index, x.lanes))
    for index, lanes in places:
        if lanes is None or lanes.stride != 1 or not lanes.is_whole or len(index) != 1:
            return 0
        if any(n % lanes.count for n in (index[0].const, *(step for _, step in index[0].terms))):
            return 0
        found.add(lanes.count)
    return found.pop() if len(found) == 1 else 0


class _Moved(Rewriter):
    """Accesses the array with room for ``count`` iterations, and allocates no memory for one."""

    def __init__(self, loop: For, count: int, made: dict[Buffer, tuple[Buffer, int]]) -> None:
        super().__init__()
        self.loop, self.count, self.made = loop, count, made

    def place(self, index: tuple[Index, ...], lanes: int) -> tuple[Index]:
        return (index[0] * self.count + (self.loop.var - self.loop.lo) * lanes,)

    def visit_Load(self, v: Load) -> Value:
        if v.buffer not in self.made:
            return self._Load(v)
        new, lanes = self.made[v.buffer]
        return Load(new, self.place(v.index, lanes), v.lanes)

    def visit_Store(self, s: Store) -> Stmt:
        if s.buffer not in self.made:
            return self._Store(s)
        new, lanes = self.made[s.buffer]
        return Store(new, self.place(s.index, lanes), self.expr(s.value), s.lanes)

    def visit_Alloc(self, s: Alloc) -> Stmt:
        return self.stmt(s.body) if s.buffer in self.made else self._Alloc(s)
