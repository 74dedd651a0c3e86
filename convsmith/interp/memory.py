"""The interpreter's memory: elements of a buffer, their initialisation, and the detection of races.

:class:`BufferMemory` is one instance of a buffer (an ``alloc`` that runs twice creates two).  :class:`Races` watches
one loop over host threads or groups: no iteration may touch an element that another iteration writes, except that
several iterations may add to an element atomically.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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

    ``owners`` are the threads that own elements of registers around loops over threads; None where there are none yet.
    """

    __slots__ = ("data", "name", "owners", "ready", "scope")

    def __init__(
        self, name: str, data: npt.NDArray[Any], ready: bytearray | None, scope: str = "global"
    ) -> None:
        self.name = name
        self.data = data
        self.ready = ready
        self.scope = scope
        self.owners: dict[int, Any] | None = None

    @classmethod
    def fresh(cls, buffer: Buffer) -> BufferMemory:
        """Return uninitialised memory for ``buffer``."""
        size = buffer.size
        return cls(buffer.name, np.zeros(size, buffer.dtype.numpy), bytearray(size), buffer.scope)


def address_digits(buffer: Buffer) -> list[tuple[int, int, int, int]]:
    """Return the digits of coordinates whose sum, each times its stride, is an element's position in the memory.

    A dim's coordinate is split over the dim's blocks: an inner block takes it modulo its size, the outermost takes the
    quotient. A digit is the dim, the divisor of its coordinate, the size that it is taken modulo, or 0, and the
    stride.
    """
    parts: list[tuple[int, int, int, int]] = []
    inner: dict[int, int] = {}
    for i in reversed(range(len(buffer.blocks))):
        dim, size, stride = buffer.blocks[i]
        below = inner.get(dim, 1)
        inner[dim] = below * size
        outermost = all(b.dim != dim for b in buffer.blocks[:i])
        parts.append((dim, below, 0 if outermost else size, stride))
    return parts


def address(buffer: Buffer) -> Callable[[Sequence[Any]], Any]:
    """Return the function that maps an element's coordinates to its position in the memory of ``buffer``."""
    parts = address_digits(buffer)

    def place(at: Sequence[Any]) -> Any:
        out = 0
        for dim, below, size, stride in parts:
            x = at[dim] // below
            out += (x % size if size else x) * stride
        return out

    return place


class Races:
    """The readers and writers of each element in one loop of a kind; ``iteration`` is the current iteration."""

    def __init__(self, var: str, kind: str = "parallel") -> None:
        self.var = var
        self.kind = kind
        self.iteration = 0
        self._readers: dict[tuple[BufferMemory, int], Any] = {}
        self._writers: dict[tuple[BufferMemory, int], int] = {}
        self._adders: dict[tuple[BufferMemory, int], Any] = {}

    def touch(self, memory: BufferMemory, places: Iterable[int], write: bool) -> str | None:
        """Record an access; return a message if it races with another iteration, otherwise None."""
        now = self.iteration
        for place in places:
            key = memory, place
            writer = self._writers.get(key, now)
            if writer != now:
                return (
                    f"iteration {now} of {self.kind} loop {self.var} {'writes' if write else 'reads'} element "
                    f"{place}, which iteration {writer} writes"
                )
            if self._adders and self._adders.get(key, now) != now:
                other = self._other(self._adders[key])
                does = "writes" if write else "reads"
                return f"iteration {now} of {self.kind} loop {self.var} {does} element {place}, which {other} adds to"
            if write:
                reader = self._readers.get(key, now)
                if reader is _SEVERAL or reader != now:
                    other = self._other(reader)
                    return f"iteration {now} of {self.kind} loop {self.var} writes element {place}, which {other} reads"
                self._writers[key] = now
            elif self._readers.setdefault(key, now) != now:
                self._readers[key] = _SEVERAL
        return None

    def add(self, memory: BufferMemory, places: Iterable[int]) -> str | None:
        """Record an atomic addition; return a message if it races with another iteration, otherwise None."""
        now = self.iteration
        for place in places:
            key = memory, place
            for others, does in ((self._writers, "writes"), (self._readers, "reads")):
                other = others.get(key, now)
                if other != now:
                    adds = f"iteration {now} of {self.kind} loop {self.var} adds to element {place}"
                    return f"{adds}, which {self._other(other)} {does}"
            if self._adders.setdefault(key, now) != now:
                self._adders[key] = _SEVERAL
        return None

    def _other(self, iteration: Any) -> str:
        return "another iteration" if iteration is _SEVERAL else f"iteration {iteration}"
