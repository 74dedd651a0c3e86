"""Tile a loop whose length is known only at the call: full tiles, subtiles, and a remainder in powers of two."""

from __future__ import annotations

from convsmith.ir.index import Index, Var, as_index, eq, floordiv, mod
from convsmith.ir.rewrite import Rewriter, Substitute
from convsmith.ir.stmt import For, If, Kernel, PointerLoad, Stmt, Store, block
from convsmith.ir.value import Load, Select, Value
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import require_loops, require_no_effects, with_body


class _Piece(Rewriter):
    """Runs the vectors and lanes of a tile a constant number of times, from a position within the tile on.

    The piece has its own registers; memory accesses, and conditions on them, are shifted.
    """

    def __init__(self, counts: dict[str, int], moved: dict[Var, Index]) -> None:
        super().__init__()
        self.counts = counts
        self.memory = Substitute(moved)

    def visit_For(self, loop: For) -> Stmt:
        count = self.counts.get(loop.var.name)
        body = self.stmt(loop.body)
        if count is None:
            return For(loop.var, loop.lo, loop.hi, body, loop.kind, loop.carried)
        return For(loop.var, as_index(0), as_index(count), body, loop.kind)

    def visit_PointerLoad(self, s: PointerLoad) -> Stmt:
        index, offset = self.memory.index(s.index), self.memory.expr(s.offset)
        return PointerLoad(s.buffer, s.table, index, offset, s.source, s.zero, s.zero_at, self.stmt(s.body))

    def visit_If(self, s: If) -> Stmt:
        return If(self.memory.expr(s.cond), self.stmt(s.body))

    def visit_Select(self, v: Select) -> Value:
        return Select(self.memory.expr(v.cond), self.expr(v.yes), self.expr(v.no))

    def visit_Load(self, v: Load) -> Value:
        return v if v.buffer.scope == "register" else Load(v.buffer, self.memory.index(v.index), v.lanes)

    def visit_Store(self, s: Store) -> Stmt:
        index = s.index if s.buffer.scope == "register" else self.memory.index(s.index)
        return Store(s.buffer, index, self.expr(s.value), s.lanes)


