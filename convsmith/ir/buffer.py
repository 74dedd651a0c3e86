"""Buffers: named arrays of one data type in one memory scope.

A buffer has a logical ``shape`` and ``blocks`` that say where an element lies: each block cuts ``size`` steps
off one dim, ``stride`` elements apart.  The blocks of a dim are listed from the outermost to the innermost, and
the innermost takes the coordinate modulo its size (oneDNN's ``4n2c7h7w32n32c`` is such a list).
"""

from __future__ import annotations

from dataclasses import dataclass

from convsmith.ir.types import DType
from convsmith.layout.block import LayoutBlock

UNKNOWN = 1 << 40
"""The extent of a dim, the outermost in memory, that is known at the call only."""

SCOPES = ("global", "cache", "register", "fragment")


@dataclass(frozen=True, eq=False, slots=True)
class Buffer:
    """A named array; two buffers are the same only when they are the same object.

    ``scope``: ``global`` (an argument), ``cache`` (memory private to the kernel), ``register``, or ``fragment``
    (registers that hold matrices of several rows: the buffer's last two dims).
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    blocks: tuple[LayoutBlock, ...]
    scope: str = "global"

    @property
    def size(self) -> int:
        """Elements of memory from the first to the last, lanes of padding included."""
        if any(b.size == 0 for b in self.blocks):
            return 0
        return 1 + sum((b.size - 1) * b.stride for b in self.blocks)

    @property
    def in_registers(self) -> bool:
        """Whether the elements have no address."""
        return self.scope in ("register", "fragment")

    @property
    def flat(self) -> bool:
        """Whether the buffer is already addressed by one offset."""
        return len(self.shape) == 1 and self.blocks == (LayoutBlock(0, self.shape[0], 1),)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Buffer({self.name}: {self.dtype.name}{list(self.shape)} @{self.scope})"


def dense(shape: tuple[int, ...]) -> tuple[LayoutBlock, ...]:
    """Blocks of a row-major array of that shape, one a dim."""
    out, stride = [], 1
    for dim in reversed(range(len(shape))):
        out.append(LayoutBlock(dim, shape[dim], stride))
        stride *= shape[dim]
    return tuple(reversed(out))


def make_buffer(name: str, dtype: DType, shape: tuple[int, ...], scope: str = "global") -> Buffer:
    """A row-major buffer."""
    return Buffer(name, dtype, tuple(shape), dense(tuple(shape)), scope)
