"""Rotate the rows of shared memory, so that the elements of a column lie in different banks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import floordiv, mod
from convsmith.ir.stmt import Kernel
from convsmith.layout.block import LayoutBlock
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.flatten import offset
from convsmith.passes.relocate import Place, relocated


def rotated_row(blocks: Iterable[LayoutBlock], elements: int) -> LayoutBlock:
    """Return the rows of a buffer of these ``blocks``; ConfigError where they are no parts of so many ``elements``."""
    nearest = min((b for b in blocks if b.size > 1), key=lambda b: b.stride, default=None)
    if nearest is None or nearest.stride != 1 or nearest.size % elements:
        found = "one element" if nearest is None else f"{nearest.size} elements {nearest.stride} apart"
        raise ConfigError(
            "swizzle", f"swizzle: parts of {elements} elements; legal are divisors of a row, which has {found}"
        )
    return nearest


def _rotation(old: Buffer, elements: int) -> Callable[[Place], Place]:
    """Return the place of an element of ``old`` in rotated rows."""
    if old.in_registers:
        raise ConfigError("swizzle", f"swizzle: {old!r} is in registers; legal are buffers with rows in memory")
    nearest = rotated_row(old.blocks, elements)
    dim, parts = nearest.dim, nearest.size // elements

    def place(index: Place) -> Place:
        turn = floordiv(offset(old, (*index[:dim], index[dim] * 0, *index[dim + 1 :])), nearest.size)
        part = mod(floordiv(index[dim], elements) + turn, parts)
        return (*index[:dim], part * elements + mod(index[dim], elements), *index[dim + 1 :])

    return place


@stages(*LOOPS)
def swizzle(kernel: Kernel, buffer: str, elements: int) -> Kernel:
    """Rotate each row of the allocated ``buffer`` by one part of ``elements`` more than the row before it.

    The memory has no gaps, and a part stays whole, so that a vector of ``elements`` is one access.

    Before::

        kernel k(a: f32[4, 4], dst: f32[4, 4])
          alloc a_s: f32[4, 4] @shared:
            for i in 0 .. 4:
              for j in 0 .. 4:
                a_s[i, j] = a[i, j]
            for i in 0 .. 4:
              for j in 0 .. 4:
                dst[i, j] = a_s[j, i]

    After ``swizzle("a_s", 2)``::

        kernel k(a: f32[4, 4], dst: f32[4, 4])
          alloc a_s: f32[4, 4] @shared:
            for i in 0 .. 4:
              for j in 0 .. 4:
                a_s[i, (i * 2 + j) % 4] = a[i, j]
            for i in 0 .. 4:
              for j in 0 .. 4:
                dst[i, j] = a_s[j, (i + j * 2) % 4]
    """
    if elements < 1:
        raise ConfigError("swizzle", f"swizzle: parts of {elements} elements; legal is at least one")
    return relocated(
        kernel, buffer,
        lambda old: (Buffer(old.name, old.dtype, old.shape, old.blocks, old.scope), _rotation(old, elements)),
    )  # fmt: skip