class _Pieces(Rewriter):
    def __init__(
        self, outer: str, vector: str, lane: str, sizes: tuple[int, int, int], others: tuple[str, ...], whole: bool
    ) -> None:
        super().__init__()
        self.whole = whole
        self.outer, self.vector, self.each = outer, Var(vector), (Var(lane), *map(Var, others))
        self.size, self.subtile, self.lanes = sizes

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.outer or loop.hi.is_const:
            return self._For(loop)
        length = _undone(loop.hi, self.size)
        whole = floordiv(length, self.size)
        counts = self.counts(self.size)
        tile = _Piece(counts, {}).stmt(loop.body)
        parts: list[Stmt] = []
        rest, sub = mod(length, self.size), self.subtile
        base: Index = as_index(0)
        if sub < self.size:
            name = Var(f"{loop.var}.s")
            body = self.piece(loop.var, loop.body, whole, name * sub, sub)
            parts.append(For(name, as_index(0), floordiv(rest, sub), body, loop.kind))
            base, rest = floordiv(rest, sub) * sub, mod(length, sub) if not self.size % sub else mod(rest, sub)
        n = 1 << (sub - 1).bit_length() >> 1
        while n:
            start = base + floordiv(rest, 2 * n) * (2 * n)
            parts.append(If(eq(mod(floordiv(rest, n), 2), 1), self.piece(loop.var, loop.body, whole, start, n)))
            n //= 2
        if not self.whole:
            return block(For(loop.var, loop.lo, whole, tile, loop.kind), *parts)
        body = block(If(loop.var < whole, tile), If(loop.var >= whole, block(*parts)))
        return For(loop.var, loop.lo, loop.hi, body, loop.kind)

    def piece(self, outer: Var, body: Stmt, whole: Index, start: Index, count: int) -> Stmt:
        """Return ``count`` iterations from position ``start`` of the last tile on."""
        several = self.size > self.lanes
        replacements: dict[Var, Index] = {outer: whole}
        replacements |= {lane: lane + (mod(start, self.lanes) if several else start) for lane in self.each}
        if several:
            replacements[self.vector] = self.vector + floordiv(start, self.lanes)
        return _Piece(self.counts(count), replacements).stmt(body)

    def counts(self, count: int) -> dict[str, int]:
        """Return the iterations of the loops for ``count`` elements."""
        vectors = -(-count // self.lanes)
        return {self.vector.name: vectors} | {lane.name: min(count, self.lanes) for lane in self.each}


def _undone(hi: Index, size: int) -> Index:
    """Return ``length``, given ``hi`` = ``(length + size - 1) // size``."""
    if size == 1:
        return hi
    (atom,) = (a for a, _ in hi.terms)
    num: Index = atom.num  # type: ignore[attr-defined]
    return num - (size - 1)


@stages(*LOOPS)
def pieces(
    kernel: Kernel, outer: str, vector: str, lane: str, sizes: tuple[int, int, int], others: tuple[str, ...] = (),
    whole: bool = False,
) -> Kernel:  # fmt: skip
    """Split a tiled loop whose length is a size of the kernel, so that loops over vectors and lanes have constant ends.

    ``outer`` counts tiles, ``vector`` counts vectors in a tile (or is empty), ``lane`` and ``others`` count lanes.
    ``sizes`` are the sizes of a tile, of the subtiles of the remainder, and of a vector. ``whole`` keeps one loop, with
    conditions inside.

    Before::

        kernel k(a: f32[?], b: f32[?], n)
          for c.o in 0 .. (n + 3) // 4:
            alloc t: f32[1, 4] @register:
              for c.v in 0 .. 1:
                for c.l in 0 .. min(-c.o * 4 - c.v * 4 + n, 4):
                  t[c.v, c.l] = a[c.l + c.o * 4 + c.v * 4]
              for c.v in 0 .. 1:
                for c.l in 0 .. min(-c.o * 4 - c.v * 4 + n, 4):
                  b[c.l + c.o * 4 + c.v * 4] = t[c.v, c.l]

    After ``pieces("c.o", "c.v", "c.l", (4, 4, 4))``::

        kernel k(a: f32[?], b: f32[?], n)
          for c.o in 0 .. n // 4:
            alloc t: f32[1, 4] @register:
              for c.v in 0 .. 1:
                for c.l in 0 .. 4:
                  t[c.v, c.l] = a[c.l + c.o * 4 + c.v * 4]
              for c.v in 0 .. 1:
                for c.l in 0 .. 4:
                  b[c.l + c.o * 4 + c.v * 4] = t[c.v, c.l]
          if ((n % 4) // 2) % 2 - 1 == 0:
            alloc t: f32[1, 4] @register:
              for c.v in 0 .. 1:
                for c.l in 0 .. 2:
                  t[c.v, c.l] = a[c.l + c.v * 4 + (n % 4) // 4 * 4 + n // 4 * 4]
              for c.v in 0 .. 1:
                for c.l in 0 .. 2:
                  b[c.l + c.v * 4 + (n % 4) // 4 * 4 + n // 4 * 4] = t[c.v, c.l]
          if n % 2 - 1 == 0:
            alloc t: f32[1, 4] @register:
              for c.v in 0 .. 1:
                for c.l in 0 .. 1:
                  t[c.v, c.l] = a[c.l + c.v * 4 + (n % 4) // 2 * 2 + n // 4 * 4]
              for c.v in 0 .. 1:
                for c.l in 0 .. 1:
                  b[c.l + c.v * 4 + (n % 4) // 2 * 2 + n // 4 * 4] = t[c.v, c.l]
    """
    require_no_effects(kernel, "pieces")
    require_loops(kernel, (outer, *((vector,) if vector else ()), lane, *others), "pieces")
    return with_body(kernel, _Pieces(outer, vector, lane, sizes, others, whole).stmt(kernel.body))
