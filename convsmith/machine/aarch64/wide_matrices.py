"""Products of matrices in vector registers of SVE: in each unit of 128 bits two rows by two columns of sums.

All units multiply rows of their own by the same two columns, which are repeated.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import FragmentLayout, Instruction
from convsmith.machine.base import fragment_dot

_SIDE = 2
_UNIT = 16
"""Bytes of a unit."""
_SVE = "@llvm.aarch64.sve"


def rows(scale: int) -> tuple[Instruction, ...]:
    """Return the rows of a machine whose vectors have ``scale`` units."""
    return (
        _product("smmla", ("s8", "s8", "s32"), scale, "i8mm"), _product("ummla", ("u8", "u8", "s32"), scale, "i8mm"),
        _product("usmmla", ("u8", "s8", "s32"), scale, "i8mm"),
        _product("bfmmla", ("bf16", "bf16", "f32"), scale, "bf16"),
    )  # fmt: skip


def _product(mnemonic: str, types: tuple[str, str, str], scale: int, needs: str) -> Instruction:
    """Return the row of an instruction that adds as many products to each sum as half a unit has factors."""
    is_bytes = types[0] != "bf16"
    element, suffix, lanes = ("i8", "i8", _UNIT) if is_bytes else ("bfloat", "bf16", _UNIT // 2)
    number, kind = ("i32", "i32") if is_bytes else ("float", "f32")
    terms, sums = lanes // _SIDE, _SIDE * _SIDE
    factors, products = f"<vscale x {lanes} x {element}>", f"<vscale x {sums} x {number}>"
    one, every, fixed = f"<{lanes} x {element}>", f"<{lanes * scale} x {element}>", f"<{sums * scale} x {number}>"
    put_one, put_every, put_sums, take = (
        f"@llvm.vector.insert.nxv{lanes}{suffix}.v{lanes}{suffix}",
        f"@llvm.vector.insert.nxv{lanes}{suffix}.v{lanes * scale}{suffix}",
        f"@llvm.vector.insert.nxv{sums}{kind}.v{sums * scale}{kind}",
        f"@llvm.vector.extract.v{sums * scale}{kind}.nxv{sums}{kind}",
    )
    repeat = f"{_SVE}.dupq.lane.nxv{lanes}{suffix}"
    call = f"{_SVE}.{mnemonic}" + (".nxv4i32" if is_bytes else "")
    lines, a, b = [], "{a}", "{b}"
    if not is_bytes:
        lines = [f"bitcast <{lanes * scale} x i16> {{a}} to {every}", f"bitcast <{lanes} x i16> {{b}} to {one}"]
        a, b = "{0}", "{1}"
    n = len(lines)
    lines += [
        f"call {factors} {put_one}({factors} poison, {one} {b}, i64 0)",
        f"call {factors} {repeat}({factors} {{{n}}}, i64 0)",
        f"call {factors} {put_every}({factors} poison, {every} {a}, i64 0)",
        f"call {products} {put_sums}({products} poison, {fixed} {{c}}, i64 0)",
        f"call {products} {call}({products} {{{n + 3}}}, {factors} {{{n + 2}}}, {factors} {{{n + 1}}})",
        f"call {fixed} {take}({products} {{{n + 4}}}, i64 0)",
    ]
    declare = "\n".join((
        f"declare {factors} {put_one}({factors}, {one}, i64)", f"declare {factors} {repeat}({factors}, i64)",
        f"declare {factors} {put_every}({factors}, {every}, i64)",
        f"declare {products} {put_sums}({products}, {fixed}, i64)",
        f"declare {products} {call}({products}, {factors}, {factors})",
        f"declare {fixed} {take}({products}, i64)",
    ))  # fmt: skip
    row = fragment_dot(
        f"{mnemonic}_z_{_SIDE * scale}x{_SIDE}", (_SIDE * scale, 1, _SIDE, terms), types, "\n".join(lines), declare,
        ("sve", needs), mnemonic,
    )  # fmt: skip
    return replace(row, operands=tuple(replace(x, layout=_layout(x.shape), file="vector") for x in row.operands))


def _layout(shape: tuple[int, ...]) -> FragmentLayout:
    """Return the layout of a matrix whose rows are adjacent in the lanes of one register."""
    rows, columns = shape
    return FragmentLayout((f"l // {columns}", f"l % {columns}"), rows * columns)
