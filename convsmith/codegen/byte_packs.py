"""Conversions to bytes on devices with an instruction that saturates and packs two numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convsmith.ir.dialect import DialectCall
from convsmith.ir.types import DType

if TYPE_CHECKING:
    from convsmith.codegen.device_text import ThreadEmitter


def packed_bytes(emit: ThreadEmitter, call: DialectCall, x: str, a: DType, b: DType, lanes: int) -> str:
    """Return numbers of type ``a`` as bytes of type ``b``, four of them in a word."""
    ones, words = elements(emit, x, a, lanes), []
    ones += [emit.const(a, 0, 0)] * (len(ones) % 2)
    for first in range(0, len(ones), 4):
        word = "0"
        for n in range(min(first + 4, len(ones)) - 2, first - 1, -2):
            word = emit.spell(call, high=ones[n + 1], low=ones[n], rest=word)
        words.append(word)
    if not lanes:
        return emit.put(f"trunc i32 {words[0]} to {b.llvm}")
    if len(ones) == 2:
        pair = emit.put(f"trunc i32 {words[0]} to i16")
        count, found = 2, emit.put(f"bitcast i16 {pair} to {emit.type(b, 2)}")
    else:
        count, vector = 4 * len(words), joined(emit, "i32", words)
        found = emit.put(f"bitcast {emit.vector('i32', len(words))} {vector} to {emit.type(b, count)}")
    return found if count == lanes else emit.shuffle(b, count, found, "poison", list(range(lanes)))


def elements(emit: ThreadEmitter, x: str, t: DType, lanes: int) -> list[str]:
    """Return the elements of a vector, or a scalar."""
    return [emit.put(f"extractelement {emit.type(t, lanes)} {x}, i64 {n}") for n in range(lanes)] if lanes else [x]


def joined(emit: ThreadEmitter, element: str, ones: list[str]) -> str:
    """Return a vector of elements of an LLVM type."""
    out = "poison"
    for n, x in enumerate(ones):
        out = emit.put(f"insertelement {emit.vector(element, len(ones))} {out}, {element} {x}, i64 {n}")
    return out
