"""Replace constant extents and strides by sizes of the kernel that are known only at the call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convsmith.ir.buffer import UNKNOWN, Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index, floordiv, mod, product
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import For, Kernel, PointerLoad, Stmt, Store
from convsmith.ir.value import Load, Value
from convsmith.layout.block import LayoutBlock
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import require_loops, require_no_effects

Place = tuple[int, int, Index]
"""A block of a buffer: its dim, its size, and its stride, which may be known only at the call."""


class _Generalise(Rewriter):
    def __init__(self, ends: dict[str, Index], places: dict[str, tuple[Place, ...]]) -> None:
        super().__init__()
        self.ends, self.places = ends, places
        self.made: dict[Buffer, Buffer] = {}

    def buffer(self, b: Buffer) -> Buffer:
        if b.name not in self.places:
            return b
        if b not in self.made:
            blocks = tuple(LayoutBlock(x.dim, x.size if x.dim else UNKNOWN, x.stride) for x in b.blocks)
            flat = make_buffer(b.name, b.dtype, (UNKNOWN,), b.scope)
            self.made[b] = flat if self.places[b.name] else replace(b, shape=(UNKNOWN, *b.shape[1:]), blocks=blocks)
        return self.made[b]

    def access(self, b: Buffer, index: tuple[Index, ...]) -> tuple[Index, ...]:
        index = self.index(index)
        if not self.places.get(b.name):
            return index
        offset, rest = as_index(0), list(index)
        outermost = {dim: n for n, (dim, *_) in reversed(list(enumerate(self.places[b.name])))}
        for n, (dim, size, stride) in reversed(list(enumerate(self.places[b.name]))):
            here = outermost[dim] == n  # takes the quotient, because its size may be known only at the call
            offset = offset + product(rest[dim] if here else mod(rest[dim], size), stride)
            rest[dim] = rest[dim] if here else floordiv(rest[dim], size)
        return (offset,)

    def visit_For(self, loop: For) -> Stmt:
        end = self.ends.get(loop.var.name)
        if end is None:
            return self._For(loop)
        return For(loop.var, loop.lo, end, self.stmt(loop.body), loop.kind, loop.carried)

    def visit_PointerLoad(self, s: PointerLoad) -> Stmt:
        index, zero_at = self.index(s.index), self.access(s.zero, s.zero_at)
        pixel, source, zero = self.buffer(s.buffer), self.buffer(s.source), self.buffer(s.zero)
        offset, body = self.expr(s.offset), self.stmt(s.body)
        return PointerLoad(pixel, s.table, index, offset, source, zero, zero_at, body, s.rows)

    def visit_Load(self, v: Load) -> Value:
        return Load(self.buffer(v.buffer), self.access(v.buffer, v.index), v.lanes)

    def visit_Store(self, s: Store) -> Stmt:
        return Store(self.buffer(s.buffer), self.access(s.buffer, s.index), self.expr(s.value), s.lanes)


@stages(*LOOPS)
def generalise(
    kernel: Kernel,
    ends: Sequence[tuple[str, Index]],
    places: Sequence[tuple[str, tuple[Place, ...]]],
    sizes: Sequence[Var],
) -> Kernel:
    """Replace the ends of loops and the blocks of buffers by expressions that may contain ``sizes``.

    Blocks are listed outermost first.  A buffer without new blocks keeps its own, and its first dim has any extent.

    Before::

        kernel k(a: f32[3, 2], b: f32[2], dst: f32[3, 2])
          for i in 0 .. 3:
            for j in 0 .. 2:
              dst[i, j] = a[i, j] + b[j]

    After ``generalise((("i", N),), (("a", ((0, 3, S), (1, 2, ONE))), ("dst", ((0, 3, S), (1, 2, ONE)))), (N, S))``::

        kernel k(a: f32[?], b: f32[2], dst: f32[?], n, s)
          for i in 0 .. n:
            for j in 0 .. 2:
              dst[j + i * s] = a[j + i * s] + b[j]
    """
    require_no_effects(kernel, "generalise")
    require_loops(kernel, [name for name, _ in ends], "generalise")
    g = _Generalise(dict(ends), dict(places))
    body = g.stmt(kernel.body)
    params = tuple(g.buffer(b) for b in kernel.params)
    return replace(kernel, params=params, body=body, sizes=(*kernel.sizes, *sizes))
