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
    iterations are adjacent; None if they allocate none, or access a part of it other than by vectors, or rows of
    fragments, that consist of parts of one length.
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
    """Return the length of the parts of every access of ``buffer``, which are adjacent lanes at a multiple of their
    length; 0 if there are other accesses. A vector is one part, and a fragment may be several.
    """
    places: list[tuple[tuple[Index, ...], Lanes | None]] = []
    vectors: set[int] = set()
    for x in walk(body):
        if isinstance(x, (Load, Store)) and x.buffer is buffer:
            places.append((x.index, x.lanes))
            is_fragment = isinstance(x, Store) and isinstance(x.value, Load) and x.value.buffer.scope == "fragment"
            if not is_fragment and x.lanes is not None:
                vectors.add(x.lanes.count)
    if len(vectors) != 1:
        return 0
    (length,) = vectors
    for index, lanes in places:
        if lanes is None or lanes.first or lanes.active % length or len(index) != 1 or not _has_parts(lanes, length):
            return 0
        if any(n % length for n in (index[0].const, *(step for _, step in index[0].terms))):
            return 0
    return length


def _has_parts(lanes: Lanes, length: int) -> bool:
    """Return whether lanes are parts of ``length`` adjacent ones, each at a multiple of that."""
    return all(
        o - o % length == lanes.offsets[n - n % length] and o % length == n % length
        for n, o in enumerate(lanes.offsets)
    )


class _Moved(Rewriter):
    """Accesses the array with room for ``count`` iterations, and allocates no memory for one."""

    def __init__(self, loop: For, count: int, made: dict[Buffer, tuple[Buffer, int]]) -> None:
        super().__init__()
        self.loop, self.count, self.made = loop, count, made

    def place(self, index: tuple[Index, ...], length: int) -> tuple[Index]:
        return (index[0] * self.count + (self.loop.var - self.loop.lo) * length,)

    def lanes(self, lanes: Lanes | None, length: int) -> Lanes:
        assert lanes is not None
        return Lanes(tuple(o // length * length * self.count + o % length for o in lanes.offsets), lanes.active)

    def visit_Load(self, v: Load) -> Value:
        if v.buffer not in self.made:
            return self._Load(v)
        new, length = self.made[v.buffer]
        return Load(new, self.place(v.index, length), self.lanes(v.lanes, length))

    def visit_Store(self, s: Store) -> Stmt:
        if s.buffer not in self.made:
            return self._Store(s)
        new, length = self.made[s.buffer]
        return Store(new, self.place(s.index, length), self.expr(s.value), self.lanes(s.lanes, length))

    def visit_Alloc(self, s: Alloc) -> Stmt:
        return self.stmt(s.body) if s.buffer in self.made else self._Alloc(s)
