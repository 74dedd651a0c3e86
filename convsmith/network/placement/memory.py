"""Memory of networks: one area in which values with disjoint lifetimes share bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from convsmith.runtime.arrays import ALIGNMENT

__all__ = ["ORDERS", "Life", "MemoryPlan", "alive_bytes", "lower_bound", "memory_plan", "offsets_of"]

V = TypeVar("V")


Order: TypeAlias = Callable[[int, int, int], tuple[int, ...]]
"""Returns the key of a value among others, given its bytes, first and last step."""

ORDERS: tuple[Order, ...] = (
    lambda nbytes, first, last: (-nbytes, first),
    lambda nbytes, first, last: (first - last, -nbytes),
    lambda nbytes, first, last: (-nbytes * (last - first + 1), first),
    lambda nbytes, first, last: (first, -nbytes),
    lambda nbytes, first, last: (-last, -nbytes),
)
"""Orders in which values are placed: the largest first, the longest lives, the largest products of both, the order of
steps, and its reverse."""


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
    """Return offsets for values that are alive in some steps, in the smallest area that an order of `ORDERS` leads to.
    """
    bound = lower_bound(lives.values())
    best: MemoryPlan | None = None
    for order in ORDERS:
        offsets = offsets_of(lives, order)
        ends = (offsets[name] + aligned(life.nbytes) for name, life in lives.items())
        made = MemoryPlan(offsets, max(ends, default=0), bound)
        if best is None or made.nbytes < best.nbytes:
            best = made
        if best.nbytes == bound:
            break
    assert best is not None
    return best


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


def alive_bytes(lives: Iterable[tuple[int, int, int]], steps: int) -> list[int]:
    """Return the bytes of the values that are alive in each step, each value rounded up to the alignment."""
    known = [*lives]
    return [sum(aligned(nbytes) for nbytes, first, last in known if first <= n <= last) for n in range(steps)]


def aligned(nbytes: int) -> int:
    """Return a number of bytes, rounded up to a multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def offsets_of(lives: Mapping[V, tuple[int, int, int]], order: Order = ORDERS[0]) -> dict[V, int]:
    """Return an offset in bytes for each value, given its bytes, first and last step; values that are alive in the same
    step do not overlap.

    Values are placed in an `order`, by default the largest first, each at the lowest offset where it fits.
    """
    placed: list[tuple[int, int, int, int]] = []
    offsets: dict[V, int] = {}
    for v, (nbytes, first, last) in sorted(lives.items(), key=lambda item: order(*item[1])):
        size, at = aligned(nbytes), 0
        for start, end, other_first, other_last in sorted(placed):
            if other_first <= last and first <= other_last and start < at + size and at < end:
                at = end
        placed.append((at, at + size, first, last))
        offsets[v] = at
    return offsets
