"""Memory of networks: one area in which values with disjoint lifetimes share bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from convsmith.runtime.arrays import ALIGNMENT

__all__ = ["Life", "MemoryPlan", "lower_bound", "memory_plan", "offsets_of"]

V = TypeVar("V")


class Life(NamedTuple):
    """Bytes of a value, and the first and the last step in which it is alive."""

    nbytes: int
    first: int
    last: int


class MemoryPlan(NamedTuple):
    """The offset of each value in an area of `nbytes` bytes; in one step, values of `bound` bytes are alive."""

    offsets: Mapping[str, int]
    nbytes: int
    bound: int


def memory_plan(lives: Mapping[str, Life]) -> MemoryPlan:
    """Return offsets for values that are alive in some steps, in an area that is as small as this method finds."""
    offsets = offsets_of(lives)
    ends = (offsets[name] + aligned(life.nbytes) for name, life in lives.items())
    return MemoryPlan(offsets, max(ends, default=0), lower_bound(lives.values()))


def lower_bound(lives: Iterable[tuple[int, int, int]]) -> int:
    """Return the largest number of bytes, each value rounded up to the alignment, that are alive in one step: no area
    is smaller.
    """
    changes: dict[int, int] = {}
    for nbytes, first, last in lives:
        changes[first] = changes.get(first, 0) + aligned(nbytes)
        changes[last + 1] = changes.get(last + 1, 0) - aligned(nbytes)
    alive, most = 0, 0
    for step in sorted(changes):
        alive += changes[step]
        most = max(most, alive)
    return most


def aligned(nbytes: int) -> int:
    """Return a number of bytes, rounded up to a multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def offsets_of(lives: Mapping[V, tuple[int, int, int]]) -> dict[V, int]:
    """Return an offset in bytes for each value, given its bytes, first and last step; values that are alive in the same
    step do not overlap.

    The largest values are placed first, each at the lowest offset where it fits.
    """
    placed: list[tuple[int, int, int, int]] = []
    offsets: dict[V, int] = {}
    for v, (nbytes, first, last) in sorted(lives.items(), key=lambda item: (-item[1][0], item[1][1])):
        size, at = aligned(nbytes), 0
        for start, end, other_first, other_last in sorted(placed):
            if other_first <= last and first <= other_last and start < at + size and at < end:
                at = end
        placed.append((at, at + size, first, last))
        offsets[v] = at
    return offsets
