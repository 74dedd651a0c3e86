"""Instructions of Armv8.1-M and Armv7E-M on sums in scalar registers, one row each.

``vmladava`` adds 16 products of bytes to a scalar register, ``smlad`` two products of halfwords. A row computes sums of
several channels for terms that they share, one channel after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from convsmith.ir.instruction import SCALARS, Instruction, vector
from convsmith.machine.base import dot
from convsmith.machine.rows import fused_multiply_add

__all__ = ["DSP", "LANES", "MVE", "PAIRS", "pairs", "scalars", "vectors"]

MVE = ("mve.fp",)
"""Features of Cortex-M55 and M85: vectors of integers and of f32."""
DSP = ("dsp",)
"""Features of Cortex-M4 and M7."""
LANES = 4
"""Sums of a row of vectors: one for each lane of a vector of s32."""
PAIRS = 2
"""Sums of a row of pairs."""
_VECTOR, _WORD = 16, 4
"""Bytes of a vector and of a scalar register, the terms of a row."""
_SAME = (("s8", "s8"), ("u8", "u8"))
_TYPES = (*_SAME, ("u8", "s8"), ("s8", "u8"))
"""Types of two factors that are bytes."""

_Step = Callable[[str], str]
"""A function that takes an expression of LLVM's text and returns the name of its result."""


def vectors() -> tuple[Instruction, ...]:
    """Return the rows of processors with vectors."""
    return (fused_multiply_add("vfma_f32", "f32", LANES, MVE, "vfma"), *(_of_vectors(*types) for types in _SAME))


def pairs() -> tuple[Instruction, ...]:
    """Return the rows of processors with pairs of halfwords."""
    return (*scalars(), *(_of_pairs(*types) for types in _TYPES))


def scalars() -> tuple[Instruction, ...]:
    """Return the rows of numbers one by one."""
    return (fused_multiply_add("vfma_f32", "f32", PAIRS, (), ""),)


def _of_vectors(a: str, b: str) -> Instruction:
    """Return the row that adds 16 products of bytes to each sum. Both factors have signs, or neither has."""
    name, bytes_ = "@llvm.arm.mve.vmldava.v16i8", f"<{_VECTOR} x i8>"
    given = f"i32 {int(a == 'u8')}, i32 0, i32 0"

    def add(put: _Step, total: str, x: str, y: str) -> str:
        return put(f"call i32 {name}({given}, i32 {total}, {bytes_} {x}, {bytes_} {y})")

    declare = f"declare i32 {name}(i32, i32, i32, i32, {bytes_}, {bytes_})"
    return _row(f"vmladava_{a}_{b}", LANES, _VECTOR, (a, b), add, declare, MVE, "vmlav", _vectors_of)


def _of_pairs(a: str, b: str) -> Instruction:
    """Return the row that adds four products of bytes to each sum, two and two."""
    name, turn = "@llvm.arm.smlad", "@llvm.fshr.i32"

    def halves(put: _Step, word: str, type_: str) -> tuple[str, str]:
        """Return the even and the odd bytes of a word as halfwords."""
        extend = f"call i32 @llvm.arm.{'u' if type_ == 'u8' else 's'}xtb16(i32 "
        turned = put(f"call i32 {turn}(i32 {word}, i32 {word}, i32 8)")
        return put(f"{extend}{word})"), put(f"{extend}{turned})")

    def add(put: _Step, total: str, x: str, y: str) -> str:
        for first, second in zip(halves(put, x, a), halves(put, y, b)):
            total = put(f"call i32 {name}(i32 {first}, i32 {second}, i32 {total})")
        return total

    extended = dict.fromkeys("u" if t == "u8" else "s" for t in (a, b))
    declare = [f"declare i32 {name}(i32, i32, i32)", f"declare i32 {turn}(i32, i32, i32)"]
    declare += [f"declare i32 @llvm.arm.{sign}xtb16(i32)" for sign in extended]
    return _row(f"smlad_{a}_{b}", PAIRS, _WORD, (a, b), add, "\n".join(declare), DSP, "smlad", _words)


def _vectors_of(put: _Step, x: str, lanes: int) -> list[str]:
    """Return the vectors of `lanes` of them."""
    many, own = f"<{lanes * _VECTOR} x i8>", range(_VECTOR)
    if lanes == 1:
        return [x]
    numbers = (", ".join(f"i32 {lane * _VECTOR + n}" for n in own) for lane in range(lanes))
    return [put(f"shufflevector {many} {x}, {many} poison, <{_VECTOR} x i32> <{places}>") for places in numbers]


def _words(put: _Step, x: str, lanes: int) -> list[str]:
    """Return the words of `lanes` of them."""
    if lanes == 1:
        return [put(f"bitcast <{_WORD} x i8> {x} to i32")]
    whole = f"i{lanes * _WORD * 8}"  # LLVM would load a vector of words byte by byte
    held = put(f"bitcast <{lanes * _WORD} x i8> {x} to {whole}")
    moved = (put(f"lshr {whole} {held}, {lane * _WORD * 8}") if lane else held for lane in range(lanes))
    return [put(f"trunc {whole} {word} to i32") for word in moved]


def _row(
    name: str, lanes: int, terms: int, types: tuple[str, str], add: Callable[[_Step, str, str, str], str],
    declare: str, needs: tuple[str, ...], mnemonic: str, parts: Callable[[_Step, str, int], list[str]],
) -> Instruction:  # fmt: skip
    """Return a row of ``lanes`` sums in scalar registers, to each of which ``add`` adds ``terms`` products, with the
    form for terms that all sums share. A factor of one sum is one of the ``parts`` of an operand.
    """

    def steps(is_shared: bool) -> str:
        lines: list[str] = []

        def put(text: str) -> str:
            lines.append(text)
            return f"{{{len(lines) - 1}}}"

        sums, whole = f"<{lanes} x i32>", "{c}"
        first = parts(put, "{a}", 1) * lanes if is_shared else parts(put, "{a}", lanes)
        for lane, (x, y) in enumerate(zip(first, parts(put, "{b}", lanes))):
            total = add(put, put(f"extractelement {sums} {{c}}, i64 {lane}"), x, y)
            whole = put(f"insertelement {sums} {whole}, i32 {total}, i64 {lane}")
        return "\n".join(lines)

    whole = dot(name, lanes, terms, (*types, "s32"), steps(is_shared=False), declare, needs, mnemonic)
    c, *own = whole.operands
    sums = replace(c, file=SCALARS)
    form = replace(
        whole, name=f"{name}_shared", operands=(sums, vector("a", types[0], terms), own[1]),
        body=whole.body.replace(f"a[l * {terms} + r]", "a[r]"), llvm=steps(is_shared=True),
    )  # fmt: skip
    return replace(whole, operands=(sums, *own), repeated=form)
