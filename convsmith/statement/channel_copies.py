"""Copies of pixels that make a group of channels contiguous, for layouts in which channels are strided.

Transforms work on vectors of channels. In a layout whose pixels are contiguous, a group of channels of a block is
copied on the way in or out; both copies transpose tiles of pixels by channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index, minimum
from convsmith.ir.stmt import For, Stmt
from convsmith.ir.types import DType
from convsmith.statement.statement import View


def has_vectors_of_channels(view: View, lanes: int) -> bool:
    """Return whether ``view`` has contiguous runs of ``lanes`` channels, or of all channels if they are fewer."""
    channels = view.layout.shape[1]
    return any(b.dim == 1 and b.stride == 1 and b.size >= min(lanes, channels) for b in view.layout.blocks)


@record(frozen=True)
class ChannelCopy:
    """The copy of a group of channels of a block's pixels; the dims of ``buffer`` are the axes, then the channels.

    If it ``reads``, it copies contiguous pixels into ``buffer``, otherwise out of it. Rows that ``are_whole`` are
    contiguous with each other. Names of its loops begin with ``name``.
    """

    name: str
    buffer: Buffer
    reads: bool
    are_whole: bool

    @staticmethod
    def of(
        name: str, type_: DType, extents: Sequence[int], width: int, reads: bool, are_whole: bool
    ) -> ChannelCopy:  # fmt: skip
        """Return the copy of ``extents`` pixels along the axes and of groups of ``width`` channels."""
        return ChannelCopy(name, make_buffer(f"{name}_c", type_, (*extents, width), "cache"), reads, are_whole)

    @property
    def row(self) -> int:
        """Pixels of a row."""
        return self.buffer.shape[-2]

    @property
    def width(self) -> int:
        """Channels of a group."""
        return self.buffer.shape[-1]

    @property
    def pixels(self) -> str:
        """Name of the loop over vectors of pixels of a row."""
        return f"{self.name}.v"

    @property
    def pixel(self) -> str:
        """Name of the loop over the pixels of a vector."""
        return f"{self.name}.x"

    @property
    def channel(self) -> str:
        """Name of the loop over the channels of the group."""
        return f"{self.name}.c"

    @property
    def loops(self) -> tuple[str, str]:
        """Names of the two loops of a tile, outermost first: the inner loop writes contiguous elements."""
        return (self.pixel, self.channel) if self.reads else (self.channel, self.pixel)

    def nest(
        self, there: Sequence[Index], channels: Index, move: Callable[[Sequence[Index], Index], Stmt]
    ) -> Stmt:
        """Return the nest that runs ``move`` for each pixel of the extents ``there`` and each of ``channels``.

        The innermost loop writes contiguous elements.
        """
        *rows, row = there
        c, v, x = Var(self.channel), Var(self.pixels), Var(self.pixel)
        pixel = v * self.width + x
        pixels = [pixel]
        if self.are_whole and rows and rows[-1].is_const and row.is_const:
            pixels = [pixel // row.const, pixel % row.const]
            row = rows.pop() * row.const
        most = prod(self.buffer.shape[len(rows) : -1])
        around = [Var(f"{self.name}.p{n}") for n in range(len(rows))]
        of_pixels = (x, minimum(as_index(self.width), row - v * self.width))
        inner = [of_pixels, (c, channels)] if self.reads else [(c, channels), of_pixels]
        body = move((*around, *pixels), c)
        for var, size in reversed([*zip(around, rows), (v, as_index(-(-most // self.width))), *inner]):
            body = For(var, as_index(0), size, body)
        return body
