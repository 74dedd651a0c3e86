"""The places of arrays in the memory that the threads of a group share."""

from __future__ import annotations

ALIGNMENT = 128
"""Bytes to which each array in shared memory is aligned: all banks once."""
SLOTS = 1024
"""Bytes that divide the place of a slot that copies through tensor maps fill: those of a swizzle's period."""
BARRIER = 8
"""Bytes of a barrier of a pipeline."""


def taken_bytes(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """Return the bytes that an array of ``nbytes`` takes from shared memory."""
    return -(-nbytes // alignment) * alignment


def barrier_bytes(slots: int) -> int:
    """Return the bytes that the barriers of a pipeline of so many ``slots`` take from shared memory."""
    return taken_bytes(BARRIER * 2 * slots)
