"""Stores of the leading lanes of a vector in parts that are powers of two, without a mask.

A CPU may treat a masked store as one of all bytes of its vector. A load of the bytes behind then waits until the store
has left for the cache, so that a result to which sums are added, pixel by pixel, takes ten times as long.
"""

from __future__ import annotations

from convsmith.ir.buffer import Buffer
from convsmith.ir.intern import nodes
from convsmith.ir.stmt import Kernel, Store
from convsmith.ir.types import DType
from convsmith.ir.value import Lanes
from convsmith.ir.walk import loads_of, statements_of

__all__ = ["parts_of_store", "updated_results"]

MOST_PARTS = 2
"""Parts up to which they are as fast as a masked store of which no load waits, but for bytes, each part of which is
extracted from its vector.
"""
MOST_UPDATED = 4
"""Parts up to which they are faster than a masked store for which a load waits."""


def parts_of_store(t: DType, lanes: Lanes, updated: bool) -> list[int]:
    """Return the lanes of each part, greatest first; empty if a masked store of elements of type ``t`` is better. A
    result is ``updated`` if the kernel also reads it.
    """
    if lanes.first or lanes.active == lanes.count:
        return []
    parts = [1 << bit for bit in reversed(range(lanes.active.bit_length())) if lanes.active >> bit & 1]
    most = MOST_UPDATED if updated else 1 if t.bytes == 1 else MOST_PARTS
    return parts if len(parts) <= most else []


def updated_results(kernel: Kernel) -> list[Buffer]:
    """Return the arrays of ``kernel`` whose elements it computes from their previous contents; each of its functions
    asks again.
    """
    known, bodies = nodes(), (kernel.body, *(f.body for f in kernel.functions))
    key = (updated_results, kernel.params, *bodies)
    found: list[Buffer] | None = known.get(key)
    if found is None:
        stores = (s for x in bodies for s in statements_of(x) if isinstance(s, Store) and s.buffer in kernel.params)
        updated = (s.buffer for s in stores if any(v.buffer == s.buffer for v in loads_of(s.value)))
        found = known[key] = list(dict.fromkeys(updated))
    return found
