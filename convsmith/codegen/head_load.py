"""Loads of the leading lanes of a vector on machines whose masked loads read all lanes, as LLVM text."""

from __future__ import annotations

from convsmith.codegen.shuffles import ShuffleEmitter
from convsmith.ir.instruction import HeadLoad
from convsmith.ir.types import DType

__all__ = ["load_head"]


def load_head(emit: ShuffleEmitter, head: HeadLoad, t: DType, where: str, lanes: int, active: int) -> str:
    """Return the vector of ``lanes`` whose first ``active`` elements are loaded from ``where``; the remaining elements
    are zero.

    A vector that is longer than a register is loaded register by register.
    """
    most = head.bits // t.bits
    parts = []
    for start in range(0, max(lanes, most), most):
        here = min(most, active - start)
        if here <= 0:
            parts.append("zeroinitializer")
            continue
        place = emit.put(f"getelementptr {t.llvm}, ptr {where}, i64 {start}") if start else where
        parts.append(_register(emit, head, t, place, here))
    width = most
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [emit.shuffle(t, width, a, b, range(2 * width)) for a, b in pairs]
        width *= 2
    return parts[0] if width == lanes else emit.shuffle(t, width, parts[0], "poison", range(lanes))


def _register(emit: ShuffleEmitter, head: HeadLoad, t: DType, where: str, active: int) -> str:
    """Return a register with ``active`` elements, loaded from the address ``where``, followed by zeros."""
    lanes = head.bits // t.bits
    ty = emit.type(t, lanes)
    emit.declared |= dict.fromkeys(head.declare)
    last = emit.put(f"getelementptr i8, ptr {where}, i64 {active * t.bytes - 1}")
    done: list[str] = []
    for line in head.llvm:
        done.append(emit.put(line.format(*done, p=where, last=last)))
    loaded = emit.put(f"bitcast {head.type} {done[-1]} to {ty}")
    if active == lanes:
        return loaded
    mask = ", ".join(f"i1 {'true' if n < active else 'false'}" for n in range(lanes))
    return emit.put(f"select <{lanes} x i1> <{mask}>, {ty} {loaded}, {ty} zeroinitializer")
