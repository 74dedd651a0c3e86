"""The places of arrays in the memory that the threads of a group share."""

from __future__ import annotations

ALIGNMENT = 128
"""Bytes to which each array in shared memory is aligned: all banks once."""
SLOTS = 1024
"""Alignment, in bytes, of a slot that copies through tensor maps fill: the period of a swizzle."""
BARRIER = 8
"""Bytes of a barrier of a pipeline."""


def taken_bytes(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """Return the bytes that an array of ``nbytes`` takes from shared memory."""
    return -(-nbytes // alignment) * alignment


def barrier_bytes(slots: int, teams: int = 1) -> int:
    """Return the bytes that the barriers of a pipeline with ``slots`` slots take from shared memory, and those of the
    turns of several ``teams``.
    """
    return taken_bytes(BARRIER * (2 * slots + (teams if teams > 1 else 0)))
