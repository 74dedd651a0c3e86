"""Rows of instructions on vectors, with LLVM's text of them: what the tables of several machines are made of."""

from __future__ import annotations

from convsmith.ir.instruction import Instruction
from convsmith.machine.base import dot, multiply_add

__all__ = ["dot_call", "fused_multiply_add", "pairs_of_bytes"]

_LLVM = {
    "f32": "float", "f64": "double", "f16": "half", "bf16": "bfloat",
    "s32": "i32", "s16": "i16", "s8": "i8", "u8": "i8",
}  # fmt: skip


def fused_multiply_add(name: str, type_: str, lanes: int, needs: tuple[str, ...], mnemonic: str) -> Instruction:
    """The row of LLVM's lane-wise ``fma``; numbers of f16 are words around it."""
    vector = f"<{lanes} x {_LLVM[type_]}>"
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


def dot_call(name: str, types: tuple[str, str, str], lanes: int, terms: int, intrinsic: str,
             needs: tuple[str, ...], swapped: bool = False) -> Instruction:  # fmt: skip
    """The row of an intrinsic of sums and two vectors of factors, ``b`` first where they are ``swapped``.

    The mnemonic is the name up to its first ``_``; numbers of bf16 are words before the call.
    """
    a, b, c = (f"<{n} x {_LLVM[t]}>" for t, n in zip(types, (lanes * terms, lanes * terms, lanes)))
    operands = {"a": "a", "b": "b"}
    steps = []
    if types[0] == "bf16":
        words = f"<{lanes * terms} x i16>"
        steps = [f"bitcast {words} {{{x}}} to {a}" for x in "ab"]
        operands = {"a": "0", "b": "1"}
    factors = [f"{a} {{{operands['a']}}}", f"{b} {{{operands['b']}}}"]
    steps.append(f"call {c} @{intrinsic}({', '.join([f'{c} {{c}}', *factors[:: -1 if swapped else 1]])})")
    declare = f"declare {c} @{intrinsic}({c}, {a}, {b})"
    return dot(name, lanes, terms, types, "\n".join(steps), declare, needs, name.partition("_")[0])


def pairs_of_bytes(name: str, types: tuple[str, str], lanes: int, intrinsic: str, needs: tuple[str, ...],
                   adds: bool, products: bool = False) -> Instruction:  # fmt: skip
    """The row of products of pairs of bytes, as 16-bit words: nothing can saturate in between.

    ``adds`` says that the intrinsic adds to the sums, else that takes another instruction; ``products`` that it takes
    the products, else the factors.
    """
    words, sums, small = f"<{2 * lanes} x i16>", f"<{lanes} x i32>", f"<{2 * lanes} x i8>"
    steps = [f"{'zext' if t == 'u8' else 'sext'} {small} {{{x}}} to {words}" for x, t in zip("ab", types)]
    given = [f"{words} {{0}}", f"{words} {{1}}"]
    if products:
        steps.append(f"mul {words} {{0}}, {{1}}")
        given = [f"{words} {{2}}"]
    taken = [sums] * adds + [words] * len(given)
    steps.append(f"call {sums} @{intrinsic}({', '.join([f'{sums} {{c}}'] * adds + given)})")
    if not adds:
        steps.append(f"add {sums} {{c}}, {{{len(steps) - 1}}}")
    declare = f"declare {sums} @{intrinsic}({', '.join(taken)})"
    return dot(name, lanes, 2, (*types, "s32"), "\n".join(steps), declare, needs, name.partition("_")[0])
