"""SME: outer products of vectors, which add to tiles of ZA.

A tile has as many rows as a vector has lanes of a sum, of 32 bits or of 64. An instruction multiplies every row of one
vector by every column of another one. Where a lane has several numbers, it adds up their products. Tiles of both widths
are parts of the same storage, but a kernel has sums of one type.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import FragmentFile, FragmentLayout, Instruction
from convsmith.ir.types import dtype
from convsmith.machine.base import fragment_dot
from convsmith.machine.rows import LLVM_TYPES

_UNIT = 128
"""Bits of a unit of a vector."""
_NAMES = {32: "tile", 64: "wide tile"}
"""Names of the tiles by the bits of a lane. As many tiles as a lane has bytes fill the storage."""
_KINDS = (
    ("fmopa", ("f32", "f32", "f32"), 1, "mopa"), ("fmopa", ("f64", "f64", "f64"), 1, "mopa"),
    ("bfmopa", ("bf16", "bf16", "f32"), 2, "mopa.wide"),
    ("fmopa", ("f16", "f16", "f32"), 2, "mopa.wide"), ("smopa", ("s8", "s8", "s32"), 4, "smopa.wide"),
    ("umopa", ("u8", "u8", "s32"), 4, "umopa.wide"), ("usmopa", ("u8", "s8", "s32"), 4, "usmopa.wide"),
    ("sumopa", ("s8", "u8", "s32"), 4, "sumopa.wide"),
)  # fmt: skip
"""Mnemonics, types, terms per lane, and names of the intrinsics."""
_SECOND = (("smopa", ("s16", "s16", "s32"), 2, "smopa.za32"),)
"""The products that the second version of the extension adds."""
_EVERY = "<vscale x {lanes} x i1> splat (i1 true)"


def rows(scale: int, second: bool = False) -> tuple[Instruction, ...]:
    """Return the rows of a machine whose streaming vectors have ``scale`` units, those of the ``second`` version of the
    extension among them.
    """
    more = (replace(_product(scale, *kind), needs=("sme2",)) for kind in _SECOND if second)
    return (*(_product(scale, *kind) for kind in _KINDS), *more)


def _product(scale: int, mnemonic: str, types: tuple[str, str, str], terms: int, intrinsic: str) -> Instruction:
    """Return the row of an instruction that adds ``terms`` products to each sum of a tile."""
    bits = dtype(types[2]).bits
    sums = _UNIT // bits
    side, lanes = sums * scale, sums * terms
    element = LLVM_TYPES[types[0]]
    numbered, factors = f"<{side * terms} x {element}>", f"<vscale x {lanes} x {element}>"
    put = f"@llvm.vector.insert.nxv{lanes}{_suffix(types[0])}.v{side * terms}{_suffix(types[0])}"
    call = f"@llvm.aarch64.sme.{intrinsic}.nxv{lanes}{_suffix(types[0])}"
    given, lines = ["{a}", "{b}"], []
    if terms == 2 and element != "i16":
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
        f"{mnemonic}_za_{types[0]}_{types[1]}", (side, 1, side, terms), types, "\n".join(lines), declare,
        ("sme", "sme-f64f64") if bits == 64 else ("sme",), mnemonic,
    )  # fmt: skip
    c, *read = row.operands
    in_vectors = (replace(x, layout=_layout(x.shape), file="vector") for x in read)
    return replace(row, operands=(replace(c, file=_NAMES[bits]), *in_vectors))


def _suffix(type_: str) -> str:
    """Return LLVM's suffix of intrinsics for the given type."""
    return {"s8": "i8", "u8": "i8", "s16": "i16"}.get(type_, type_)


def _layout(shape: tuple[int, ...]) -> FragmentLayout:
    """Return the layout of a matrix whose rows are adjacent in the lanes of one register."""
    rows, columns = shape
    return FragmentLayout((f"l // {columns}", f"l % {columns}"), rows * columns)


def tiles(scale: int) -> tuple[FragmentFile, ...]:
    """Return the tiles of ZA that have lanes of 32 bits, and those of 64."""
    return tuple(_tiles(scale, bits, letter) for bits, letter in ((32, "w"), (64, "d")))


def _tiles(scale: int, bits: int, letter: str) -> FragmentFile:
    """Return the tiles with lanes of ``bits``, whose moves have a ``letter`` in their names. The instruction that
    clears tiles has a mask with one bit per 64-bit tile, of which a tile of 32 bits is two.
    """
    every = _EVERY.format(lanes=_UNIT // bits)
    predicate = every.partition(" splat")[0]
    side, count, sme = _UNIT // bits * scale, bits // 8, "@llvm.aarch64.sme"
    mask = sum(1 << n for n in range(0, 8, count))
    move = f"({every}, ptr {{p}}, i32 {{r}}, i32 {{lane}})"
    return FragmentFile(
        name=_NAMES[bits], count=count, bits=side * side * bits, by_lane=True,
        zero=tuple(f"call void {sme}.zero(i32 {mask << n})" for n in range(count)),
        load=f"call void {sme}.ld1{letter}.horiz{move}", store=f"call void {sme}.st1{letter}.horiz{move}",
        declare=(
            f"declare void {sme}.zero(i32 immarg)",
            *(f"declare void {sme}.{x}1{letter}.horiz({predicate}, ptr, i32 immarg, i32)" for x in ("ld", "st")),
        ),
    )  # fmt: skip
