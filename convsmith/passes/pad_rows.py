"""Lengthen the rows of shared memory, so that the elements of a column lie in different banks."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index
from convsmith.ir.stmt import Alloc, Kernel, Stmt
from convsmith.ir.walk import Rewriter
from convsmith.layout.block import LayoutBlock
from convsmith.passes.relocate import Relocate
from convsmith.passes.scope import with_body

Allocation = Alloc
"""Within a rewriter, ``Alloc`` is its method."""


class _PadRows(Rewriter):
    def __init__(self, buffer: str, elements: int) -> None:
        super().__init__()
        self.buffer, self.elements = buffer, elements

    def Alloc(self, s: Allocation) -> Stmt:
        old = s.buffer
        if old.name != self.buffer:
            return self._Alloc(s)
        if old.in_registers:
            raise ConfigError("scope", f"pad_rows: {old} is in registers; legal are buffers in memory, which have rows")
        new = Buffer(old.name, old.dtype, old.shape, _padded(old.blocks, self.elements), old.scope)
        return Relocate(old, new, _same).stmt(s)


def _same(index: tuple[Index, ...]) -> tuple[Index, ...]:
    return index


def _padded(blocks: tuple[LayoutBlock, ...], elements: int) -> tuple[LayoutBlock, ...]:
    """Return dense blocks, of which the innermost that is longer than 1 has room for so many more elements."""
    out: list[LayoutBlock] = []
    stride, row = 1, False
    for b in sorted(blocks, key=lambda b: b.stride):
        out.append(LayoutBlock(b.dim, b.size, stride))
        stride *= b.size
        if b.size > 1 and not row:
            stride, row = stride + elements, True
    made = {b.dim: b for b in out}
    return tuple(made[b.dim] for b in blocks)


def pad_rows(kernel: Kernel, buffer: str, elements: int) -> Kernel:
    """Add room for ``elements`` to each row of the allocated ``buffer``: those that lie side by side in memory.

    Before::

        kernel k(a: f32[4, 4], dst: f32[4, 4])
          alloc a_s: f32[4, 4] @shared:
            for i in 0 .. 4:
              for j in 0 .. 4:
                a_s[i, j] = a[i, j]
            for i in 0 .. 4:
              for j in 0 .. 4:
                dst[i, j] = a_s[j, i]

    After ``pad_rows("a_s", 1)``::

        kernel k(a: f32[4, 4], dst: f32[4, 4])
          alloc a_s: f32[4, 4] = 0:4:5 1:4:1 @shared:
            for i in 0 .. 4:
              for j in 0 .. 4:
                a_s[i, j] = a[i, j]
            for i in 0 .. 4:
              for j in 0 .. 4:
                dst[i, j] = a_s[j, i]
    """
    if elements < 0:
        raise ConfigError("pad", f"pad_rows: {elements} elements for each row of {buffer}; legal is 0 or more")
    return with_body(kernel, _PadRows(buffer, elements).stmt(kernel.body))
