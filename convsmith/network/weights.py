"""Packed weights of one or several programs: equal contents are held once."""

from __future__ import annotations

import mmap

import numpy as np

from convsmith.network.memory import aligned
from convsmith.runtime.arrays import Array, aligned_empty

__all__ = ["PackedWeights"]

_ROOM = 4
"""Ratio of the bytes of a shared area to those of the first program in it; pages that nothing writes take no memory."""


class PackedWeights:
    """An area of packed weights. A `shared` one has room behind the weights of the first program: those of later
    programs follow, and where they need more, the area moves, and earlier programs keep their memory.
    """

    def __init__(self, shared: bool = False) -> None:
        self._shared = shared
        self._offsets: dict[bytes, int] = {}
        self._size, self._written = 0, 0
        self._area: Array = np.zeros(0, np.uint8)

    def stored(self, content: bytes) -> int:
        """Return the offset of `content`, which is added if it is new."""
        if content not in self._offsets:
            self._offsets[content] = self._size
            self._size += aligned(len(content))
        return self._offsets[content]

    def array(self) -> Array:
        """Return all contents so far, each at its offset, with zeros between them."""
        if self._size > self._area.size:
            self._area, self._written = self._memory(), 0
        for content, offset in self._offsets.items():
            if offset >= self._written:
                self._area[offset : offset + len(content)] = np.frombuffer(content, np.uint8)
        self._written = self._size
        return self._area[: self._size]

    def _memory(self) -> Array:
        """Return a new area of zeros."""
        if self._shared:
            return np.frombuffer(mmap.mmap(-1, _ROOM * self._size), np.uint8)
        made = aligned_empty(self._size)
        made[:] = 0
        return made
