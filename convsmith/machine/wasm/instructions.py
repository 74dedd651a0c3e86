"""Instructions of WebAssembly on vectors of 128 bits, one row each."""

from __future__ import annotations

from convsmith.ir.instruction import Instruction
from convsmith.machine.base import multiply_add
from convsmith.machine.rows import LLVM_TYPES, pairs_of_words

SIMD = ("simd128",)
RELAXED = (*SIMD, "relaxed-simd")
_DOT = "llvm.wasm.dot"


def _multiply_add(type_: str, lanes: int, intrinsic: str, needs: tuple[str, ...], mnemonic: str) -> Instruction:
    """Return the row of an intrinsic of three vectors: the product of two, and the third added. Rows of all levels have
    the same names.
    """
    numbers, call = f"<{lanes} x {LLVM_TYPES[type_]}>", f"@{intrinsic}.v{lanes}{type_}"
    return multiply_add(
        f"multiply_add_{type_}", lanes, f"call {numbers} {call}({', '.join(f'{numbers} {{{x}}}' for x in 'abc')})",
        f"declare {numbers} {call}({', '.join([numbers] * 3)})", needs, mnemonic, type_,
    )  # fmt: skip


FUSED = (
    _multiply_add("f32", 4, "llvm.wasm.relaxed.madd", RELAXED, "f32x4.relaxed_madd"),
    _multiply_add("f64", 2, "llvm.wasm.relaxed.madd", RELAXED, "f64x2.relaxed_madd"),
)
"""Multiply-adds that an engine rounds once or twice."""
SEPARATE = (
    _multiply_add("f32", 4, "llvm.fmuladd", SIMD, "f32x4.mul"),
    _multiply_add("f64", 2, "llvm.fmuladd", SIMD, "f64x2.mul"),
)
"""Multiplications followed by additions."""
BYTES = (
    pairs_of_words("i32x4.dot_i16x8_s", "s8", "s8", 4, _DOT, SIMD, adds=False),
    pairs_of_words("i32x4.dot_i16x8_s", "u8", "u8", 4, _DOT, SIMD, adds=False),
)
"""Products of bytes, which have 16 bits. Relaxed products of bytes are no rows: their second factor has seven bits."""
