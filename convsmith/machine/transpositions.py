"""Instruction rows that transpose in registers, for packing operands whose adjacent elements are far apart in the
original.

Each row consists of shuffles that LLVM maps to instructions: within 128 bits, or of blocks of 128 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import prod
from typing import overload

from convsmith.diag.record import record
from convsmith.ir.instruction import Instruction, vector
from convsmith.ir.types import dtype

BLOCK = 128
"""Bits within which a shuffle moves bytes freely."""

MAX_READ_STRIDE = 2
"""Maximum distance of neighbouring elements that are read as a vector."""

_WHOLE = (("f32", 1), ("s32", 1), ("f64", 1))
_NARROW = ("bf16", "f16", "u8", "s8")
"""Types of results that are narrower than their sums, whose tiles are as high as a vector of sums has lanes."""
_GROUPED = (("bf16", 2), ("u8", 4), ("s8", 4), ("u8", 2), ("s8", 2))
"""Types, with the number of adjacent elements that move as a unit: the terms of a dot-product instruction."""


@record(frozen=True)
class Transpositions(Sequence[Instruction]):
    """The rows for a machine with vectors of ``bits`` bits, made when they are first asked for.

    ``mnemonics`` must appear in the assembly of a square transposition, and of a join of four rows (for two rows LLVM
    has a choice); without the second mnemonic there are no groups.
    """

    bits: int
    needs: tuple[str, ...]
    mnemonics: tuple[str, str]

    def __len__(self) -> int:
        return len(_rows(self))

    def __iter__(self) -> Iterator[Instruction]:
        return iter(_rows(self))

    @overload
    def __getitem__(self, index: int) -> Instruction: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Instruction]: ...

    def __getitem__(self, index: int | slice) -> Instruction | Sequence[Instruction]:
        return _rows(self)[index]


@cache  # levels of one vector width have the same rows
def _rows(of: Transpositions) -> tuple[Instruction, ...]:
    lanes, needs, (within, across) = of.bits // 32, of.needs, of.mnemonics
    rows = [_square(name, of.bits // dtype(name).bits, 1, needs, within) for name, _ in _WHOLE]
    rows += [_square(name, lanes, 1, needs, within) for name in _NARROW]
    if across:
        rows += [_square(name, lanes, group, needs, within) for name, group in _GROUPED]
        rows += [_tall(name, lanes * group, needs, within) for name, group in _GROUPED]
        rows += [_interleaved(name, group, lanes, needs, across if group > 2 else "") for name, group in _GROUPED]
    return tuple({row.name: row for row in rows}.values())


def tile_shape(row: Instruction) -> tuple[int, int, int]:
    """Return the rows of the operand that `row` transposes, the groups per row and the elements per group."""
    height, width = row.operands[1].shape
    written, read = row.steps(0), row.steps(1)
    group = prod(size for var, size in row.loops.items() if written.get(var) == read.get(var))
    return height, width // group, group


def square_transposition(rows: Iterable[Instruction], type_: str, side: int) -> Instruction | None:
    """Return the row of ``rows`` that transposes ``side`` rows of ``side`` single elements; None if there is none."""
    found = (row for row in rows if row.result.dtype == type_ and not is_joined(row))
    return next((row for row in found if tile_shape(row) == (side, side, 1)), None)


def is_joined(row: Instruction) -> bool:
    """Return whether `row` writes one vector, in which the columns of its operand are concatenated."""
    return row.result.layout.registers == 1


@cache  # most shuffles of a row have one of two masks
def _mask(places: tuple[int, ...]) -> str:
    return f"<{len(places)} x i32> <{', '.join([f'i32 {i}' for i in places])}>"


class _Text:
    """Expressions, numbered in the order in which they are added."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared = ""

    def put(self, line: str) -> str:
        self.lines.append(line)
        return f"{{{len(self.lines) - 1}}}"

    def cast(self, type_: str, x: str, wanted: str) -> str:
        """Return the bits of ``x`` as a value of the type ``wanted``."""
        return x if type_ == wanted else self.put(f"bitcast {type_} {x} to {wanted}")

    def shuffle(self, type_: str, a: str, b: str, places: Sequence[int]) -> str:
        return self.put(f"shufflevector {type_} {a}, {type_} {b}, {_mask(tuple(places))}")

    def fenced(self, type_: str, row: str, doubles: int) -> str:
        """Return ``row`` as a vector of ``doubles`` with a fence that generates no code. Without the fence, LLVM tries
        to merge the shuffles on both sides, which takes half of the time to compile a packing kernel.
        """
        lanes, fence = f"<{doubles} x double>", f"@llvm.arithmetic.fence.v{doubles}f64"
        self.declared = f"declare {lanes} {fence}({lanes})"
        return self.put(f"call {lanes} {fence}({lanes} {self.cast(type_, row, lanes)})")

    def text(self) -> str:
        return "\n".join(self.lines)


