"""Instructions of HVX on vectors of 128 bytes, and the multiply-add of scalars.

All vectors of an intrinsic are words of 32 bits. If the factor in vectors is unsigned, a row also has a form that takes
the other factor, which is the same for all sums, from a scalar register.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import Instruction, vector
from convsmith.machine.base import dot
from convsmith.machine.rows import LLVM_TYPES, fused_multiply_add

LANES, _TERMS = 32, 4
"""Words of a vector, and bytes of a word."""
_WORDS = f"<{LANES} x i32>"
_HVX = ("hvxv68", "hvx-length128b")
_FLOAT = (*_HVX, "hvx-ieee-fp")


def _dot(name: str, types: tuple[str, str, str], terms: int, intrinsic: str, mnemonic: str, swapped: bool = False,
         needs: tuple[str, ...] = _HVX) -> Instruction:  # fmt: skip
    """Return the row of an intrinsic that adds up ``terms`` products; the second factor comes first if ``swapped``."""
    call, sums = f"@llvm.hexagon.V6.{intrinsic}.acc.128B", f"<{LANES} x {LLVM_TYPES[types[2]]}>"
    elements = {x: f"<{LANES * terms} x {_memory_type(t)}>" for x, t in zip("ab", types)}
    steps = [f"bitcast {elements[x]} {{{x}}} to {_WORDS}" for x in "ab"]
    given = [f"{_WORDS} {{0}}", f"{_WORDS} {{1}}"]
    steps.append(f"bitcast {sums} {{c}} to {_WORDS}")
    steps.append(f"call {_WORDS} {call}({', '.join([f'{_WORDS} {{2}}', *given[:: -1 if swapped else 1]])})")
    steps.append(f"bitcast {_WORDS} {{3}} to {sums}")
    declare = f"declare {_WORDS} {call}({_WORDS}, {_WORDS}, {_WORDS})"
    return dot(name, LANES, terms, types, "\n".join(steps), declare, needs, mnemonic)


def _memory_type(type_: str) -> str:
    """Return LLVM's type of a number in memory."""
    return "i16" if type_ in ("f16", "bf16") else LLVM_TYPES[type_]


def _repeating(row: Instruction, intrinsic: str, name: str) -> Instruction:
    """Return ``row`` with the form that takes four bytes for the factor ``name`` in a scalar register, the same for all
    sums.
    """
    types = dict(zip("ab", row.types))
    other = "a" if name == "b" else "b"
    call, bytes_ = f"@llvm.hexagon.V6.{intrinsic}.acc.128B", f"<{LANES * _TERMS} x i8>"
    steps = (
        f"bitcast <{_TERMS} x i8> {{{name}}} to i32", f"bitcast {bytes_} {{{other}}} to {_WORDS}",
        f"call {_WORDS} {call}({_WORDS} {{c}}, {_WORDS} {{1}}, i32 {{0}})",
    )  # fmt: skip
    place = {name: "r", other: f"l * {_TERMS} + r"}
    body = (
        f"  for l in 0 .. {LANES}:\n"
        f"    for r in 0 .. {_TERMS}:\n"
        f"      c[l] = c[l] + cast(s32, a[{place['a']}]) * cast(s32, b[{place['b']}])\n"
    )
    factors = (vector(x, types[x], _TERMS if x == name else LANES * _TERMS) for x in "ab")
    operands = (vector("c", "s32", LANES), *factors)
    form = Instruction(
        f"{row.name}_repeated", operands, body, "\n".join(steps),
        f"declare {_WORDS} {call}({_WORDS}, {_WORDS}, i32)", row.needs, row.mnemonic,
    )  # fmt: skip
    return replace(row, repeated=form)


def _multiply_add() -> Instruction:
    """Return the row of an f32 product and an f32 sum, each of which is rounded."""
    numbers = f"<{LANES} x float>"
    names = ("vmpy", "vadd")
    steps = [f"bitcast {numbers} {{{x}}} to {_WORDS}" for x in "abc"]
    given = ((0, 1), (2, 3))
    for name, (x, y) in zip(names, given):
        steps.append(f"call {_WORDS} @llvm.hexagon.V6.{name}.sf.sf.128B({_WORDS} {{{x}}}, {_WORDS} {{{y}}})")
    steps.append(f"bitcast {_WORDS} {{4}} to {numbers}")
    declare = "\n".join(f"declare {_WORDS} @llvm.hexagon.V6.{name}.sf.sf.128B({_WORDS}, {_WORDS})" for name in names)
    body = f"  for l in 0 .. {LANES}:\n    c[l] = c[l] + a[l] * b[l]\n"
    operands = tuple(vector(x, "f32", LANES) for x in "cab")
    return Instruction("vmpy_sf", operands, body, "\n".join(steps), declare, _FLOAT, "vmpy")


_F64 = Instruction(
    "dfadd", tuple(vector(x, "f64", 1) for x in "cab"), "  for l in 0 .. 1:\n    c[l] = c[l] + a[l] * b[l]\n",
    "fmul <1 x double> {a}, {b}\nfadd <1 x double> {c}, {0}", "", (), "dfadd",
)  # fmt: skip
SCALARS = (fused_multiply_add("sfmpy", "f32", 1, (), "sfmpy"), _F64)
"""Rows of levels that have no vectors of floating-point numbers."""
FLOATS = (
    _multiply_add(), _F64,
    _dot("vdmpy_sf_hf", ("f16", "f16", "f32"), 2, "vdmpy.sf.hf", "vdmpy", needs=_FLOAT),
)
BYTES = (
    _repeating(_dot("vrmpy_ub_b", ("u8", "s8", "s32"), _TERMS, "vrmpybusv", "vrmpy"), "vrmpybus", "b"),
    _dot("vrmpy_b_ub", ("s8", "u8", "s32"), _TERMS, "vrmpybusv", "vrmpy", swapped=True),
    _dot("vrmpy_b_b", ("s8", "s8", "s32"), _TERMS, "vrmpybv", "vrmpy"),
    _repeating(_dot("vrmpy_ub_ub", ("u8", "u8", "s32"), _TERMS, "vrmpyubv", "vrmpy"), "vrmpyub", "a"),
)
