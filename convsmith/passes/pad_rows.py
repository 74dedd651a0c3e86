"""Lengthen the rows of shared memory, so that the elements of a column lie in different banks."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index
from convsmith.ir.stmt import Kernel
from convsmith.layout.block import LayoutBlock
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.relocate import relocated


def _same(index: tuple[Index, ...]) -> tuple[Index, ...]:
    return index


def with_long_rows(old: Buffer, elements: int) -> Buffer:
    """Return the buffer ``old`` with room for ``elements`` more in each row."""
    if old.in_registers:
        raise ConfigError("scope", f"pad_rows: {old} is in registers; legal are buffers in memory, which have rows")
    return Buffer(old.name, old.dtype, old.shape, _padded(old.blocks, elements), old.scope)


def _padded(blocks: tuple[LayoutBlock, ...], elements: int) -> tuple[LayoutBlock, ...]:
    """Return dense blocks, of which the innermost that is longer than 1 has room for ``elements`` more."""
    out: list[LayoutBlock] = []
    stride, row = 1, False
    for b in sorted(blocks, key=lambda b: b.stride):
        out.append(LayoutBlock(b.dim, b.size, stride))
        stride *= b.size
        if b.size > 1 and not row:
            stride, row = stride + elements, True
    made = {b.dim: b for b in out}
    return tuple(made[b.dim] for b in blocks)


@stages(*LOOPS)
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
    return relocated(kernel, buffer, lambda old: (with_long_rows(old, elements), _same))
