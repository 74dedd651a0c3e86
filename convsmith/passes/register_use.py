"""The elements of register arrays that a statement reads and writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from convsmith.arith.dependence import INFINITE
from convsmith.arith.ranges import Range, Ranges, try_interval
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var
from convsmith.ir.stmt import Alloc, Block, For, If, Let, PointerLoad, Stmt, Store
from convsmith.ir.value import Const, Lanes, Load
from convsmith.ir.walk import walk
from convsmith.passes.accesses import written_in

_ALL = (-INFINITE, INFINITE)

Part = tuple[Range, ...]
"""The first and the last element along each dim of an array that an access may touch."""


def part_of(index: tuple[Index, ...], ranges: Ranges, first: int = 0, last: int = 0) -> Part:
    """Return the part that an access whose lanes have offsets from ``first`` to ``last`` may touch."""
    if not index:
        return ()
    *rows, (lo, hi) = (try_interval(i, ranges) or _ALL for i in index)
    return (*rows, (lo + first, hi + last))


def may_meet(*parts: Part) -> bool:
    """Return whether the parts of one array may all have an element in common."""
    return all(max(lo for lo, _ in dim) <= min(hi for _, hi in dim) for dim in zip(*parts))


def in_rows_of(part: Part, parts: Iterable[Part]) -> list[Part]:
    """Return those of ``parts`` of the same array that may have elements in the outermost rows of ``part``."""
    if not part:
        return [*parts]
    first, last = part[0]
    return [x for x in parts if x[0][0] <= last and first <= x[0][1]]


Uses = defaultdict[Buffer, set[Part]]


class RegisterUse:
    """The parts of register arrays that a statement reads, that it writes, and that it fills with values other than
    zero.

    Reading an element to compute its own new value, as in a sum, does not count as a read.
    """

    def __init__(self, body: Stmt, ranges: Ranges) -> None:
        self.reads: Uses = defaultdict(set)
        self.writes: Uses = defaultdict(set)
        self.fills: Uses = defaultdict(set)
        self._collect(body, dict(ranges))

    def _collect(self, s: Stmt, ranges: dict[Var, Range]) -> None:
        if isinstance(s, Block):
            for x in s.stmts:
                self._collect(x, ranges)
        elif isinstance(s, For):
            lo, hi = try_interval(s.lo, ranges), try_interval(s.hi, ranges)
            own = {s.var: (lo[0] if lo else -INFINITE, hi[1] - 1 if hi else INFINITE)}
            self._collect(s.body, {**ranges, **own})
        elif isinstance(s, (If, Let, Alloc, PointerLoad)):
            self._collect(s.body, ranges)
        else:
            element = (s.buffer, s.index) if isinstance(s, Store) else None
            for v in walk(s):
                if isinstance(v, Load) and v.buffer.scope == "register" and (v.buffer, v.index) != element:
                    self.reads[v.buffer].add(_part(v.index, v.lanes, ranges))
            if isinstance(s, Store):
                is_zero = isinstance(s.value, Const) and s.value.value == 0
                self._write(s.buffer, _part(s.index, s.lanes, ranges), is_zero)
            else:
                for buffer in written_in(s):
                    self._write(buffer, (_ALL,) * len(buffer.shape), False)

    def _write(self, buffer: Buffer, part: Part, is_zero: bool) -> None:
        self.writes[buffer].add(part)
        if not is_zero:
            self.fills[buffer].add(part)


def _part(index: tuple[Index, ...], lanes: Lanes | None, ranges: Ranges) -> Part:
    offsets = (lanes.touched if lanes is not None else ()) or (0,)
    return part_of(index, ranges, min(offsets), max(offsets))
