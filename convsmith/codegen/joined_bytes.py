"""Adjacent stores of bytes, each of the lanes of a register of s32, as one store.

Instructions that saturate s32 to s16, and s16 to bytes, take two registers each. Four registers of sums become one of
bytes by three of them, where each register alone takes two and a store of a part of its result.
"""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.ir.instruction import Narrowing
from convsmith.ir.stmt import Stmt, Store
from convsmith.ir.value import Cast
from convsmith.ir.walk import loads_of

__all__ = ["joined_stores"]

REGISTERS = 4
"""Registers of s32 whose bytes fill a register."""


def joined_stores(statements: Sequence[Stmt], first: int, form: Narrowing | None) -> list[Store]:
    """Return the ``statements`` from the ``first`` on that store adjacent bytes of several registers, two or four, if
    ``form`` narrows these; empty if there are none. No value is read from the array that they store to.
    """
    found: list[Store] = []
    for s in statements[first : first + REGISTERS] if form is not None else ():
        assert form is not None
        if not isinstance(s, Store) or s.lanes is None or not isinstance(s.value, Cast):
            break
        if s.lanes.count != form.lanes or s.lanes.stride != 1 or not s.lanes.is_whole or s.buffer.scope == "register":
            break
        if s.buffer.dtype.name not in dict(form.bytes) or any(x.buffer is s.buffer for x in loads_of(s.value)):
            break
        if found and (s.buffer is not found[0].buffer or not _follows(s, found[0], len(found) * form.lanes)):
            break
        found.append(s)
    return found if len(found) == REGISTERS else found[: len(found) // 2 * 2]


def _follows(s: Store, first: Store, away: int) -> bool:
    """Return whether ``s`` stores ``away`` elements behind the ``first`` store."""
    *outer, last = s.index
    *same, start = first.index
    distance = last - start
    return outer == same and distance.is_const and distance.const == away
