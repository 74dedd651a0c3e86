"""Arrays of elements of 8 and 16 bits in WGSL, whose arrays hold words of 32 bits.

A load extracts an element of a word. A store writes whole words where its lanes fill them, whatever the variables are;
other stores change their element of a word by atomic operations, because threads that write other elements of the word
run at the same time. An array that has a store of the second kind is an array of atomic words.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from convsmith.arith.divisors import divisor_of
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, floordiv
from convsmith.ir.stmt import AsyncCopy, For, Kernel, Let, Store
from convsmith.ir.types import DType
from convsmith.ir.value import Lanes
from convsmith.ir.walk import statements_of

__all__ = ["WORD", "WORD_FUNCTIONS", "WordStores", "element", "in_word", "is_narrow", "per_word", "words_of"]

WORD = 32
"""Bits of an element of an array of WGSL."""

WORD_FUNCTIONS = {
    "word_of_bytes": """\
fn word_of_bytes(a: u32, b: u32, c: u32, d: u32) -> u32 {
  return (a & 255u) | ((b & 255u) << 8u) | ((c & 255u) << 16u) | (d << 24u);
}
""",
    "word_of_halves": """\
fn word_of_halves(a: u32, b: u32) -> u32 {
  return (a & 65535u) | (b << 16u);
}
""",
}
"""Functions that make a word of its elements."""


def is_narrow(b: Buffer) -> bool:
    """Return whether elements of a buffer share words of memory."""
    return b.dtype.bits < WORD and b.scope in ("global", "shared")


def per_word(t: DType) -> int:
    """Return the number of elements in a word."""
    return WORD // t.bits


def words_of(b: Buffer) -> int:
    """Return the number of words of a buffer."""
    return -(-b.size // per_word(b.dtype))


def in_word(t: DType, i: Index) -> tuple[Index, Index]:
    """Return the number of the word of an element, and that of the element's first bit in the word."""
    count = per_word(t)
    return floordiv(i, count), (i % count) * t.bits


def element(t: DType, word: str, bit: str) -> str:
    """Return the element of a word that begins at a bit; floats of 16 bits are their bits."""
    if t.kind == "int":
        return f"extractBits(bitcast<i32>({word}), {bit}, {t.bits}u)"
    text = f"extractBits({word}, {bit}, {t.bits}u)"
    return text if t.kind == "float" else f"i32({text})"


class WordStores:
    """The stores of a kernel that write whole words, and the arrays with other stores, which are `apart`."""

    def __init__(self, kernel: Kernel) -> None:
        self._divisors: dict[Var, int] = {}
        self.apart: set[Buffer] = set()
        for s in statements_of(kernel.body):
            if isinstance(s, Let):
                self._divisors[s.var] = divisor_of(s.value, self._divisors)
            elif isinstance(s, For):
                self._divisors |= {c.var: gcd(divisor_of(c.init, self._divisors), c.step) for c in s.carried}
            elif isinstance(s, (Store, AsyncCopy)):
                b, index, lanes = (
                    (s.buffer, s.index, s.lanes) if isinstance(s, Store) else (s.dst.buffer, s.dst.index, s.dst.lanes)
                )  # fmt: skip
                if is_narrow(b) and not self.fills(b, index[0], lanes):
                    self.apart.add(b)

    def fills(self, b: Buffer, index: Index, lanes: Lanes | None) -> bool:
        """Return whether an access to a narrow buffer is to all elements of each word that it touches, in order."""
        count = per_word(b.dtype)
        if lanes is None or divisor_of(index, self._divisors) % count:
            return False
        touched = lanes.offsets[lanes.first : lanes.active]
        return not len(touched) % count and all(
            not group[0] % count and group == tuple(range(group[0], group[0] + count))
            for group in _groups(touched, count)
        )


def _groups(offsets: tuple[int, ...], count: int) -> Iterator[tuple[int, ...]]:
    return (offsets[n : n + count] for n in range(0, len(offsets), count))
