"""Instructions of SVE: lanes are a multiple of the vector length in units of 128 bits, which is the scale of a level.

The specifications are scalable. LLVM's text has vectors of numbered lanes, at one scale: functions with the attribute
``vscale_range`` keep these in whole scalable registers, and read and write parts of them under predicates.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import Instruction, vector
from convsmith.machine.rows import fused_multiply_add

_LANES = {"f32": 4, "f64": 2, "f16": 8}
"""Lanes of a unit."""
_DOTS = (
    ("sdot", ("s8", "s8", "s32"), "sve"), ("udot", ("u8", "u8", "s32"), "sve"), ("usdot", ("u8", "s8", "s32"), "i8mm"),
)  # fmt: skip
_SUMS, _TERMS = 4, 4


def rows(scale: int) -> tuple[Instruction, ...]:
    """Return the rows of a machine whose vectors have ``scale`` units."""
    fused = (_fused(type_, lanes, scale) for type_, lanes in _LANES.items())
    return (*fused, *(_dot(mnemonic, types, needs, scale) for mnemonic, types, needs in _DOTS))


def _fused(type_: str, lanes: int, scale: int) -> Instruction:
    body = f"  for l in 0 .. vscale * {lanes}:\n    c[l] = fma(a[l], b[l], c[l])\n"
    operands = tuple(vector(x, type_, lanes, scalable=True) for x in "cab")
    row = fused_multiply_add(f"fmla_z_{type_}", type_, lanes * scale, ("sve",), "fm")
    return replace(row, operands=operands, body=body).at(scale)


def _dot(mnemonic: str, types: tuple[str, str, str], needs: str, scale: int) -> Instruction:
    a, b, c = types
    body = (
        f"  for l in 0 .. vscale * {_SUMS}:\n"
        f"    for r in 0 .. {_TERMS}:\n"
        f"      c[l] = c[l] + cast({c}, a[l * {_TERMS} + r]) * cast({c}, b[l * {_TERMS} + r])\n"
    )
    kinds = (("c", c, _SUMS), ("a", a, _SUMS * _TERMS), ("b", b, _SUMS * _TERMS))
    bytes_, sums = f"<{16 * scale} x i8>", f"<{4 * scale} x i32>"
    wide_bytes, wide_sums = "<vscale x 16 x i8>", "<vscale x 4 x i32>"
    put_bytes, put_sums = f"@llvm.vector.insert.nxv16i8.v{16 * scale}i8", f"@llvm.vector.insert.nxv4i32.v{4 * scale}i32"
    take = f"@llvm.vector.extract.v{4 * scale}i32.nxv4i32"
    intrinsic = f"@llvm.aarch64.sve.{mnemonic}.nxv4i32"
    lines = [f"call {wide_sums} {put_sums}({wide_sums} poison, {sums} {{c}}, i64 0)"]
    lines += [f"call {wide_bytes} {put_bytes}({wide_bytes} poison, {bytes_} {{{x}}}, i64 0)" for x in "ab"]
    lines.append(f"call {wide_sums} {intrinsic}({wide_sums} {{0}}, {wide_bytes} {{1}}, {wide_bytes} {{2}})")
    lines.append(f"call {sums} {take}({wide_sums} {{3}}, i64 0)")
    declare = "\n".join((
        f"declare {wide_sums} {put_sums}({wide_sums}, {sums}, i64)",
        f"declare {wide_bytes} {put_bytes}({wide_bytes}, {bytes_}, i64)",
        f"declare {wide_sums} {intrinsic}({wide_sums}, {wide_bytes}, {wide_bytes})",
        f"declare {sums} {take}({wide_sums}, i64)",
    ))  # fmt: skip
    operands = tuple(vector(name, dtype, lanes, scalable=True) for name, dtype, lanes in kinds)
    needed = tuple(dict.fromkeys(("sve", needs)))
    return Instruction(f"{mnemonic}_z_{a}_{b}", operands, body, "\n".join(lines), declare, needed, mnemonic).at(scale)
