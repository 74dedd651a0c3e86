"""Layouts that `set_layout` can give to a buffer: blocks as dims of their own, longer rows, and rotated rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod
from typing import Protocol

from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import floordiv, mod
from convsmith.layout.block import LayoutBlock
from convsmith.passes.flatten import offset
from convsmith.passes.relocate import Place


class BufferLayout(Protocol):
    """A layout, which determines the places of a buffer's elements; ``in_place`` if no element moves in memory."""

    in_place: bool

    def of(self, old: Buffer) -> tuple[Buffer, Callable[[Place], Place]]:
        """Return the buffer that replaces ``old``, and the function from an index of ``old`` to an index of the new
        buffer.
        """


@record(frozen=True)
class BlockDims:
    """One dim for each block: ``digits`` are pairs of a dim and a size, and the first digit of a dim is outermost.

    The memory does not change. If loops are tiled like the blocks of the layout, each digit is the variable of one
    loop, and the footprint of a tile consists of whole blocks.
    """

    digits: tuple[tuple[int, int], ...]
    in_place = True

    def __str__(self) -> str:
        return f"blocks {' '.join(f'{dim}:{size}' for dim, size in self.digits)}"

    def of(self, old: Buffer) -> tuple[Buffer, Callable[[Place], Place]]:
        extents = tuple(prod(size for d, size in self.digits if d == dim) for dim in range(len(old.shape)))
        if extents != old.shape:
            raise ConfigError(
                "block-dims", f"set_layout: blocks {list(self.digits)} of {old.name} hold {list(extents)} elements; "
                f"legal are those that hold {list(old.shape)}",
            )  # fmt: skip
        own = tuple((b.dim, b.size) for b in old.blocks)
        blocks = []
        for n, (dim, size) in enumerate(self.digits):
            weight = _weight(self.digits, n)
            held = [
                b.stride * (weight // step)
                for m, b in enumerate(old.blocks)
                for step in [_weight(own, m)]
                if b.dim == dim and weight % step == 0 and step * b.size % (weight * size) == 0
            ]
            if not held:
                raise ConfigError(
                    "block-dims", f"set_layout: {size} blocks of {weight} along dim {dim} of {old.name} are no part of "
                    f"one block of its layout {list(own)}",
                )  # fmt: skip
            blocks.append(LayoutBlock(n, size, held[0]))
        by_stride = sorted(blocks, key=lambda b: (-b.stride, b.dim))
        return replace(old, shape=tuple(size for _, size in self.digits), blocks=tuple(by_stride)), self._place

    def _place(self, index: Place) -> Place:
        """Return the digits of the coordinates ``index``."""
        out = []
        for n, (dim, size) in enumerate(self.digits):
            digit = floordiv(index[dim], _weight(self.digits, n))
            out.append(mod(digit, size) if any(d == dim for d, _ in self.digits[:n]) else digit)
        return tuple(out)


def _weight(digits: tuple[tuple[int, int], ...], n: int) -> int:
    """Return the distance of two coordinates whose digits differ by one in digit ``n``."""
    return prod(size for dim, size in digits[n + 1 :] if dim == digits[n][0])


@record(frozen=True)
class RowPanels:
    """Rows along the last dim in panels of ``size`` elements: within an iteration of the first dim, all rows of a panel
    precede those of the next one. The panels are the second dim.
    """

    size: int
    in_place = False

    def __str__(self) -> str:
        return f"panels of {self.size}"

    def of(self, old: Buffer) -> tuple[Buffer, Callable[[Place], Place]]:
        first, *others, row = old.shape
        if row % self.size:
            raise ConfigError("panels", f"set_layout: panels of {self.size}; legal are divisors of the {row} of a row")
        new = make_buffer(old.name, old.dtype, (first, row // self.size, *others, self.size), old.scope)

        def place(index: Place) -> Place:
            first, *others, last = index
            return (first, floordiv(last, self.size), *others, mod(last, self.size))

        return new, place


@record(frozen=True)
class LongRows:
    """Rows (runs of contiguous elements) with room for ``elements`` more each. A row has at least as many elements as
    that: runs of a dim of fewer are joined along the next dim.

    The elements of a column of shared memory are then in different banks.
    """

    elements: int
    in_place = False

    def __str__(self) -> str:
        return f"rows +{self.elements}"

    def of(self, old: Buffer) -> tuple[Buffer, Callable[[Place], Place]]:
        if self.elements < 0:
            raise ConfigError("pad", f"set_layout: {self.elements} elements for each row of {old}; legal is 0 or more")
        _require_rows(old)
        return replace(old, blocks=_padded(old.blocks, self.elements)), lambda index: index


def _require_rows(old: Buffer) -> None:
    """Raise ConfigError if ``old`` has no rows in memory."""
    if old.in_registers:
        raise ConfigError("scope", f"set_layout: {old} is in registers; legal are buffers in memory, which have rows")


def _padded(blocks: tuple[LayoutBlock, ...], elements: int) -> tuple[LayoutBlock, ...]:
    """Return dense blocks; the innermost blocks that have at least ``elements`` have room for as many more."""
    out: list[LayoutBlock] = []
    stride, row = 1, False
    for b in sorted(blocks, key=lambda b: b.stride):
        out.append(LayoutBlock(b.dim, b.size, stride))
        stride *= b.size
        if stride > 1 and stride >= elements and not row:
            stride, row = stride + elements, True
    made = {b.dim: b for b in out}
    return tuple(made[b.dim] for b in blocks)


@record(frozen=True)
class RotatedRows:
    """Rows, each of which is rotated by one part of ``elements`` more than the row before it.

    The elements of a column of shared memory are then in different banks. The memory has no gaps, and a part is not
    divided, so that a vector of ``elements`` is one access.
    """

    elements: int
    in_place = False

    def __str__(self) -> str:
        return f"rows rotated by {self.elements}"

    def row(self, blocks: Iterable[LayoutBlock]) -> LayoutBlock:
        """Return the rows of a buffer of these ``blocks``; ConfigError unless they are a whole number of parts."""
        nearest = min((b for b in blocks if b.size > 1), key=lambda b: b.stride, default=None)
        if self.elements < 1 or nearest is None or nearest.stride != 1 or nearest.size % self.elements:
            found = "one element" if nearest is None else f"{nearest.size} elements {nearest.stride} apart"
            raise ConfigError(
                "swizzle", f"set_layout: parts of {self.elements} elements; legal are divisors of a row, which has "
                f"{found}",
            )  # fmt: skip
        return nearest

    def of(self, old: Buffer) -> tuple[Buffer, Callable[[Place], Place]]:
        _require_rows(old)
        nearest, elements = self.row(old.blocks), self.elements
        dim, parts = nearest.dim, nearest.size // elements

        def place(index: Place) -> Place:
            turn = floordiv(offset(old, (*index[:dim], index[dim] * 0, *index[dim + 1 :])), nearest.size)
            part = mod(floordiv(index[dim], elements) + turn, parts)
            return (*index[:dim], part * elements + mod(index[dim], elements), *index[dim + 1 :])

        return replace(old), place
