"""Combine the horizontal sums of several accumulators into one vector.

After unrolling, the write-back of partial sums is a sequence of statements, each of which sums the lanes of one
accumulator and stores the result.  Statements that differ only by constant distances are combined: their sums become
the lanes of a vector, and the epilogue (bias, post-ops, store) works on vectors too.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Alloc, Block, Kernel, Stmt, Store, block
from convsmith.ir.value import Binary, Const, Lanes, Load, Repeat, Sum, Sums, Value
from convsmith.ir.walk import walk
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import each_body


class _Total(NamedTuple):
    """A store that uses ``read``, the horizontal sum of ``vector``."""

    store: Store
    read: Load
    vector: Value


def _total(s: Stmt) -> _Total | None:
    if not (isinstance(s, Alloc) and isinstance(s.body, Block) and len(s.body.stmts) == 3):
        return None
    zero, add, store = s.body.stmts
    if not (isinstance(zero, Store) and isinstance(add, Store) and isinstance(store, Store)):
        return None
    if zero.buffer is not s.buffer or add.buffer is not s.buffer or store.lanes is not None:
        return None
    if not (isinstance(zero.value, Const) and zero.value.value == 0):
        return None
    v = add.value
    if not (isinstance(v, Binary) and v.op == "add" and isinstance(v.a, Load) and isinstance(v.b, Sum)):
        return None
    return _Total(store, v.a, v.b.a) if v.a.buffer is s.buffer else None


def _distance(a: tuple[Index, ...], b: tuple[Index, ...]) -> int | None:
    if len(a) != 1 or len(b) != 1:
        return None
    d = b[0] - a[0]
    return d.const if d.is_const else None


def _merge(values: list[Value], totals: list[_Total]) -> Value | None:
    """Return a value whose lanes are ``values``; None if they differ in structure."""
    first = values[0]
    if first is totals[0].read:
        alike = all(v is t.read for v, t in zip(values, totals))
        return Sums(tuple(t.vector for t in totals)) if alike else None
    if isinstance(first, Const):
        return first if all(v is first for v in values) else None
    if isinstance(first, Load):
        if any(not isinstance(v, Load) or v.buffer is not first.buffer or v.lanes for v in values):
            return None
        steps = [_distance(first.index, v.index) for v in values]  # type: ignore[attr-defined]
        if any(d is None for d in steps):
            return None
        return Load(first.buffer, first.index, Lanes(tuple(steps), len(steps)))  # type: ignore[arg-type]
    if isinstance(first, (Repeat, Sum, Sums)) or any(type(v) is not type(first) for v in values):
        return None
    fields: list[Any] = []
    names: tuple[str, ...] = type(first).__match_args__
    for name in names:
        parts = [getattr(v, name) for v in values]
        part = _merge(parts, totals) if isinstance(parts[0], Value) else parts[0]
        if part is None or (part is parts[0] and any(p != part for p in parts)):
            return None
        fields.append(part)
    return type(first)(*fields)


def _together(totals: list[_Total]) -> Store | None:
    first = totals[0].store
    if any(t.store.buffer is not first.buffer for t in totals):
        return None
    steps = [_distance(first.index, t.store.index) for t in totals]
    if any(d is None for d in steps) or len(set(steps)) < len(steps):
        return None
    read = (x for t in totals for v in (t.store.value, t.vector) for x in walk(v) if isinstance(x, Load))
    if any(x.buffer is first.buffer for x in read):
        return None
    value = _merge([t.store.value for t in totals], totals)
    return None if value is None else Store(first.buffer, first.index, value, Lanes(tuple(steps), len(steps)))  # type: ignore[arg-type]


class _SumTogether(Rewriter):
    def __init__(self, lanes: int) -> None:
        super().__init__()
        self.lanes = lanes

    def visit_Block(self, s: Block) -> Stmt:
        out: list[Stmt] = []
        for alike, group in groupby(s.stmts, lambda x: _total(x) is not None):
            members = list(group)
            if alike:
                for n in range(0, len(members), self.lanes):
                    out += self.row(members[n : n + self.lanes])
            else:
                out += map(self.stmt, members)
        return s if len(out) == len(s.stmts) and all(a is b for a, b in zip(out, s.stmts)) else block(*out)

    def row(self, run: list[Stmt]) -> list[Stmt]:
        totals = [t for t in map(_total, run) if t is not None]
        made = _together(totals) if len(totals) > 1 else None
        return run if made is None else [made]


@stages(*FLATTENED)
def sum_together(kernel: Kernel, lanes: int) -> Kernel:
    """Combine up to ``lanes`` consecutive horizontal sums into one statement; requires an unrolled kernel.

    Before::

        kernel k(a: f32[16], b: f32[2], dst: f32[2])
          alloc total: f32[] @register:
            total[] = 0.0
            total[] = total[] + sum(a[0]{8})
            dst[0] = total[] + b[0]
          alloc total: f32[] @register:
            total[] = 0.0
            total[] = total[] + sum(a[8]{8})
            dst[1] = total[] + b[1]

    After ``sum_together(4)``::

        kernel k(a: f32[16], b: f32[2], dst: f32[2])
          dst[0]{2} = sums(a[0]{8}, a[8]{8}) + b[0]{2}
    """
    if lanes < 1:
        raise ConfigError("lanes", f"sum_together: {lanes} lanes; legal is at least one")
    return each_body(kernel, lambda s: _SumTogether(lanes).stmt(s))
