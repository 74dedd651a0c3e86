"""Memories of a machine: the caches that its kernels are blocked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryLevel:
    """A memory between a core's registers and the machine's memory."""

    name: str
    bytes: int
    """Bytes that one core has of it."""
    line: int
    """Bytes of a line."""
    ways: int
    """Lines of one set."""
    rate: int
    """Bytes a cycle that a core reads from it."""
    share: int
    """One part in ``share`` of the memory holds data that is used again; the rest is for data that passes through."""

    def __str__(self) -> str:
        return f"{self.name} of {self.bytes >> 10} KiB"

    @property
    def kept(self) -> int:
        """Bytes of data that stay while other data passes through."""
        return self.bytes // self.share

    @property
    def way(self) -> int:
        """Bytes of a way: lines at that distance fall into one set."""
        return self.bytes // self.ways


def core_caches(
    first: int, second: int, rates: tuple[int, int], ways: tuple[int, int] = (8, 8)
) -> tuple[MemoryLevel, ...]:
    """Return the two caches of a core, of ``first`` and ``second`` bytes, that are read at ``rates`` bytes a cycle."""
    return (
        MemoryLevel("L1", first, 64, ways[0], rates[0], share=2),
        MemoryLevel("L2", second, 64, ways[1], rates[1], share=4),
    )
