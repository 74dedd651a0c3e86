"""Numbers of executions of the statements of a kernel, and the bytes that they load and store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from convsmith.arith.ranges import interval
from convsmith.ir.index import Var
from convsmith.ir.stmt import Alloc, Block, Call, For, If, Kernel, Let, PointerLoad, Stmt, Store
from convsmith.ir.value import Load
from convsmith.ir.walk import walk

__all__ = ["Executed", "bytes_asked", "executed"]


class Executed(NamedTuple):
    """A leaf statement, the maximum number of its executions, and the innermost loop or function around it."""

    statement: Stmt
    times: int
    around: Stmt


Ranges = Mapping[Var, tuple[int, int]]


def executed(kernel: Kernel) -> Iterator[Executed]:
    """Yield the leaf statements of a kernel and of its functions, counted as if all conditions were true."""
    functions = {f.name: f for f in kernel.functions}
    calls: dict[str, int] = {}
    ranges: dict[str, dict[Var, tuple[int, int]]] = {name: {} for name in functions}
    for leaf, known in _leaves(kernel.body, 1, dict.fromkeys(kernel.sizes, (0, 0)), kernel.body):
        yield leaf
        s = leaf.statement
        if isinstance(s, Call):
            calls[s.function] = calls.get(s.function, 0) + leaf.times
            of = ranges[s.function]
            for v, index in zip(functions[s.function].indices, s.indices):
                low, high = interval(index, known)
                was = of.get(v, (low, high))
                of[v] = min(was[0], low), max(was[1], high)
    for name, times in calls.items():
        body = functions[name].body
        yield from (leaf for leaf, _ in _leaves(body, times, ranges[name], body))


def _leaves(s: Stmt, times: int, ranges: Ranges, around: Stmt) -> Iterator[tuple[Executed, Ranges]]:
    if isinstance(s, Block):
        for x in s.stmts:
            yield from _leaves(x, times, ranges, around)
    elif isinstance(s, For):
        low, high = interval(s.lo, ranges)[0], interval(s.hi, ranges)[1]
        inner = {**ranges, s.var: (low, max(high - 1, low)), **{c.var: (0, 0) for c in s.carried}}
        yield from _leaves(s.body, times * max(high - low, 0), inner, s)
    elif isinstance(s, Let):
        yield from _leaves(s.body, times, {**ranges, s.var: interval(s.value, ranges)}, around)
    elif isinstance(s, (If, Alloc, PointerLoad)):
        yield from _leaves(s.body, times, ranges, around)
    else:
        yield Executed(s, times, around), ranges


def bytes_asked(kernel: Kernel) -> int:
    """Return the bytes that one call loads and stores, counted as if all conditions were true.

    An iteration of a loop loads each element once.
    """
    total, loaded = 0, set[object]()
    last: Stmt | None = None
    for s, times, around in executed(kernel):
        if around is not last:
            loaded, last = set(), around
        for v in walk(s):
            if isinstance(v, Load) and not v.buffer.in_registers and (v.buffer, v.index, v.lanes) not in loaded:
                loaded.add((v.buffer, v.index, v.lanes))
                total += times * _bytes(v)
        if isinstance(s, Store) and not s.buffer.in_registers:
            total += times * s.buffer.dtype.bits // 8 * (len(s.lanes.touched) if s.lanes else 1)
    return total


def _bytes(v: Load) -> int:
    """Return the bytes of a load; an element that several lanes read counts once."""
    return (len(set(v.lanes.touched)) if v.lanes else 1) * v.buffer.dtype.bits // 8
