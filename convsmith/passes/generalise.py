"""Let extents be sizes of the kernel, known at the call only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convsmith.ir.buffer import UNKNOWN, Block, Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index, product
from convsmith.ir.stmt import For, Kernel, Stmt, Store
from convsmith.ir.value import Load, Value
from convsmith.ir.walk import Rewriter
from convsmith.passes.scope import require_loops

Strides = tuple[Index, ...]


class _Generalise(Rewriter):
    def __init__(self, ends: dict[str, Index], strides: dict[str, Strides]) -> None:
        super().__init__()
        self.ends, self.strides = ends, strides
        self.made: dict[Buffer, Buffer] = {}

    def buffer(self, b: Buffer) -> Buffer:
        if b.name not in self.strides:
            return b
        if b not in self.made:
            blocks = tuple(Block(x.dim, x.size if x.dim else UNKNOWN, x.stride) for x in b.blocks)
            flat = make_buffer(b.name, b.dtype, (UNKNOWN,), b.scope)
            self.made[b] = flat if self.strides[b.name] else replace(b, shape=(UNKNOWN, *b.shape[1:]), blocks=blocks)
        return self.made[b]

    def access(self, b: Buffer, index: tuple[Index, ...]) -> tuple[Index, ...]:
        index = self.index(index)
        if not self.strides.get(b.name):
            return index
        places = [product(i, stride) for i, stride in zip(index, self.strides[b.name], strict=True)]
        return (sum(places, as_index(0)),)

    def For(self, loop: For) -> Stmt:
        end = self.ends.get(loop.var.name)
        if end is None:
            return self._For(loop)
        return For(loop.var, loop.lo, end, self.stmt(loop.body), loop.kind, loop.carried)

    def Load(self, v: Load) -> Value:
        return Load(self.buffer(v.buffer), self.access(v.buffer, v.index), v.lanes)

    def Store(self, s: Store) -> Stmt:
        return Store(self.buffer(s.buffer), self.access(s.buffer, s.index), self.expr(s.value), s.lanes)


def generalise(
    kernel: Kernel, ends: Sequence[tuple[str, Index]], strides: Sequence[tuple[str, Strides]], sizes: Sequence[Var]
) -> Kernel:
    """Run the named loops to other ends, and address the named buffers by other strides; both may hold ``sizes``.

    A buffer without strides keeps its own, and has any number of elements along its first dim.

    Before::

        kernel k(a: f32[3, 2], b: f32[2], dst: f32[3, 2])
          for i in 0 .. 3:
            for j in 0 .. 2:
              dst[i, j] = a[i, j] + b[j]

    After ``generalise((("i", N),), (("a", (S, ONE)), ("dst", (ONE + ONE, ONE))), (N, S))``::

        kernel k(a: f32[?], b: f32[2], dst: f32[?], n, s)
          for i in 0 .. n:
            for j in 0 .. 2:
              dst[i * 2 + j] = a[j + i * s] + b[j]
    """
    require_loops(kernel, [name for name, _ in ends], "generalise")
    g = _Generalise(dict(ends), dict(strides))
    body = g.stmt(kernel.body)
    params = tuple(g.buffer(b) for b in kernel.params)
    return replace(kernel, params=params, body=body, sizes=(*kernel.sizes, *sizes))
