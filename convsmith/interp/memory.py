"""The interpreter's memory: elements of a buffer, their initialisation, and the detection of races.

:class:`BufferMemory` is one instance of a buffer (an ``alloc`` that runs twice creates two).  :class:`Races` watches
one parallel loop: no iteration may touch an element that another iteration writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from convsmith.diag.errors import InternalError
from convsmith.ir.buffer import Buffer

_SEVERAL = object()


class InterpError(InternalError):
    """The IR does something illegal.  The message names the buffer, the index and the values of the enclosing loops."""

    default_code = "interp"


class BufferMemory:
    """The elements ``data`` in memory order; ``ready`` flags initialised elements and is None if all are initialised.
    """

    __slots__ = ("data", "name", "ready")

    def __init__(self, name: str, data: npt.NDArray[Any], ready: bytearray | None) -> None:
        self.name = name
        self.data = data
        self.ready = ready

    @classmethod
    def fresh(cls, buffer: Buffer) -> BufferMemory:
        """Return uninitialised memory for ``buffer``."""
        size = buffer.size
        return cls(buffer.name, np.zeros(size, buffer.dtype.numpy), bytearray(size))


def address(buffer: Buffer) -> Callable[[Iterable[int]], int]:
    """Return the function that maps an element's coordinates to its position in the memory of ``buffer``.

    A dim's coordinate is split over the dim's blocks: an inner block takes it modulo its size, the outermost takes the
    quotient.
    """
    parts: list[tuple[int, int, int, int]] = []
    inner: dict[int, int] = {}
    for i in reversed(range(len(buffer.blocks))):
        dim, size, stride = buffer.blocks[i]
        below = inner.get(dim, 1)
        inner[dim] = below * size
        outermost = all(b.dim != dim for b in buffer.blocks[:i])
        parts.append((dim, below, 0 if outermost else size, stride))

    def place(coords: Iterable[int]) -> int:
        at = tuple(coords)
        out = 0
        for dim, below, size, stride in parts:
            x = at[dim] // below
            out += (x % size if size else x) * stride
        return out

    return place


class Races:
    """The readers and writers of each element in one parallel loop; ``iteration`` is the current iteration."""

    def __init__(self, var: str) -> None:
        self.var = var
        self.iteration = 0
        self._readers: dict[tuple[BufferMemory, int], Any] = {}
        self._writers: dict[tuple[BufferMemory, int], int] = {}

    def touch(self, memory: BufferMemory, places: Iterable[int], write: bool) -> str | None:
        """Record an access; return a message if it races with another iteration, otherwise None."""
        now = self.iteration
        for place in places:
            key = memory, place
            writer = self._writers.get(key, now)
            if writer != now:
                return (
                    f"iteration {now} of parallel loop {self.var} {'writes' if write else 'reads'} element "
                    f"{place}, which iteration {writer} writes"
                )
            if write:
                reader = self._readers.get(key, now)
                if reader is _SEVERAL or reader != now:
                    other = "another iteration" if reader is _SEVERAL else f"iteration {reader}"
                    return f"iteration {now} of parallel loop {self.var} writes element {place}, which {other} reads"
                self._writers[key] = now
            elif self._readers.setdefault(key, now) != now:
                self._readers[key] = _SEVERAL
        return None
