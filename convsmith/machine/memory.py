"""Memories of a machine: the caches that its kernels are blocked for."""

from __future__ import annotations

from math import gcd

from convsmith.diag.record import record


@record(frozen=True)
class MemoryLevel:
    """A cache between a core's registers and main memory."""

    name: str
    bytes: int
    """Bytes available to one core."""
    line: int
    """Bytes of a cache line."""
    ways: int
    """Cache lines per set."""
    rate: int
    """Bytes per cycle that a core loads from it."""
    share: int
    """Reciprocal of the fraction that holds reused data; streaming data takes the remainder."""

    def __str__(self) -> str:
        return f"{self.name} of {self.bytes >> 10} KiB"

    @property
    def kept(self) -> int:
        """Bytes of reused data that survive while other data streams through."""
        return self.bytes // self.share

    @property
    def way(self) -> int:
        """Bytes of a way: addresses at this distance fall into the same set."""
        return self.bytes // self.ways

    def lines_kept(self, apart: int, added_ways: int) -> int:
        """Return how many lines that are ``apart`` bytes from each other its sets keep, with ``added_ways`` each."""
        return self.way // gcd(apart, self.way) * (self.ways + added_ways)


def core_caches(
    first: int, second: int, rates: tuple[int, int], ways: tuple[int, int] = (8, 8)
) -> tuple[MemoryLevel, ...]:
    """Return the two caches of a core, of ``first`` and ``second`` bytes, with read ``rates`` in bytes per cycle."""
    return (
        MemoryLevel("L1", first, 64, ways[0], rates[0], share=2),
        MemoryLevel("L2", second, 64, ways[1], rates[1], share=4),
    )
