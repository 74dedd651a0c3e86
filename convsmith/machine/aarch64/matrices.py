"""Products of matrices in vector registers: in each 128 bits two rows by two columns of sums, in two registers four
columns.

A row has both registers, so that rows of sums, which are stored after the products, fill a vector. The scalable row has
two registers of any length: every unit of 128 bits of the first factor is the same two rows, and the columns follow
each other in the units of the first register, then in those of the second. One permutation collects each row of sums
from both registers, in the order of the columns.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.instruction import FragmentLayout, Instruction, Operand
from convsmith.machine.base import fragment_dot

_ROWS, _COLUMNS = 2, 4
_PAIR = 2
"""Columns of a register of 128 bits."""
_SUMS = _ROWS * _PAIR
"""Sums of a register of 128 bits."""
_KINDS = (
    ("smmla", ("s8", "s8", "s32"), "i8mm"), ("ummla", ("u8", "u8", "s32"), "i8mm"),
    ("usmmla", ("u8", "s8", "s32"), "i8mm"), ("bfmmla", ("bf16", "bf16", "f32"), "bf16"),
)  # fmt: skip
"""Mnemonics, types and features."""


class _ProductText:
    """LLVM's types of a product: ``factor`` and ``number`` are the types of factors and sums, ``lanes`` the factors of
    128 bits.
    """

    def __init__(self, types: tuple[str, str, str]) -> None:
        self.has_bytes = types[0] != "bf16"
        self.factor, self.suffix, self.word = ("i8", "i8", "i8") if self.has_bytes else ("bfloat", "bf16", "i16")
        self.number, self.kind = ("i32", "i32") if self.has_bytes else ("float", "f32")
        self.lanes = 16 if self.has_bytes else 8
        self.terms = self.lanes // _ROWS

    def casts(self, a: str, b: str) -> list[str]:
        """Return the lines that turn the words of both factors, of vectors of so many lanes, into numbers."""
        if self.has_bytes:
            return []
        return [f"bitcast <{n} x {self.word}> {x} to <{n} x {self.factor}>" for n, x in ((a, "{a}"), (b, "{b}"))]


def _product(mnemonic: str, types: tuple[str, str, str], needs: str) -> Instruction:
    """Return the row of NEON, with its scalable row."""
    text = _ProductText(types)
    lanes, sums = text.lanes, f"<{_SUMS} x {text.number}>"
    every, factors = f"<{2 * _SUMS} x {text.number}>", f"<{lanes} x {text.factor}>"
    both = f"<{2 * lanes} x {text.factor}>"
    intrinsic = f"@llvm.aarch64.neon.{mnemonic}" + (".v4i32.v16i8" if text.has_bytes else "")
    lines = text.casts(f"{lanes}", f"{2 * lanes}")
    a, b = ("{a}", "{b}") if text.has_bytes else ("{0}", "{1}")
    n = len(lines)
    lines += [f"shufflevector {both} {b}, {both} poison, {_range(k * lanes, lanes)}" for k in range(2)]
    lines += [f"shufflevector {every} {{c}}, {every} poison, {_range(k * _SUMS, _SUMS)}" for k in range(2)]
    lines += [
        f"call {sums} {intrinsic}({sums} {{{n + 2 + k}}}, {factors} {a}, {factors} {{{n + k}}})" for k in range(2)
    ]
    lines.append(f"shufflevector {sums} {{{n + 4}}}, {sums} {{{n + 5}}}, {_range(0, 2 * _SUMS)}")
    row = fragment_dot(
        f"{mnemonic}_{_ROWS}x{_COLUMNS}", (_ROWS, 1, _COLUMNS, text.terms), types, "\n".join(lines),
        f"declare {sums} {intrinsic}({sums}, {factors}, {factors})", (needs,), mnemonic,
    )  # fmt: skip
    return replace(row, operands=tuple(_in_vectors(x) for x in row.operands))


def _range(first: int, count: int) -> str:
    """Return the mask of a shuffle that takes ``count`` lanes from ``first`` on."""
    return f"<{count} x i32> <{', '.join(f'i32 {first + n}' for n in range(count))}>"


def _in_vectors(operand: Operand) -> Operand:
    """Return an operand of two rows or of one, as vectors hold it."""
    rows, columns = operand.shape
    coords = (f"l // {columns}", f"l % {columns}") if rows > 1 else ("0", "l")
    if operand.name == "c":
        coords = (f"l // {_PAIR} % {_ROWS}", f"l // {_SUMS} * {_PAIR} + l % {_PAIR}")
    return replace(operand, layout=FragmentLayout(coords, operand.size), file="vector")


def _scalable(row: Instruction) -> Instruction:
    """Return the scalable row of one of NEON: of more columns, with the same rows of the first factor."""
    text = _ProductText((row.types[0], row.types[1], row.types[2]))
    lanes, sums = text.lanes, f"<vscale x {_SUMS} x {text.number}>"
    every, factors = f"<vscale x {2 * _SUMS} x {text.number}>", f"<vscale x {lanes} x {text.factor}>"
    both, one = f"<vscale x {2 * lanes} x {text.factor}>", f"<{lanes} x {text.factor}>"
    put, repeat = f"@llvm.vector.insert.nxv{lanes}{text.suffix}.v{lanes}{text.suffix}", "@llvm.aarch64.sve.dupq.lane"
    part_of, of_sums = f"nxv{lanes}{text.suffix}.nxv{2 * lanes}{text.suffix}", f"nxv{_SUMS}{text.kind}.nxv8{text.kind}"
    take, take_sums = f"@llvm.vector.extract.{part_of}", f"@llvm.vector.extract.{of_sums}"
    join = f"@llvm.vector.insert.nxv8{text.kind}.nxv{_SUMS}{text.kind}"
    call = f"@llvm.aarch64.sve.{row.mnemonic}" + (".nxv4i32" if text.has_bytes else "")
    lines = text.casts(f"{lanes}", f"vscale x {2 * lanes}")
    a, b = ("{a}", "{b}") if text.has_bytes else ("{0}", "{1}")
    n = len(lines)
    lines += [
        f"call {factors} {put}({factors} poison, {one} {a}, i64 0)",
        f"call {factors} {repeat}.nxv{lanes}{text.suffix}({factors} {{{n}}}, i64 0)",
        *(f"call {factors} {take}({both} {b}, i64 {k * lanes})" for k in range(2)),
        *(f"call {sums} {take_sums}({every} {{c}}, i64 {k * _SUMS})" for k in range(2)),
        *(
            f"call {sums} {call}({sums} {{{n + 4 + k}}}, {factors} {{{n + 1}}}, {factors} {{{n + 2 + k}}})"
            for k in range(2)
        ),
        f"call {every} {join}({every} poison, {sums} {{{n + 6}}}, i64 0)",
        f"call {every} {join}({every} {{{n + 8}}}, {sums} {{{n + 7}}}, i64 {_SUMS})",
    ]
    declare = "\n".join((
        f"declare {factors} {put}({factors}, {one}, i64)",
        f"declare {factors} {repeat}.nxv{lanes}{text.suffix}({factors}, i64)",
        f"declare {factors} {take}({both}, i64)", f"declare {sums} {take_sums}({every}, i64)",
        f"declare {every} {join}({every}, {sums}, i64)", f"declare {sums} {call}({sums}, {factors}, {factors})",
    ))  # fmt: skip
    operands = tuple(x if x.name == "a" else replace(x, layout=replace(x.layout, scalable=True)) for x in row.operands)
    body = row.body.replace(f"l in 0 .. {_COLUMNS}:", f"l in 0 .. vscale * {_COLUMNS}:")
    return replace(
        row, name=f"{row.mnemonic}_z_{_ROWS}x{_COLUMNS}", operands=operands, body=body, llvm="\n".join(lines),
        declare=declare, needs=("sve", *row.needs),
    )  # fmt: skip


INSTRUCTIONS = tuple(_product(*kind) for kind in _KINDS)
SCALED = tuple(replace(row, scaled=_scalable(row)) for row in INSTRUCTIONS)
"""Rows of NEON, each with the scalable row that applies it to every unit."""
