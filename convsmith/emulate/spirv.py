"""SPIR-V with instructions that every device has in the place of those of an extension.

A module is a header of five words, followed by instructions. The first word of an instruction holds its length in
words, above its opcode. Opcodes and operands are those of the specification of SPIR-V and of SPV_INTEL_split_barrier.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["instructions", "with_whole_barriers"]

_HEADER = 5
_EXTENSION, _CAPABILITY = 10, 17
_CONTROL_BARRIER, _MEMORY_BARRIER = 224, 225
ARRIVE, WAIT = 6142, 6143
"""OpControlBarrierArriveINTEL and OpControlBarrierWaitINTEL: scopes of execution and of memory, and semantics."""
_SPLIT_BARRIER = 6141
_NAME = b"SPV_INTEL_split_barrier"

Words = npt.NDArray[np.uint32]


def instructions(code: bytes) -> Iterator[tuple[int, Words]]:
    """Yield the opcode and the operands of each instruction of a module."""
    words = np.frombuffer(code, np.uint32)
    start = _HEADER
    while start < len(words):
        length = int(words[start]) >> 16
        yield int(words[start]) & 0xFFFF, words[start + 1 : start + length]
        start += length


def with_whole_barriers(code: bytes) -> bytes:
    """Return a module whose threads stop at a whole barrier in the place of a wait, for devices without split barriers.
    An arrival still orders the accesses before it.
    """
    made = [np.frombuffer(code, np.uint32)[:_HEADER]]
    for opcode, operands in instructions(code):
        if opcode == _CAPABILITY and operands[0] == _SPLIT_BARRIER:
            continue
        if opcode == _EXTENSION and operands.tobytes().rstrip(b"\0") == _NAME:
            continue
        if opcode == ARRIVE:
            opcode, operands = _MEMORY_BARRIER, operands[1:]
        elif opcode == WAIT:
            opcode = _CONTROL_BARRIER
        made += [np.array([len(operands) + 1 << 16 | opcode], np.uint32), operands]
    return b"".join(x.tobytes() for x in made)
