"""Buffers: named arrays of one data type in one memory scope.

A buffer has a logical ``shape`` and ``blocks``, which determine the offset of an element: each block takes ``size``
positions of one dim, ``stride`` elements apart.  The blocks of a dim are listed from the outermost to the innermost;
the innermost takes the coordinate modulo its size, as in oneDNN's tag ``4n2c7h7w32n32c``.
"""

from __future__ import annotations

from dataclasses import dataclass

from convsmith.ir.types import DType
from convsmith.layout.block import LayoutBlock

UNKNOWN = 1 << 40
"""Extent, in elements, of a dim whose size is known only at the call; such a dim is outermost in memory."""

SCOPES = ("global", "cache", "shared", "register", "fragment")


@dataclass(frozen=True, eq=False, slots=True)
class Buffer:
    """A named array; two buffers are equal only if they are the same object.

    ``scope`` is ``global`` (an argument), ``cache`` (memory private to the kernel), ``shared`` (memory that the threads
    of a group share), ``register``, or ``fragment`` (matrix registers that hold the buffer's last two dims).
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    blocks: tuple[LayoutBlock, ...]
    scope: str = "global"

    @property
    def size(self) -> int:
        """Number of elements from the first to the last in memory, padding included."""
        if any(b.size == 0 for b in self.blocks):
            return 0
        return 1 + sum((b.size - 1) * b.stride for b in self.blocks)

    @property
    def nbytes(self) -> int:
        """Bytes of these elements."""
        return self.dtype.bytes_of(self.size)

    @property
    def in_registers(self) -> bool:
        """Whether the elements are held in registers and have no address."""
        return self.scope in ("register", "fragment")

    @property
    def flat(self) -> bool:
        """Whether the buffer has one dim without gaps, so that an index is an offset."""
        return len(self.shape) == 1 and self.blocks == (LayoutBlock(0, self.shape[0], 1),)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Buffer({self.name}: {self.dtype.name}{list(self.shape)} @{self.scope})"


def dense(shape: tuple[int, ...]) -> tuple[LayoutBlock, ...]:
    """Return the blocks of a row-major array of ``shape``, one per dim."""
    out, stride = [], 1
    for dim in reversed(range(len(shape))):
        out.append(LayoutBlock(dim, shape[dim], stride))
        stride *= shape[dim]
    return tuple(reversed(out))


def make_buffer(name: str, dtype: DType, shape: tuple[int, ...], scope: str = "global") -> Buffer:
    """Return a row-major buffer."""
    return Buffer(name, dtype, tuple(shape), dense(tuple(shape)), scope)
