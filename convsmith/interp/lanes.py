"""Statements and values on vectors that are executed for some of their lanes."""

from __future__ import annotations

from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Invoke, Stmt, Store
from convsmith.ir.value import Lanes, Load, Value

__all__ = ["read_within_lanes", "stored", "within_lanes"]


def stored(s: Store | Invoke) -> Load:
    """Return the access to what a statement writes."""
    return s.dst if isinstance(s, Invoke) else Load(s.buffer, s.index, s.lanes)


def within_lanes(s: Store | Invoke, low: int, end: int) -> Store | Invoke:
    """Return ``s``, whose accesses to memory touch the lanes from ``low`` to before ``end`` alone. An element that all
    lanes read is read in any case.
    """
    found = _Within(low, end).stmt(s)
    assert isinstance(found, Store | Invoke)
    return found


def read_within_lanes(v: Value, low: int, end: int) -> Value:
    """Return ``v``, whose accesses to memory touch the lanes from ``low`` to before ``end`` alone; the others are zero.
    """
    found: Value = _Within(low, end).expr(v)
    return found


class _Within(Rewriter):
    def __init__(self, low: int, end: int) -> None:
        super().__init__()
        self.low, self.end = low, end

    def lanes(self, lanes: Lanes) -> Lanes:
        return Lanes(lanes.offsets, min(lanes.active, self.end), max(lanes.first, self.low))

    def visit_Load(self, v: Load) -> Value:
        if v.lanes is None or v.buffer.scope == "register" or not any(v.lanes.offsets):
            return v
        return Load(v.buffer, v.index, self.lanes(v.lanes))

    def visit_Store(self, s: Store) -> Stmt:
        lanes = s.lanes if s.lanes is None or s.buffer.scope == "register" else self.lanes(s.lanes)
        return Store(s.buffer, s.index, self.expr(s.value), lanes)
