"""Fragments in vector registers: their rows in memory, and the lanes that hold them.

The layout of an operand says which lane holds each element. Rows whose lanes alternate in a scalable register, such as
two rows in pairs of lanes, are interleaved and separated as numbers of so many bits, which LLVM does in registers of
any length.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from convsmith.diag.errors import InternalError
from convsmith.ir.instruction import FragmentLayout, Operand
from convsmith.ir.stmt import Store
from convsmith.ir.types import DType
from convsmith.ir.value import Lanes, Load, strided


@cache
def lanes_by_row(layout: FragmentLayout) -> tuple[int, ...]:
    """Return the lane of each element, rows following each other."""
    return tuple([lane for _, (_, lane, _) in sorted(layout.places().items())])


def load_fragment(emit: Any, v: Load, operand: Operand) -> str:
    """Return the register of a fragment in memory. Its last rows may be absent, and are zero."""
    lanes, layout, (_, columns) = v.lanes, operand.layout, operand.shape
    assert lanes is not None
    if emit.scalable and layout.scalable and operand.shape[0] > 1:
        rows = [emit.load(Load(v.buffer, at, strided(columns, 1))) for at in _rows(v, lanes, columns)]
        rows += ["zeroinitializer"] * (operand.shape[0] - len(rows))
        return _interleaved(emit, v.buffer.dtype, rows, operand)
    scalable, emit.scalable = emit.scalable, emit.scalable and layout.scalable
    _, width, _ = lanes.rows or (1, lanes.count, 0)
    x = emit.value(v, lanes.count) if width == lanes.count else emit.load_rows(v, lanes, width)
    emit.scalable = scalable
    places = lanes_by_row(layout)
    if places == (*range(lanes.count),):
        return str(x)
    return str(emit.shuffle(v.buffer.dtype, lanes.count, x, "poison", _inverse(places)))


def store_fragment(emit: Any, s: Store, operand: Operand) -> None:
    """Store the register of a fragment. Its last rows may be absent."""
    assert isinstance(s.value, Load) and s.lanes is not None
    t, lanes, places, (_, columns) = s.buffer.dtype, s.lanes, lanes_by_row(operand.layout), operand.shape
    if not emit.scalable and lanes.stride == 1 and places == (*range(lanes.count),):
        emit.store(s.buffer, s.index, lanes, emit.value(s.value, lanes.count))
        return
    x, stored = emit.value(s.value, lanes.count), _rows(Load(s.buffer, s.index, lanes), lanes, columns)
    if emit.scalable:
        rows: Sequence[str] = _separated(emit, t, x, operand)
    else:
        rows = [
            emit.shuffle(t, lanes.count, x, "poison", places[n * columns : (n + 1) * columns])
            for n in range(len(stored))
        ]
    for at, row in zip(stored, rows):
        emit.store(s.buffer, at, strided(columns, 1), row)


def _rows(v: Load, lanes: Lanes, columns: int) -> list[tuple[Any]]:
    """Return the places in memory of the rows of a fragment that are accessed."""
    return [(v.index[0] + lanes.offsets[first],) for first in range(0, lanes.active, columns)]


def _inverse(places: Sequence[int]) -> list[int]:
    """Return the number of the element that each lane holds."""
    return sorted(range(len(places)), key=places.__getitem__)


class _Alternation(NamedTuple):
    """LLVM's types of a ``row`` and of a ``whole`` register, as elements and as numbers that hold adjacent lanes of a
    row; ``suffix`` ends the names of intrinsics on a whole register of numbers.
    """

    row: str
    row_numbers: str
    whole: str
    numbers: str
    suffix: str


def _alternation(emit: Any, t: DType, operand: Operand) -> _Alternation:
    """Return the types by which rows alternate in the lanes of a register."""
    rows, columns = operand.shape
    run = next((n for n in range(1, columns) if operand.layout.places()[0, n][1] != n), columns)
    wanted = tuple(k * rows * run + n * run + m for n in range(rows) for k in range(columns // run) for m in range(run))
    if lanes_by_row(operand.layout) != wanted:
        raise InternalError(f"rows of {operand} do not alternate in the lanes of a register")
    number, count = f"i{run * t.bits}", columns // run
    return _Alternation(
        emit.type(t, columns), emit.vector(number, count), emit.type(t, rows * columns),
        emit.vector(number, rows * count), f"{emit.letters(rows * count)}{number}",
    )  # fmt: skip


def _interleaved(emit: Any, t: DType, rows: Sequence[str], operand: Operand) -> str:
    row, numbers, whole, every, suffix = _alternation(emit, t, operand)
    name = f"@llvm.vector.interleave{len(rows)}.{suffix}"
    emit.declared[f"declare {every} {name}({', '.join([numbers] * len(rows))})"] = None
    given = ", ".join([f"{numbers} {emit.put(f'bitcast {row} {x} to {numbers}')}" for x in rows])
    return str(emit.put(f"bitcast {every} {emit.put(f'call {every} {name}({given})')} to {whole}"))


def _separated(emit: Any, t: DType, x: str, operand: Operand) -> list[str]:
    row, numbers, whole, every, suffix = _alternation(emit, t, operand)
    count = operand.shape[0]
    parts = f"{{ {', '.join([numbers] * count)} }}"
    name = f"@llvm.vector.deinterleave{count}.{suffix}"
    emit.declared[f"declare {parts} {name}({every})"] = None
    found = emit.put(f"call {parts} {name}({every} {emit.put(f'bitcast {whole} {x} to {every}')})")
    taken = [emit.put(f"extractvalue {parts} {found}, {n}") for n in range(count)]
    return [str(emit.put(f"bitcast {numbers} {part} to {row}")) for part in taken]
