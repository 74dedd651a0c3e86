"""Loads of the leading lanes of a vector as one word, as LLVM text: where the active lanes are a word, where a single
lane is active, and on machines without masked loads of their type.

LLVM loads such lanes one by one and inserts each into the vector. If the lanes are then repeated, as factors of a dot
product are, it inserts each repetition too.
"""

from __future__ import annotations

from convsmith.codegen.shuffles import ShuffleEmitter
from convsmith.ir.types import DType
from convsmith.ir.value import Lanes

__all__ = ["fills_word", "is_word", "load_leading", "load_word"]

WORDS = (16, 32, 64)
"""Bits of the words that a register holds."""


def is_word(t: DType, lanes: Lanes, masked_bytes: int) -> bool:
    """Return whether adjacent lanes form a word, the first of them is active, and LLVM would load them one by one:
    because a single one of several narrow lanes is active, or because the type has no masked loads, which the machine
    has for elements of at least ``masked_bytes``.
    """
    has_none = not masked_bytes or t.bytes < masked_bytes
    is_single = lanes.active == 1 and t.bits <= min(WORDS)
    return (has_none or is_single) and not lanes.first and lanes.count * t.bits in WORDS


def load_word(emit: ShuffleEmitter, t: DType, where: str, lanes: int, active: int) -> str:
    """Return the vector of ``lanes`` whose first ``active`` elements are loaded from ``where``; the remaining elements
    are zero.

    The bytes are loaded in the fewest parts of 1, 2 and 4 bytes, which do not overlap.
    """
    word, nbytes = f"i{lanes * t.bits}", active * t.bytes
    total, start = "", 0
    for size in (4, 2, 1):
        if nbytes - start < size:
            continue
        place = emit.put(f"getelementptr i8, ptr {where}, i64 {start}") if start else where
        part = emit.put(f"load i{8 * size}, ptr {place}, align {t.bytes if t.bytes <= size else 1}")
        if 8 * size < lanes * t.bits:
            part = emit.put(f"zext i{8 * size} {part} to {word}")
        if start:
            part = emit.put(f"shl {word} {part}, {8 * start}")
            part = emit.put(f"or {word} {total}, {part}")
        total, start = part, start + size
    return emit.put(f"bitcast {word} {total} to {emit.type(t, lanes)}")


def fills_word(t: DType, lanes: Lanes) -> bool:
    """Return whether the active lanes are the leading ones of a vector and together a word of 32 or 64 bits."""
    return not lanes.first and lanes.active < lanes.count and lanes.active * t.bits in WORDS[1:]


def load_leading(emit: ShuffleEmitter, t: DType, where: str, lanes: int, active: int) -> str:
    """Return the vector of ``lanes`` whose first ``active`` elements are loaded from ``where`` without a mask; the
    remaining elements are zero.
    """
    loaded = emit.put(f"load {emit.type(t, active)}, ptr {where}, align {t.bytes}")
    return emit.shuffle(t, active, loaded, "zeroinitializer", [*range(active), *[active] * (lanes - active)])
