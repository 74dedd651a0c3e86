"""SME: outer products of vectors, which add to tiles of ZA.

A tile has as many rows as a vector has lanes of 32 bits. An instruction multiplies every row of one vector by every
column of another one. Where a lane has several numbers, it adds up their products.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import FragmentFile, FragmentLayout, Instruction
from convsmith.machine.base import fragment_dot
from convsmith.machine.rows import LLVM_TYPES

_LANES = 4
"""Lanes of 32 bits in a unit of a vector."""
_TILES = 4
_KINDS = (
    ("fmopa", ("f32", "f32", "f32"), 1, "mopa"), ("bfmopa", ("bf16", "bf16", "f32"), 2, "mopa.wide"),
    ("fmopa", ("f16", "f16", "f32"), 2, "mopa.wide"), ("smopa", ("s8", "s8", "s32"), 4, "smopa.wide"),
    ("umopa", ("u8", "u8", "s32"), 4, "umopa.wide"), ("usmopa", ("u8", "s8", "s32"), 4, "usmopa.wide"),
    ("sumopa", ("s8", "u8", "s32"), 4, "sumopa.wide"),
)  # fmt: skip
"""Mnemonics, types, terms per lane, and names of the intrinsics."""
_EVERY = "<vscale x {lanes} x i1> splat (i1 true)"


def rows(scale: int) -> tuple[Instruction, ...]:
    """Return the rows of a machine whose streaming vectors have ``scale`` units."""
    return tuple(_product(scale, *kind) for kind in _KINDS)


def _product(scale: int, mnemonic: str, types: tuple[str, str, str], terms: int, intrinsic: str) -> Instruction:
    """Return the row of an instruction that adds ``terms`` products to each sum of a tile."""
    side, lanes = _LANES * scale, _LANES * terms
    element = LLVM_TYPES[types[0]]
    numbered, factors = f"<{side * terms} x {element}>", f"<vscale x {lanes} x {element}>"
    put = f"@llvm.vector.insert.nxv{lanes}{_suffix(types[0])}.v{side * terms}{_suffix(types[0])}"
    call = f"@llvm.aarch64.sme.{intrinsic}.nxv{lanes}{_suffix(types[0])}"
    given, lines = ["{a}", "{b}"], []
    if terms == 2:
        lines = [f"bitcast <{side * terms} x i16> {{{x}}} to {numbered}" for x in "ab"]
        given = ["{0}", "{1}"]
    lines += [f"call {factors} {put}({factors} poison, {numbered} {x}, i64 0)" for x in given]
    every = _EVERY.format(lanes=lanes)
    vectors = ", ".join(f"{factors} {{{len(lines) - n}}}" for n in (2, 1))
    lines.append(f"call void {call}(i32 {{c}}, {every}, {every}, {vectors})")
    predicate = every.partition(" splat")[0]
    declare = (
        f"declare {factors} {put}({factors}, {numbered}, i64)\n"
        f"declare void {call}(i32 immarg, {predicate}, {predicate}, {factors}, {factors})"
    )
    row = fragment_dot(
        f"{mnemonic}_za_{types[0]}_{types[1]}", (side, 1, side, terms), types, "\n".join(lines), declare, ("sme",),
        mnemonic,
    )  # fmt: skip
    c, *read = row.operands
    return replace(row, operands=(c, *(replace(x, layout=_layout(x.shape), file="vector") for x in read)))


def _suffix(type_: str) -> str:
    """Return LLVM's suffix of intrinsics for the given type."""
    return {"s8": "i8", "u8": "i8"}.get(type_, type_)


def _layout(shape: tuple[int, ...]) -> FragmentLayout:
    """Return the layout of a matrix whose rows are adjacent in the lanes of one register."""
    rows, columns = shape
    return FragmentLayout((f"l // {columns}", f"l % {columns}"), rows * columns)


def tiles(scale: int) -> FragmentFile:
    """Return the tiles of ZA that have lanes of 32 bits. The instruction that clears tiles has a mask with one bit per
    64-bit tile.
    """
    every = _EVERY.format(lanes=_LANES)
    predicate = every.partition(" splat")[0]
    side, sme = _LANES * scale, "@llvm.aarch64.sme"
    move = f"({every}, ptr {{p}}, i32 {{r}}, i32 {{lane}})"
    return FragmentFile(
        name="tile", count=_TILES, bits=side * side * 32, by_lane=True,
        zero=tuple(f"call void {sme}.zero(i32 {0x11 << n})" for n in range(_TILES)),
        load=f"call void {sme}.ld1w.horiz{move}", store=f"call void {sme}.st1w.horiz{move}",
        declare=(
            f"declare void {sme}.zero(i32 immarg)",
            *(f"declare void {sme}.{x}1w.horiz({predicate}, ptr, i32 immarg, i32)" for x in ("ld", "st")),
        ),
    )  # fmt: skip
