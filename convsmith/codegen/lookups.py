"""Lookups in tables of bytes: by words of registers where the machine picks them, element by element elsewhere.

A register of bytes becomes two of words, one of the even and one of the odd bytes. The upper seven bits of a byte are
the number of a word of the table, which has 128 words in four registers, and the last bit chooses a byte of that word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from convsmith.ir.types import U8
from convsmith.ir.value import Load, Lookup

if TYPE_CHECKING:
    from convsmith.codegen.values import ValueEmitter

__all__ = ["looked_up"]

_BYTES, _WORDS = 64, 32
"""Bytes and words of a register of a machine that picks words."""


def looked_up(emit: ValueEmitter, v: Lookup, lanes: int) -> str:
    """Return the operand of a lookup with ``lanes`` lanes (0: a scalar)."""
    t, a = v.first.buffer.dtype, emit.value(v.a, lanes)
    if not lanes:
        return _element(emit, v.first, a)
    if not emit.word_lookup or t.bits != 8:
        found = "poison"
        for n in range(lanes):
            place = emit.put(f"extractelement {emit.type(U8, lanes)} {a}, i64 {n}")
            one = _element(emit, v.first, place)
            found = emit.put(f"insertelement {emit.type(t, lanes)} {found}, {t.llvm} {one}, i64 {n}")
        return found
    if lanes == _BYTES:
        return _register(emit, v.first, a)
    found, size = "", 0
    for start in range(0, lanes, _BYTES):
        own = [min(start + n, lanes - 1) for n in range(_BYTES)]
        part = _register(emit, v.first, emit.shuffle(U8, lanes, a, "poison", own))
        count = min(_BYTES, lanes - start)
        part = emit.shuffle(t, _BYTES, part, "poison", [min(n, _BYTES - 1) for n in range(max(size, count))])
        more = [max(size, count) + n for n in range(count)]
        found = emit.shuffle(t, size, found, part, [*range(size), *more]) if size else part
        size += count
    return found


def _element(emit: ValueEmitter, first: Load, place: str) -> str:
    """Return the element of a table whose number is a byte."""
    t = first.buffer.dtype
    wide = emit.put(f"zext i8 {place} to i64")
    at = emit.put(f"getelementptr {t.llvm}, ptr {emit.address(first.buffer, first.index[0])}, i64 {wide}")
    return emit.put(f"load {t.llvm}, ptr {at}, align {t.bytes}")


def _register(emit: ValueEmitter, first: Load, a: str) -> str:
    """Return a register of bytes of a table, whose numbers are the bytes of the register ``a``."""
    words, wide = f"<{_WORDS} x i16>", f"<{_BYTES} x i8>"
    start = emit.address(first.buffer, first.index[0])
    table = []
    for n in range(4):
        at = emit.put(f"getelementptr i8, ptr {start}, i64 {n * _BYTES}")
        table.append(emit.put(f"load {words}, ptr {at}, align 1"))
    name = f"@{emit.word_lookup}"
    emit.declared[f"declare {words} {name}({words}, {words}, {words})"] = None
    both = emit.put(f"bitcast {wide} {a} to {words}")

    def operation(what: str, x: str, y: str | int) -> str:
        operand = _all(y) if isinstance(y, int) else y
        return emit.put(f"{what} {words} {x}, {operand}")

    def picked(x: str) -> str:
        """Return the bytes of the table whose numbers are ``x``, words with other upper bytes, in words with others."""
        number = operation("lshr", x, 1)
        low, high = (
            emit.put(f"call {words} {name}({words} {one}, {words} {number}, {words} {two})")
            for one, two in (table[:2], table[2:])
        )
        is_high = emit.put(f"icmp ne {words} {operation('and', x, 128)}, zeroinitializer")
        word = emit.put(f"select <{_WORDS} x i1> {is_high}, {words} {high}, {words} {low}")
        return operation("lshr", word, operation("shl", operation("and", x, 1), 3))

    even, odd = picked(both), picked(operation("lshr", both, 8))
    whole = operation("or", operation("and", even, 255), operation("shl", odd, 8))
    return emit.put(f"bitcast {words} {whole} to {wide}")


def _all(number: int) -> str:
    return "<" + ", ".join([f"i16 {number}"] * _WORDS) + ">"
