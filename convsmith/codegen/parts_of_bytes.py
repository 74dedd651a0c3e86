"""Elements that share a byte: loads read whole bytes and unpack them into vectors or scalars.

The first element of a byte is in its lower half. A vector that starts at a whole byte is unpacked by shifts within
words of two bytes; any other access proceeds element by element.
"""

from __future__ import annotations

from convsmith.codegen.scalars import ScalarEmitter
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index
from convsmith.ir.types import DType

__all__ = ["load_part", "starts_at_byte", "store_part", "store_parts", "unpacked"]


def starts_at_byte(emit: ScalarEmitter, buffer: Buffer, e: Index) -> bool:
    """Return whether the element at ``e`` is certainly the first of a byte; pointers always point to whole bytes."""
    rest = emit.split_address(buffer, e)[1]
    return not (e.const % buffer.dtype.per_byte or any(c % buffer.dtype.per_byte for _, c in rest))


def unpacked(emit: ScalarEmitter, t: DType, held: str, lanes: int) -> str:
    """Return the ``lanes`` elements of 4 bits from a vector ``held`` of bytes, one byte per element."""
    half, words, all_ = lanes // 2, f"<{lanes // 2} x i16>", f"<{lanes} x i8>"
    wide = emit.put(f"zext <{half} x i8> {held} to {words}")
    upper = emit.put(f"shl {words} {wide}, splat (i16 4)")
    both = emit.put(f"or {words} {wide}, {upper}")
    parts = emit.put(f"and {words} {both}, splat (i16 {0x0F0F})")
    x = emit.put(f"bitcast {words} {parts} to {all_}")
    return x if t.kind == "uint" else _signed(emit, x, all_, "splat (i8 8)")


def store_parts(emit: ScalarEmitter, where: str, lanes: int, x: str) -> None:
    """Store a vector of ``lanes`` 4-bit elements, held in one byte each, at ``where``."""
    half, words = lanes // 2, f"<{lanes // 2} x i16>"
    pairs = emit.put(f"bitcast <{lanes} x i8> {x} to {words}")
    low = emit.put(f"and {words} {pairs}, splat (i16 15)")
    shifted = emit.put(f"lshr {words} {pairs}, splat (i16 4)")
    high = emit.put(f"and {words} {shifted}, splat (i16 240)")
    both = emit.put(f"or {words} {low}, {high}")
    held = emit.put(f"trunc {words} {both} to <{half} x i8>")
    emit.lines.append(f"  store <{half} x i8> {held}, ptr {where}, align 1")


def load_part(emit: ScalarEmitter, buffer: Buffer, e: Index) -> str:
    """Return one element of 4 bits as a byte."""
    where, shift = _place(emit, buffer, e)
    held = emit.put(f"load i8, ptr {where}, align 1")
    moved = emit.put(f"lshr i8 {held}, {shift}")
    x = emit.put(f"and i8 {moved}, 15")
    return x if buffer.dtype.kind == "uint" else _signed(emit, x, "i8", "8")


def store_part(emit: ScalarEmitter, buffer: Buffer, e: Index, x: str) -> None:
    """Store one element of 4 bits, and preserve the other element of its byte."""
    where, shift = _place(emit, buffer, e)
    held = emit.put(f"load i8, ptr {where}, align 1")
    own = emit.put(f"shl i8 15, {shift}")
    others = emit.put(f"xor i8 {own}, -1")
    kept = emit.put(f"and i8 {held}, {others}")
    part = emit.put(f"and i8 {x}, 15")
    placed = emit.put(f"shl i8 {part}, {shift}")
    both = emit.put(f"or i8 {kept}, {placed}")
    emit.lines.append(f"  store i8 {both}, ptr {where}, align 1")


def _signed(emit: ScalarEmitter, x: str, ty: str, eight: str) -> str:
    """Return numbers from 0 to 15 as the signed numbers, -8 to 7, with the same four bits."""
    raised = emit.put(f"xor {ty} {x}, {eight}")
    return emit.put(f"sub {ty} {raised}, {eight}")


def _place(emit: ScalarEmitter, buffer: Buffer, e: Index) -> tuple[str, str]:
    """Return the address of the byte that holds the element at ``e``, and the bits below the element in it."""
    if starts_at_byte(emit, buffer, e):
        return emit.address(buffer, e), "0"
    base, _, position = emit.split_address(buffer, e)
    at = emit.index(position)
    byte = emit.put(f"ashr {emit.it} {at}, 1")
    low = emit.put(f"trunc {emit.it} {at} to i8")
    odd = emit.put(f"and i8 {low}, 1")
    where = emit.put(f"getelementptr i8, ptr {base}, {emit.it} {byte}")
    return where, emit.put(f"shl i8 {odd}, 2")
