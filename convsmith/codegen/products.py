"""The upper half of s32 products as LLVM text, rounded and saturated.

In vectors, even and odd lanes are multiplied separately, as 64-bit words: instruction sets have that product, and the
words need no moves between lanes.
"""

from __future__ import annotations

from convsmith.codegen.casts import CastEmitter
from convsmith.ir.types import S32

LEAST = -(2**31)


def high_product(emit: CastEmitter, a: str, b: str, lanes: int, saturates: bool) -> str:
    """Return a * b / 2**31 rounded to nearest, ties up; without ``saturates``, a and b must not both be -2**31."""
    whole = _in_words(emit, a, b, lanes) if lanes and lanes % 2 == 0 else _widened(emit, a, b, lanes)
    if not saturates:
        return whole
    over = emit.compare("icmp eq", S32, lanes, whole, emit.const(S32, LEAST, lanes))
    return emit.choose(over, S32, lanes, emit.const(S32, -LEAST - 1, lanes), whole)


def _in_words(emit: CastEmitter, a: str, b: str, lanes: int) -> str:
    narrow, wide = emit.type(S32, lanes), emit.vector("i64", lanes // 2)

    def each(op: str, x: str, n: int) -> str:
        return emit.put(f"{op} {wide} {x}, splat (i64 {n})")

    words = [emit.put(f"bitcast {narrow} {x} to {wide}") for x in (a, b)]
    even = [each("ashr", each("shl", x, 32), 32) for x in words]
    odd = [each("ashr", x, 32) for x in words]
    products = [each("add", emit.put(f"mul {wide} {x}, {y}"), 2**30) for x, y in (even, odd)]
    low = each("and", each("lshr", products[0], 31), 2**32 - 1)
    high = each("and", each("shl", products[1], 1), -(2**32))
    both = emit.put(f"or {wide} {low}, {high}")
    return emit.put(f"bitcast {wide} {both} to {narrow}")


def _widened(emit: CastEmitter, a: str, b: str, lanes: int) -> str:
    narrow = emit.type(S32, lanes)
    wide = emit.vector("i64", lanes)

    def each(op: str, x: str, n: int) -> str:
        return emit.put(f"{op} {wide} {x}, {f'splat (i64 {n})' if lanes else n}")

    x, y = (emit.put(f"sext {narrow} {v} to {wide}") for v in (a, b))
    shifted = each("ashr", each("add", emit.put(f"mul {wide} {x}, {y}"), 2**30), 31)
    return emit.put(f"trunc {wide} {shifted} to {narrow}")
