"""Constructors of instruction rows on vectors, with their LLVM text, shared by the tables of several machines."""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import Instruction, vector
from convsmith.machine.base import dot, multiply_add

__all__ = [
    "LLVM_TYPES", "dot_call", "fused_multiply_add", "narrow_products", "pairs_of_bytes", "pairs_of_words",
    "product_body", "scalar_multiply_add", "single_products",
]  # fmt: skip

LLVM_TYPES = {
    "f32": "float", "f64": "double", "f16": "half", "bf16": "bfloat",
    "s32": "i32", "s16": "i16", "s8": "i8", "u8": "i8",
}  # fmt: skip
"""LLVM's names of the types of numbers."""
_SHUFFLED = 16
"""Bytes of a vector within which a shuffle of bytes takes one cycle."""


def fused_multiply_add(name: str, type_: str, lanes: int, needs: tuple[str, ...], mnemonic: str) -> Instruction:
    """Return the row of LLVM's lane-wise ``fma``; f16 numbers are stored as 16-bit words."""
    vector = f"<{lanes} x {LLVM_TYPES[type_]}>"
    intrinsic = f"@llvm.fma.v{lanes}{type_}"
    steps = [f"call {vector} {intrinsic}({vector} {{a}}, {vector} {{b}}, {vector} {{c}})"]
    if type_ == "f16":
        words = f"<{lanes} x i16>"
        steps = [f"bitcast {words} {{{x}}} to {vector}" for x in "abc"]
        steps.append(f"call {vector} {intrinsic}({vector} {{0}}, {vector} {{1}}, {vector} {{2}})")
        steps.append(f"bitcast {vector} {{3}} to {words}")
    return multiply_add(
        name, lanes, "\n".join(steps),
        f"declare {vector} {intrinsic}({vector}, {vector}, {vector})", needs, mnemonic, type_,
    )  # fmt: skip


def scalar_multiply_add(name: str, type_: str, mnemonic: str) -> Instruction:
    """Return the row of LLVM's ``fma`` on scalars, which a thread of a device computes one at a time; f16 numbers are
    stored as 16-bit words.
    """
    number = LLVM_TYPES[type_]
    intrinsic = f"{number} @llvm.fma.{type_}"
    steps = [f"call {intrinsic}({number} {{a}}, {number} {{b}}, {number} {{c}})"]
    if type_ == "f16":
        steps = [f"bitcast i16 {{{x}}} to half" for x in "abc"]
        steps += [f"call {intrinsic}(half {{0}}, half {{1}}, half {{2}})", "bitcast half {3} to i16"]
    return multiply_add(
        name, 1, "\n".join(steps), f"declare {intrinsic}({number}, {number}, {number})", (), mnemonic, type_
    )


def dot_call(mnemonic: str, variant: str, types: tuple[str, str, str], lanes: int, terms: int, intrinsic: str,
             needs: tuple[str, ...], swapped: bool = False, flushes: bool = False,
             repeated_last: bool = False) -> Instruction:  # fmt: skip
    """Return the row of an intrinsic on sums and two vectors of factors, ``b`` first if ``swapped``.

    The row is called ``mnemonic_variant``; bf16 numbers are stored as 16-bit words. It ``flushes`` denormal sums if the
    instruction does. A repeated one of two factors of one type is the last, if LLVM does not exchange them.
    """
    a, b, c = (f"<{n} x {LLVM_TYPES[t]}>" for t, n in zip(types, (lanes * terms, lanes * terms, lanes)))
    operands = {"a": "a", "b": "b"}
    steps = []
    if types[0] == "bf16":
        words = f"<{lanes * terms} x i16>"
        steps = [f"bitcast {words} {{{x}}} to {a}" for x in "ab"]
        operands = {"a": "0", "b": "1"}
    factors = [f"{a} {{{operands['a']}}}", f"{b} {{{operands['b']}}}"]
    steps.append(f"call {c} @{intrinsic}({', '.join([f'{c} {{c}}', *factors[:: -1 if swapped else 1]])})")
    declare = f"declare {c} @{intrinsic}({c}, {a}, {b})"
    row = dot(f"{mnemonic}_{variant}", lanes, terms, types, "\n".join(steps), declare, needs, mnemonic, flushes)
    return replace(row, repeated_last=repeated_last)


