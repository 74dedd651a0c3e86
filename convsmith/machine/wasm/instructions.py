"""Instructions of WebAssembly on vectors of 128 bits, one row each."""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import Instruction
from convsmith.machine.base import dot, multiply_add
from convsmith.machine.rows import LLVM_TYPES, pairs_of_words

SIMD = ("simd128",)
RELAXED = (*SIMD, "relaxed-simd")
UNSIGNED_DOTS = (*RELAXED, "dot-u8")
"""Features of engines whose relaxed products of bytes are those of s8 and u8, added up without saturation. LLVM knows
no such feature: engines show it when they multiply.
"""
SIGNED_DOTS = (*RELAXED, "dot-s8")
"""Likewise features of engines whose relaxed products of bytes are those of s8 and s8."""
UNSIGNED_PAIRS = (*RELAXED, "pairs-u8")
"""Likewise features of engines that add pairs of products of s8 and u8 in words, where their sum may saturate."""
RELAXED_FMA = "wasm.relaxed.madd"
"""The name of the intrinsic of a multiply-add that an engine rounds once or twice."""
_DOT = "llvm.wasm.dot"
_RELAXED_PAIRS = "llvm.wasm.relaxed.dot.i8x16.i7x16.signed"
_RELAXED_DOT = "llvm.wasm.relaxed.dot.i8x16.i7x16.add.signed"
_BYTES, _WORDS, _SUMS = "<16 x i8>", "<8 x i16>", "<4 x i32>"


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
    _multiply_add("f32", 4, f"llvm.{RELAXED_FMA}", RELAXED, "f32x4.relaxed_madd"),
    _multiply_add("f64", 2, f"llvm.{RELAXED_FMA}", RELAXED, "f64x2.relaxed_madd"),
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
    pairs_of_words("i32x4.dot_i16x8_s", "s16", "s16", 4, _DOT, SIMD, adds=False),
    pairs_of_words("i32x4.dot_i16x8_s", "s8_copied", "s8", 4, _DOT, SIMD, adds=False, copied=True),
    pairs_of_words("i32x4.dot_i16x8_s", "u8_copied", "u8", 4, _DOT, SIMD, adds=False, copied=True),
)
"""Products of bytes, which have 16 bits."""


def _fours(needs: tuple[str, ...], mnemonic: str, declare: str, *steps: str) -> Instruction:
    """Return the row that adds four products of u8 and s8 to each sum by ``steps``. Rows of all levels have the same
    name.
    """
    return dot("dot_u8_s8", 4, 4, ("u8", "s8", "s32"), "\n".join(steps), declare, needs, mnemonic)


def _relaxed_dot(s8: str, u7: str, sums: str) -> str:
    """Return the call that adds products to ``sums``; engines agree on it where the second factor is below 128."""
    return f"call {_SUMS} @{_RELAXED_DOT}({_BYTES} {s8}, {_BYTES} {u7}, {_SUMS} {sums})"


_DECLARE = f"declare {_SUMS} @{_RELAXED_DOT}({_BYTES}, {_BYTES}, {_SUMS})"
FOURS = (
    _fours(UNSIGNED_DOTS, "i32x4.relaxed_dot_i8x16_i7x16_add_s", _DECLARE, _relaxed_dot("{b}", "{a}", "{c}")),
)  # fmt: skip
"""Relaxed products of bytes whose second factor has eight bits."""


def _signed() -> tuple[str, ...]:
    """Return the steps that multiply the odd factor at or above each factor, less 128, then the lowest bit, and then
    add 127 times the weights.

    Engines may add pairs of products in words, which hold all pairs but that of -128 * -128 twice: V8 on AArch64 does
    so until it compiles a function again. No odd factor is -128.
    """
    return (
        f"xor {_BYTES} {{a}}, splat (i8 -128)", f"or {_BYTES} {{0}}, splat (i8 1)", f"and {_BYTES} {{a}}, splat (i8 1)",
        _relaxed_dot("{b}", "{2}", "{c}"), _relaxed_dot("{b}", "{1}", "{3}"),
        _relaxed_dot("{b}", "splat (i8 127)", "zeroinitializer"), f"add {_SUMS} {{4}}, {{5}}",
    )  # fmt: skip


def _words_of_fours() -> tuple[str, ...]:
    """Return the steps that multiply the even bytes as words, and the odd ones, each pair of which has one sum."""
    return (
        f"bitcast {_BYTES} {{a}} to {_WORDS}", f"and {_WORDS} {{0}}, splat (i16 255)",
        f"lshr {_WORDS} {{0}}, splat (i16 8)", f"bitcast {_BYTES} {{b}} to {_WORDS}",
        f"shl {_WORDS} {{3}}, splat (i16 8)", f"ashr {_WORDS} {{4}}, splat (i16 8)",
        f"ashr {_WORDS} {{3}}, splat (i16 8)", f"call {_SUMS} @{_DOT}({_WORDS} {{1}}, {_WORDS} {{5}})",
        f"call {_SUMS} @{_DOT}({_WORDS} {{2}}, {_WORDS} {{6}})", f"add {_SUMS} {{c}}, {{7}}",
        f"add {_SUMS} {{9}}, {{8}}",
    )  # fmt: skip


def _pairs() -> Instruction:
    """Return the row that adds pairs of products in words, and pairs of these, as products by 1, to each sum. Words
    hold them up to the limit: 2 * 255 * 64 is less than 2^15. A third temporary leaves tiles of four pixels by two
    vectors: V8 unrolls their loops, which takes 0.92 to 0.96 of the time of five pixels.
    """
    row = _fours(
        UNSIGNED_PAIRS, "i16x8.relaxed_dot_i8x16_i7x16_s",
        f"declare {_WORDS} @{_RELAXED_PAIRS}({_BYTES}, {_BYTES})\ndeclare {_SUMS} @{_DOT}({_WORDS}, {_WORDS})",
        f"call {_WORDS} @{_RELAXED_PAIRS}({_BYTES} {{b}}, {_BYTES} {{a}})",
        f"call {_SUMS} @{_DOT}({_WORDS} {{0}}, {_WORDS} splat (i16 1))", f"add {_SUMS} {{c}}, {{1}}",
    )  # fmt: skip
    return replace(row, temporaries=3, limit=64)


FOURS_OF_PAIRS = (_pairs(),)
"""Products of bytes, pairs of which are added in words: their second factor is from -64 to 64."""
FOURS_OF_SIGNED = (_fours(SIGNED_DOTS, "i32x4.relaxed_dot_i8x16_i7x16_add_s", _DECLARE, *_signed()),)
"""Products of bytes by relaxed ones of engines that take both factors as s8."""
FOURS_OF_WORDS = (
    _fours(SIMD, "i32x4.dot_i16x8_s", f"declare {_SUMS} @{_DOT}({_WORDS}, {_WORDS})", *_words_of_fours()),
)  # fmt: skip
"""Products of bytes by products of words, which all engines compute."""
