"""Packed weights of one or several programs: equal contents are held once."""

from __future__ import annotations

import mmap
import zlib

import numpy as np

from convsmith.network.placement.memory import aligned
from convsmith.runtime.all_cpus import on_all_cpus
from convsmith.runtime.arrays import Array

__all__ = ["PackedWeights"]

_ROOM = 4
"""Ratio of the bytes of a shared area to those of the first program in it; pages that nothing writes take no memory."""

_LOOKED = 1 << 16
"""Bytes at the start of contents whose checksums are compared before all bytes are."""


class PackedWeights:
    """An area of packed weights. A `shared` one has room behind the weights of the first program: those of later
    programs follow, and where they need more, the area moves, and earlier programs keep their memory.
    """

    def __init__(self, shared: bool = False) -> None:
        self._shared = shared
        self._places: list[tuple[Array, int]] = []
        self._alike: dict[tuple[int, int], list[int]] = {}
        self._size, self._written = 0, 0
        self._area: Array = np.zeros(0, np.uint8)

    def stored(self, content: Array) -> int:
        """Return the offset of `content`, contiguous memory that nobody writes, which is added if it is new."""
        memory = content.reshape(-1).view(np.uint8)
        alike = self._alike.setdefault((memory.size, zlib.adler32(memory[:_LOOKED].data)), [])
        for n in alike:
            if np.array_equal(self._places[n][0], memory):
                return self._places[n][1]
        alike.append(len(self._places))
        self._places.append((memory, self._size))
        self._size += aligned(memory.size)
        return self._places[-1][1]

    def array(self) -> Array:
        """Return all contents so far, each at its offset, with zeros between them."""
        if self._size > self._area.size:
            self._area, self._written = self._memory(), 0
        on_all_cpus(self._write, [place for place in self._places if place[1] >= self._written])
        self._places = [(self._area[offset : offset + content.size], offset) for content, offset in self._places]
        self._written = self._size
        return self._area[: self._size]

    def _write(self, place: tuple[Array, int]) -> None:
        content, offset = place
        end = offset + content.size
        self._area[offset:end] = content
        self._area[end : offset + aligned(content.size)] = 0

    def _memory(self) -> Array:
        """Return a new area, whose pages nothing has written.

        It has pages of the usual size: numpy asks for huge ones, for which the system may move memory for 0.2 s, and
        networks are as fast without them.
        """
        size = self._size * (_ROOM if self._shared else 1)
        return np.frombuffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
