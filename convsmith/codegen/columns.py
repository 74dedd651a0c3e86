"""Loads whose lanes are the columns of several rows in memory, one column after the other.

A dot product of channels that are adjacent in memory, with terms that are pixels apart, reads such lanes. Rows are
loaded as vectors and interleaved, in as many stages as the number of rows has factors of two. Loads of neighbouring
columns in the same statements share these vectors, and rows that are terms of several pixels are loaded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from convsmith.codegen.gathers import Gathered, gathered_from, gathers_of
from convsmith.codegen.shuffles import ShuffleEmitter
from convsmith.ir.stmt import Invoke, Stmt
from convsmith.ir.types import DType

__all__ = ["Columns", "Group", "Groups", "columns_of", "groups_of", "interleaved"]


class Columns(NamedTuple):
    """``number`` columns of ``rows`` rows, which are ``distance`` elements apart."""

    number: int
    rows: int
    distance: int


Group = tuple[int, int]
"""The constant offset of the first of adjacent columns, and their number."""
Groups = dict[tuple[Gathered, Columns, int], Group]
"""The group of each load of columns, by its constant offset."""


@lru_cache(maxsize=1024)
def columns_of(offsets: tuple[int, ...]) -> Columns | None:
    """Return the columns whose elements have ``offsets``; None unless there are several, of a power of two of rows."""
    rows = next((n for n, x in enumerate(offsets) if x == 1), 0)
    if rows < 2 or rows & (rows - 1) or len(offsets) % rows or len(offsets) == rows:
        return None
    found = Columns(len(offsets) // rows, rows, offsets[1])
    each = tuple(column + row * found.distance for column in range(found.number) for row in range(rows))
    return found if abs(found.distance) > 1 and each == offsets else None


def groups_of(stmts: Sequence[Stmt]) -> Groups:
    """Return the groups of columns that statements load which all run, of at most a vector of elements of a row."""
    starts: dict[tuple[Gathered, Columns], set[int]] = {}
    for v in gathers_of([s for s in stmts if isinstance(s, Invoke)]):
        if v.lanes is not None and (columns := columns_of(v.lanes.offsets)) is not None:
            starts.setdefault((gathered_from(v), columns), set()).add(v.index[0].const)
    groups: Groups = {}
    for (key, columns), places in starts.items():
        left = set(places)
        for start in sorted(places):
            if start not in left:
                continue
            run = columns.rows
            while not {start + n * columns.number for n in range(run)} <= left:
                run //= 2
            members = [start + n * columns.number for n in range(run)]
            left -= {*members}
            groups |= {(key, columns, x): (start, run * columns.number) for x in members}
    return groups


def interleaved(emit: ShuffleEmitter, t: DType, rows: Sequence[str], width: int, part: int, most: int) -> str:
    """Return the vector number ``part`` of the columns of ``rows``, which are vectors of ``width`` elements; vectors of
    several rows have ``most`` elements at most.
    """
    if len(rows) == 1:
        return rows[0]
    unit = len(rows) // 2
    given, made = min(width * unit, most), min(width * 2 * unit, most)
    columns, each = made // (2 * unit), given // unit
    source, first = divmod(part * columns, each)
    a, b = (interleaved(emit, t, half, width, source, most) for half in (rows[:unit], rows[unit:]))
    key = ("interleaved", t, a, b, first)
    found = emit.known.get(key)
    if found is None:
        places = [
            start + (first + n) * unit + i for n in range(columns) for start in (0, given) for i in range(unit)
        ]  # fmt: skip
        found = emit.shuffle(t, given, a, b, places)
        emit.known.set(key, found)
    return found