def single_products(mnemonic: str, variant: str, type_: str, lanes: int, intrinsic: str, needs: tuple[str, ...],
                    flushes: bool = False) -> Instruction:  # fmt: skip
    """Return the row that adds one product of 16-bit floats to each f32, by an intrinsic on pairs of them: a factor is
    one of a pair, and the other one is zero, so that no factor is converted to f32.

    The row is called ``mnemonic_variant``. It ``flushes`` denormal sums if the instruction does.
    """
    half, words, pairs = f"<{lanes} x i16>", f"<{lanes} x i32>", f"<{2 * lanes} x {LLVM_TYPES[type_]}>"
    sums = f"<{lanes} x float>"
    steps = [f"zext {half} {{{x}}} to {words}" for x in "ab"]
    steps += [f"bitcast {words} {{{n}}} to {pairs}" for n in range(2)]
    steps.append(f"call {sums} @{intrinsic}({sums} {{c}}, {pairs} {{2}}, {pairs} {{3}})")
    declare = f"declare {sums} @{intrinsic}({sums}, {pairs}, {pairs})"
    operands = tuple(vector(x, t, lanes) for x, t in zip("cab", ("f32", type_, type_)))
    body, llvm = product_body(lanes, "f32"), "\n".join(steps)
    return Instruction(f"{mnemonic}_{variant}", operands, body, llvm, declare, needs, mnemonic, flushes=flushes)


def product_body(lanes: int, sums: str) -> str:
    """Return the specification of a product of two vectors that is added to ``sums``."""
    return f"  for l in 0 .. {lanes}:\n    c[l] = c[l] + cast({sums}, a[l]) * cast({sums}, b[l])\n"


def pairs_of_bytes(mnemonic: str, variant: str, types: tuple[str, str], lanes: int, intrinsic: str,
                   needs: tuple[str, ...]) -> Instruction:  # fmt: skip
    """Return the row of an intrinsic that adds pairs of 16-bit products of bytes to sums without saturation.

    The row is called ``mnemonic_variant``.
    """
    words, sums, small = f"<{2 * lanes} x i16>", f"<{lanes} x i32>", f"<{2 * lanes} x i8>"
    steps = [f"{'zext' if t == 'u8' else 'sext'} {small} {{{x}}} to {words}" for x, t in zip("ab", types)]
    steps += [f"mul {words} {{0}}, {{1}}", f"call {sums} @{intrinsic}({words} {{2}})", f"add {sums} {{c}}, {{3}}"]
    declare = f"declare {sums} @{intrinsic}({words})"
    return dot(f"{mnemonic}_{variant}", lanes, 2, (*types, "s32"), "\n".join(steps), declare, needs, mnemonic)


def pairs_of_words(mnemonic: str, variant: str, byte: str, lanes: int, intrinsic: str, needs: tuple[str, ...],
                   adds: bool, copied: bool = False) -> Instruction:  # fmt: skip
    """Return the row of an intrinsic that sums pairs of products of 16-bit words; packing widens s8 weights, and loads
    widen bytes of the source, unless these are ``copied``: then a copy of the source has words. The row whose bytes
    are loaded comes before the other one, since kernels for weights beyond a limit have the first row of their types.
    If ``byte`` is s16, both factors are words in memory, as transforms write them.

    The row is called ``mnemonic_variant``. The intrinsic adds to the sums if ``adds``; otherwise a second instruction
    adds, from a temporary register. CPUs on which it does not add take several cycles to widen bytes to a vector of
    more than 16: there the row has a form for a pair that all sums share, which is repeated before it is widened, so
    that no byte moves to another 16 bytes of the vector.
    """
    words, sums = f"<{2 * lanes} x i16>", f"<{lanes} x i32>"
    are_words = copied or byte == "s16"
    steps = [] if are_words else [f"{'zext' if byte == 'u8' else 'sext'} <{2 * lanes} x i8> {{a}} to {words}"]
    a = "{a}" if are_words else "{0}"
    steps.append(f"call {sums} @{intrinsic}({', '.join([f'{sums} {{c}}'] * adds + [f'{words} {a}, {words} {{b}}'])})")
    if not adds:
        steps.append(f"add {sums} {{c}}, {{{len(steps) - 1}}}")
    declare = f"declare {sums} @{intrinsic}({', '.join([sums] * adds + [words] * 2)})"
    types = ("s16" if are_words else byte, "s16", "s32")
    row = dot(f"{mnemonic}_{variant}", lanes, 2, types, "\n".join(steps), declare, needs, mnemonic)
    widens = "" if byte == "s16" else "s8"
    row = replace(row, widens=widens, copied=byte if copied else "", temporaries=0 if adds else 1)
    return row if adds or are_words or 4 * lanes <= _SHUFFLED else _with_pair(row, byte, intrinsic)


