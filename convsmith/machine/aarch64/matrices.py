"""Products of matrices in vector registers of 128 bits: two rows by two columns of sums in a register."""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import FragmentLayout, Instruction
from convsmith.machine.base import fragment_dot

_SIDE = 2


def _product(mnemonic: str, types: tuple[str, str, str], terms: int, needs: str) -> Instruction:
    """Return the row of an instruction of ``terms`` products for each sum; both factors are row-major."""
    lanes = _SIDE * terms
    given, factors, sums = ["{a}", "{b}"], f"<{lanes} x i8>", f"<{_SIDE * _SIDE} x i32>"
    lines, intrinsic = [], f"@llvm.aarch64.neon.{mnemonic}.v4i32.v16i8"
    if types[0] == "bf16":
        lines = [f"bitcast <{lanes} x i16> {{{x}}} to <{lanes} x bfloat>" for x in "ab"]
        given, factors, sums = ["{0}", "{1}"], f"<{lanes} x bfloat>", f"<{_SIDE * _SIDE} x float>"
        intrinsic = f"@llvm.aarch64.neon.{mnemonic}"
    lines.append(f"call {sums} {intrinsic}({sums} {{c}}, {', '.join(f'{factors} {x}' for x in given)})")
    row = fragment_dot(
        f"{mnemonic}_{_SIDE}x{_SIDE}", (_SIDE, 1, _SIDE, terms), types, "\n".join(lines),
        f"declare {sums} {intrinsic}({sums}, {factors}, {factors})", (needs,), mnemonic,
    )  # fmt: skip
    return replace(row, operands=tuple(replace(x, layout=_layout(x.shape), file="vector") for x in row.operands))


def _layout(shape: tuple[int, ...]) -> FragmentLayout:
    """Return the layout of a matrix whose rows are adjacent in the lanes of one register."""
    rows, columns = shape
    return FragmentLayout((f"l // {columns}", f"l % {columns}"), rows * columns)


INSTRUCTIONS = (
    _product("smmla", ("s8", "s8", "s32"), 8, "i8mm"),
    _product("ummla", ("u8", "u8", "s32"), 8, "i8mm"),
    _product("usmmla", ("u8", "s8", "s32"), 8, "i8mm"),
    _product("bfmmla", ("bf16", "bf16", "f32"), 4, "bf16"),
)