def _square(type_: str, side: int, group: int, needs: tuple[str, ...], mnemonic: str) -> Instruction:
    """Return the row that transposes ``side`` rows of ``side`` groups."""
    t = dtype(type_)
    name = f"transpose_{side}x{side}" + (f"x{group}" if group > 1 else "") + f"_{type_}"
    given = f"<{side * group} x {t.llvm}>"
    units = f"<{side} x i{t.bits * group}>" if group > 1 else given
    text = _Text()
    rows = [text.cast(given, f"{{a{n}}}", units) for n in range(side)]
    within = min(side, BLOCK // (t.bits * group))
    transposed = _within_blocks(text, units, rows, side, within)
    if side > within:
        doubles = side * group * t.bits // 64
        near = [text.fenced(units, row, doubles) for row in transposed]
        units = f"<{doubles} x double>"
        transposed = _across_blocks(text, units, near, within)
    for row in transposed:
        text.cast(units, row, given)
    if group > 1:
        body = (
            f"  for k in 0 .. {side}:\n"
            f"    for m in 0 .. {side}:\n"
            f"      for r in 0 .. {group}:\n"
            f"        c[k, m * {group} + r] = a[m, k * {group} + r]\n"
        )
    else:
        body = (
            f"  for k in 0 .. {side}:\n"
            f"    for m in 0 .. {side}:\n"
            f"      c[k, m] = a[m, k]\n"
        )
    operands = (vector("c", type_, side, side * group), vector("a", type_, side, side * group))
    return Instruction(name, operands, body, text.text(), text.declared, needs, mnemonic)


def _within_blocks(text: _Text, type_: str, rows: list[str], side: int, within: int) -> list[str]:
    """Transpose each block of 128 bits among as many rows as the block has elements.

    Interleaving row ``i`` with row ``i + half``, repeated log2 times, is a transposition.
    """
    half = within // 2
    halves = [
        [block + start + i // 2 + side * (i % 2) for block in range(0, side, within) for i in range(within)]
        for start in (0, half)
    ]
    out: list[str] = []
    for first in range(0, len(rows), within):
        part = rows[first : first + within]
        for _ in range(within.bit_length() - 1):
            pairs = [(part[i], part[i + half]) for i in range(half)]
            part = [text.shuffle(type_, a, b, places) for a, b in pairs for places in halves]
        out += part
    return out


def _across_blocks(text: _Text, type_: str, rows: list[str], within: int) -> list[str]:
    """Transpose blocks of 128 bits, ``within`` rows for each block of a row: each row gets the blocks at one position
    of all rows. The last lines are the rows, in order.

    Taking even and odd blocks of adjacent rows, repeated log2 times, is a transposition. A block is two doubles,
    because LLVM takes less time for shuffles of fewer lanes.
    """
    count = len(rows) // within
    parities = [tuple(2 * block + i for block in range(odd, 2 * count, 2) for i in (0, 1)) for odd in (0, 1)]
    pairs = range(0, count, 2)
    parts = [rows[place::within] for place in range(within)]
    for _ in range(count.bit_length() - 2):
        parts = [
            [text.shuffle(type_, part[i], part[i + 1], places) for places in parities for i in pairs] for part in parts
        ]
    last = [(places, i, part) for places in parities for i in pairs for part in parts]
    return [text.shuffle(type_, part[i], part[i + 1], places) for places, i, part in last]


def _tall(type_: str, side: int, needs: tuple[str, ...], mnemonic: str) -> Instruction:
    """Return the row for ``side`` rows of 16 elements, which fill a vector; blocks of distant rows become adjacent."""
    t = dtype(type_)
    columns, within = 16, min(side, BLOCK // t.bits)
    name = f"transpose_{side}x{columns}_{type_}"
    text, transposed = _Text(), []
    for start in range(0, columns, within):
        blocks = [
            text.shuffle(f"<{columns} x {t.llvm}>", f"{{a{n}}}", "poison", range(start, start + within))
            if within < columns else f"{{a{n}}}" for n in range(side)
        ]  # fmt: skip
        rows = [_side_by_side(text, t.llvm, blocks[n::within], within) for n in range(within)]
        transposed += _within_blocks(text, f"<{side} x {t.llvm}>", rows, side, within)
    for row in transposed:
        text.put(f"bitcast <{side} x {t.llvm}> {row} to <{side} x {t.llvm}>")
    body = (
        f"  for k in 0 .. {columns}:\n"
        f"    for m in 0 .. {side}:\n"
        f"      c[k, m] = a[m, k]\n"
    )
    operands = (vector("c", type_, columns, side), vector("a", type_, side, columns))
    return Instruction(name, operands, body, text.text(), "", needs, mnemonic)


def _side_by_side(text: _Text, element: str, parts: list[str], size: int) -> str:
    while len(parts) > 1:
        kind = f"<{size} x {element}>"
        parts = [text.shuffle(kind, a, b, range(2 * size)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        size *= 2
    return parts[0]


def _interleaved(type_: str, rows: int, columns: int, needs: tuple[str, ...], mnemonic: str) -> Instruction:
    """Return the row that interleaves ``rows`` rows into one vector, so that elements of one column are adjacent.

    First each block of 128 bits receives its columns of all rows; then elements are ordered within each block.
    """
    t = dtype(type_)
    name = f"interleave_{rows}x{columns}_{type_}"
    text = _Text()
    whole, size = _side_by_side(text, t.llvm, [f"{{a{n}}}" for n in range(rows)], columns), rows * columns
    kind = f"<{size} x {t.llvm}>"
    blocks = max(1, size * t.bits // BLOCK)
    width = columns // blocks
    chunks = [row * columns + block * width + i for block in range(blocks) for row in range(rows) for i in range(width)]
    # LLVM would merge the two into one shuffle, for which most machines have no instruction.
    near = text.put(f"freeze {kind} {text.shuffle(kind, whole, 'poison', chunks)}")
    text.shuffle(kind, near, "poison", [
        block * rows * width + row * width + i for block in range(blocks) for i in range(width) for row in range(rows)
    ])  # fmt: skip
    body = (
        f"  for k in 0 .. {columns}:\n"
        f"    for m in 0 .. {rows}:\n"
        f"      c[0, k * {rows} + m] = a[m, k]\n"
    )
    operands = (vector("c", type_, 1, rows * columns), vector("a", type_, rows, columns))
    return Instruction(name, operands, body, text.text(), "", needs, mnemonic)