def _with_pair(row: Instruction, byte: str, intrinsic: str) -> Instruction:
    """Return a row of pairs of words with its form for a pair of bytes that all sums share."""
    (c, a, b), lanes = row.operands, row.lanes
    words, sums, bytes_ = f"<{2 * lanes} x i16>", f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    steps = [
        "bitcast <2 x i8> {a} to i16", f"insertelement {words} poison, i16 {{0}}, i64 0",
        f"shufflevector {words} {{1}}, {words} poison, <{2 * lanes} x i32> zeroinitializer",
        f"bitcast {words} {{2}} to {bytes_}",
        f"shufflevector {bytes_} {{3}}, {bytes_} {'{3}' if byte == 's8' else 'zeroinitializer'}, {_interleaved(lanes)}",
        f"bitcast {bytes_} {{4}} to {words}",
        *([f"ashr {words} {{5}}, splat (i16 8)"] if byte == "s8" else []),
    ]  # fmt: skip
    steps.append(f"call {sums} @{intrinsic}({words} {{{len(steps) - 1}}}, {words} {{b}})")
    steps.append(f"add {sums} {{c}}, {{{len(steps) - 1}}}")
    row = replace(row, temporaries=row.temporaries + (byte == "u8"))  # zeros beside bytes
    form = replace(
        row, name=f"{row.name}_one", operands=(c, vector("a", a.dtype, 2), b),
        body=row.body.replace("a[l * 2 + r]", "a[r]"), llvm="\n".join(steps), loaded="i16",
    )  # fmt: skip
    return replace(row, repeated=form)


def _interleaved(lanes: int) -> str:
    """Return the mask of a shuffle of two vectors of bytes that interleaves the first halves of each 16 bytes."""
    size, half = 4 * lanes, _SHUFFLED // 2
    places = [n for first in range(0, size, _SHUFFLED) for i in range(first, first + half) for n in (i, size + i)]
    return f"<{size} x i32> <{', '.join(f'i32 {n}' for n in places)}>"


def narrow_products(mnemonic: str, variant: str, lanes: int, intrinsic: str, sum_of_pairs: str,
                    needs: tuple[str, ...]) -> Instruction:  # fmt: skip
    """Return the row of an intrinsic that sums pairs of products of u8 and s8 in saturating 16-bit arithmetic.

    Factors of at most 64 give at most 2 * 255 * 64 = 32,640, which 16 bits hold: the row has that limit. The intrinsic
    ``sum_of_pairs`` multiplies the 16-bit sums by 1 and adds pairs of them in 32 bits. The row is called
    ``mnemonic_variant``.
    """
    bytes_, words, sums = f"<{4 * lanes} x i8>", f"<{2 * lanes} x i16>", f"<{lanes} x i32>"
    ones = f"{words} <{', '.join(['i16 1'] * 2 * lanes)}>"
    steps = [f"call {words} @{intrinsic}({bytes_} {{a}}, {bytes_} {{b}})"]
    steps += [f"call {sums} @{sum_of_pairs}({words} {{0}}, {ones})", f"add {sums} {{c}}, {{1}}"]
    declare = [f"declare {words} @{intrinsic}({bytes_}, {bytes_})", f"declare {sums} @{sum_of_pairs}({words}, {words})"]
    types = ("u8", "s8", "s32")
    row = dot(f"{mnemonic}_{variant}", lanes, 4, types, "\n".join(steps), "\n".join(declare), needs, mnemonic)
    return replace(row, temporaries=2, limit=64)
