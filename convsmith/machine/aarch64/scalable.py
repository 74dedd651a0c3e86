"""Instructions of SVE: lanes are a multiple of the vector length in units of 128 bits, which LLVM calls ``vscale``.

The specifications are scalable, and LLVM's text works on whole scalable registers. A level of any vector length has the
rows of NEON, each with the scalable row that applies it to every unit. A level whose vector length is known takes the
scalable rows at its scale: LLVM's text then has vectors of numbered lanes, and functions with the attribute
``vscale_range`` keep these in whole scalable registers, and read and write parts of them under predicates.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import Instruction, vector
from convsmith.machine.aarch64.instructions import INSTRUCTIONS
from convsmith.machine.rows import LLVM_TYPES, fused_multiply_add

_LANES = {"f32": 4, "f64": 2, "f16": 8}
"""Lanes of a unit."""
_DOTS = (
    ("sdot", ("s8", "s8", "s32"), "sve"), ("udot", ("u8", "u8", "s32"), "sve"), ("usdot", ("u8", "s8", "s32"), "i8mm"),
    ("usdot", ("s8", "u8", "s32"), "i8mm"), ("bfdot", ("bf16", "bf16", "f32"), "bf16"),
)  # fmt: skip
_SUMS = 4
"""Sums per unit of an instruction that adds up several products."""
_NUMBERED = 3
"""Number of leading entries of `_DOTS` that a level of known vector length has: the products of bytes."""


def rows(scale: int, extension: str = "sve") -> tuple[Instruction, ...]:
    """Return the rows of a machine whose vectors have ``scale`` units, as an ``extension`` has them."""
    fused = (_numbered_fused(type_, scale) for type_ in _LANES)
    found = (*fused, *(_numbered_dot(_dot(*dot), scale) for dot in _DOTS[:_NUMBERED]))
    return tuple(replace(row, needs=(extension, *row.needs[1:])) for row in found)


def unit_rows(needs: tuple[str, ...]) -> tuple[Instruction, ...]:
    """Return the rows of NEON that ``needs`` suffices for, each with the scalable row that applies it to every unit."""
    scalable = {_widths(row): row for row in (*map(_fused, _LANES), *(_dot(*dot) for dot in _DOTS))}
    found = (row for row in INSTRUCTIONS if set(row.needs) <= set(needs))
    return tuple(replace(row, scaled=scalable.get(_widths(row))) for row in found)


def _widths(row: Instruction) -> tuple[tuple[str, int], ...]:
    """Return the type and the elements of each operand in a unit, without parsing the row's specification."""
    return tuple((operand.dtype, operand.size) for operand in row.operands)


def _fused(type_: str) -> Instruction:
    """Return the scalable row of ``fma``; f16 numbers are stored as 16-bit words."""
    lanes = _LANES[type_]
    body = f"  for l in 0 .. vscale * {lanes}:\n    c[l] = fma(a[l], b[l], c[l])\n"
    operands = tuple(vector(x, type_, lanes, scalable=True) for x in "cab")
    numbers, intrinsic = f"<vscale x {lanes} x {LLVM_TYPES[type_]}>", f"@llvm.fma.nxv{lanes}{type_}"
    lines, given, words = [], ["{a}", "{b}", "{c}"], f"<vscale x {lanes} x i16>"
    if type_ == "f16":
        lines = [f"bitcast {words} {{{x}}} to {numbers}" for x in "abc"]
        given = ["{0}", "{1}", "{2}"]
    lines.append(f"call {numbers} {intrinsic}({', '.join(f'{numbers} {x}' for x in given)})")
    if type_ == "f16":
        lines.append(f"bitcast {numbers} {{3}} to {words}")
    declare = f"declare {numbers} {intrinsic}({numbers}, {numbers}, {numbers})"
    return Instruction(f"fmla_z_{type_}", operands, body, "\n".join(lines), declare, ("sve",), "fm")


def _numbered_fused(type_: str, scale: int) -> Instruction:
    """Return the row of ``fma`` on fixed-length vectors at ``scale``."""
    scalable = _fused(type_)
    row = fused_multiply_add(scalable.name, type_, _LANES[type_] * scale, scalable.needs, scalable.mnemonic)
    return replace(row, operands=scalable.operands, body=scalable.body).at(scale)


def _dot(mnemonic: str, types: tuple[str, str, str], needs: str) -> Instruction:
    """Return the scalable row of an instruction that adds up one product for each factor that fits into the bits of a
    sum.
    """
    a, b, c = types
    terms = 2 if a == "bf16" else 4
    body = (
        f"  for l in 0 .. vscale * {_SUMS}:\n"
        f"    for r in 0 .. {terms}:\n"
        f"      c[l] = c[l] + cast({c}, a[l * {terms} + r]) * cast({c}, b[l * {terms} + r])\n"
    )
    kinds = (("c", c, _SUMS), ("a", a, _SUMS * terms), ("b", b, _SUMS * terms))
    sums = f"<vscale x {_SUMS} x {LLVM_TYPES[c]}>"
    factors = f"<vscale x {_SUMS * terms} x {LLVM_TYPES[a]}>"
    intrinsic = f"@llvm.aarch64.sve.{mnemonic}" + ("" if a == "bf16" else ".nxv4i32")
    lines, given = [], ["{a}", "{b}"]
    if a == "bf16":
        lines = [f"bitcast <vscale x {_SUMS * terms} x i16> {{{x}}} to {factors}" for x in "ab"]
        given = ["{0}", "{1}"]
    if (a, b) == ("s8", "u8"):
        given.reverse()
    lines.append(f"call {sums} {intrinsic}({sums} {{c}}, {', '.join(f'{factors} {x}' for x in given)})")
    operands = tuple(vector(name, dtype, lanes, scalable=True) for name, dtype, lanes in kinds)
    return Instruction(
        f"{mnemonic}_z_{a}_{b}", operands, body, "\n".join(lines),
        f"declare {sums} {intrinsic}({sums}, {factors}, {factors})", tuple(dict.fromkeys(("sve", needs))), mnemonic,
    )  # fmt: skip


def _numbered_dot(row: Instruction, scale: int) -> Instruction:
    """Return the row of bytes on fixed-length vectors at ``scale``, which its text inserts into scalable registers."""
    bytes_, sums = f"<{16 * scale} x i8>", f"<{4 * scale} x i32>"
    wide_bytes, wide_sums = "<vscale x 16 x i8>", "<vscale x 4 x i32>"
    put_bytes, put_sums = f"@llvm.vector.insert.nxv16i8.v{16 * scale}i8", f"@llvm.vector.insert.nxv4i32.v{4 * scale}i32"
    take = f"@llvm.vector.extract.v{4 * scale}i32.nxv4i32"
    lines = [f"call {wide_sums} {put_sums}({wide_sums} poison, {sums} {{c}}, i64 0)"]
    lines += [f"call {wide_bytes} {put_bytes}({wide_bytes} poison, {bytes_} {{{x}}}, i64 0)" for x in "ab"]
    lines.append(row.llvm.format(c="{0}", a="{1}", b="{2}"))
    lines.append(f"call {sums} {take}({wide_sums} {{3}}, i64 0)")
    declare = "\n".join((
        f"declare {wide_sums} {put_sums}({wide_sums}, {sums}, i64)",
        f"declare {wide_bytes} {put_bytes}({wide_bytes}, {bytes_}, i64)",
        row.declare,
        f"declare {sums} {take}({wide_sums}, i64)",
    ))  # fmt: skip
    return replace(row, llvm="\n".join(lines), declare=declare).at(scale)
