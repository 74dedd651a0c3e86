"""Flatten buffers: a logical index becomes one offset, computed through the buffer's blocks."""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.buffer import UNKNOWN, Buffer
from convsmith.ir.index import Index, floordiv, make_sum, mod
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import FLAT
from convsmith.ir.stmt import Alloc, AtomicAdd, For, Kernel, PointerLoad, Stmt, Store
from convsmith.ir.value import Load, Value
from convsmith.layout.block import LayoutBlock
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import with_body


def offset(buffer: Buffer, index: tuple[Index, ...]) -> Index:
    """Return the offset in elements of the logical ``index`` in ``buffer``."""
    if len(buffer.blocks) == 1 and buffer.blocks[0].stride == 1:
        return index[0]
    const = 0
    coeffs: dict[Index, int] = {}
    if len({b.dim for b in buffer.blocks}) == len(buffer.blocks):
        for b in buffer.blocks:
            const += index[b.dim].const * b.stride
            for atom, c in index[b.dim].terms:
                coeffs[atom] = coeffs.get(atom, 0) + c * b.stride
        return make_sum(const, coeffs)
    per_dim: dict[int, list[LayoutBlock]] = {}
    for b in buffer.blocks:
        per_dim.setdefault(b.dim, []).append(b)
    for dim, blocks in per_dim.items():
        inner = 1
        for n, b in enumerate(reversed(blocks)):
            part = floordiv(index[dim], inner)
            if n < len(blocks) - 1:
                part = mod(part, b.size)
            const += part.const * b.stride
            for atom, c in part.terms:
                coeffs[atom] = coeffs.get(atom, 0) + c * b.stride
            inner *= b.size
    return make_sum(const, coeffs)


class _Flatten(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.flat: dict[Buffer, Buffer] = {}
        self.done: dict[For, Stmt] = {}
        """Loops that are flat; copies of a loop may have the same body."""

    def visit_For(self, s: For) -> Stmt:
        if s not in self.done:
            self.done[s] = self._For(s)
        return self.done[s]

    def buffer(self, b: Buffer) -> Buffer:
        if b.in_registers or b.flat:
            return b
        if b not in self.flat:
            size = UNKNOWN if UNKNOWN in b.shape else b.size
            self.flat[b] = Buffer(b.name, b.dtype, (size,), (LayoutBlock(0, size, 1),), b.scope)
        return self.flat[b]

    def visit_Load(self, v: Load) -> Value:
        new = self.buffer(v.buffer)
        return self._Load(v) if new is v.buffer else Load(new, (offset(v.buffer, v.index),), v.lanes)

    def visit_Store(self, s: Store) -> Stmt:
        new = self.buffer(s.buffer)
        if new is s.buffer:
            return self._Store(s)
        return Store(new, (offset(s.buffer, s.index),), self.expr(s.value), s.lanes)

    def visit_AtomicAdd(self, s: AtomicAdd) -> Stmt:
        new = self.buffer(s.buffer)
        if new is s.buffer:
            return self._AtomicAdd(s)
        return AtomicAdd(new, (offset(s.buffer, s.index),), self.expr(s.value), s.lanes)

    def visit_PointerLoad(self, s: PointerLoad) -> Stmt:
        table, zero = self.buffer(s.table), self.buffer(s.zero)
        index = s.index if table is s.table else (offset(s.table, s.index),)
        zero_at = s.zero_at if zero is s.zero else (offset(s.zero, s.zero_at),)
        source, buffer, body = self.buffer(s.source), self.buffer(s.buffer), self.stmt(s.body)
        if table is s.table and zero is s.zero and source is s.source and buffer is s.buffer and body is s.body:
            return s
        return PointerLoad(buffer, table, index, s.offset, source, zero, zero_at, body, s.rows)

    def visit_Alloc(self, a: Alloc) -> Stmt:
        return Alloc(self.buffer(a.buffer), self.stmt(a.body))


@stages(*LOOPS, ensures=FLAT)
def flatten(kernel: Kernel) -> Kernel:
    """Give every buffer in memory one dim; registers keep theirs.

    Before::

        kernel k(a: f32[2, 8] = 1:2:8 0:2:4 1:4:1, dst: f32[2, 8])
          for i in 0 .. 2:
            for j in 0 .. 8:
              dst[i, j] = a[i, j]

    After ``flatten()``::

        kernel k(a: f32[16], dst: f32[16])
          for i in 0 .. 2:
            for j in 0 .. 8:
              dst[i * 8 + j] = a[i * 4 + j % 4 + j // 4 * 8]
    """
    f = _Flatten()
    params = tuple(f.buffer(b) for b in kernel.params)
    out = with_body(kernel, f.stmt(kernel.body))
    return out if all(a is b for a, b in zip(params, kernel.params)) else replace(out, params=params)
