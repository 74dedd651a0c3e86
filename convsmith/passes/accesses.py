"""The accesses of a statement, each with the loops, conditions and positions that say when it happens."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from convsmith.arith.dependence import INFINITE, Access, LoopBounds
from convsmith.arith.ranges import Range, Ranges, try_interval
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Index, Min, Var, parts_of
from convsmith.ir.stmt import (
    Alloc,
    AsyncCopy,
    AtomicAdd,
    Block,
    Call,
    For,
    If,
    Invoke,
    Let,
    PointerLoad,
    Stmt,
    Store,
    TensorCopy,
)
from convsmith.ir.text import access_text
from convsmith.ir.value import Binary, Const, Lanes, Load, Select, Value
from convsmith.ir.walk import AnyNode, children, statements_of, walk

Path = tuple[int | LoopBounds, ...]
"""Order of an access: positions in blocks and loops, outermost first, then 0 for a read and 1 for a write."""


@dataclass(frozen=True, eq=False, slots=True)
class Site:
    """An access and its path.

    ``storage`` is the allocation of the buffer, or the buffer if the statement does not allocate it; iterations of the
    ``private`` outermost loops have their own memory for it. ``is_sum`` states that the access belongs to a statement
    ``x[i] = x[i] + e`` or to an atomic addition, ``is_atomic`` that it is the latter.
    """

    access: Access
    path: Path
    storage: Alloc | Buffer
    private: int
    is_sum: bool
    is_atomic: bool = False

    def __str__(self) -> str:
        name, index = self.access.buffer, self.access.index
        text = f"{name}[?]" if index is None else access_text(name, index, None)
        return f"{text} = ..." if self.access.is_write else f"... {text}"


def sites_of(
    s: Stmt, ranges: Ranges, allocated: bool = False, only: AbstractSet[Buffer] | None = None
) -> list[Site]:  # fmt: skip
    """Return the accesses of the buffers that ``s`` writes, in order of the text.

    ``ranges`` are the ranges of the variables around ``s``. Buffers that ``s`` itself allocates are included if
    ``allocated``; of all buffers, ``only`` some are, if they are given.
    """
    written, own = _written_and_allocated(s)
    found = written if allocated else written - own
    collector = _Collector(found if only is None else found & only, ranges)
    if collector.written:
        collector.stmt(s, ())
    return collector.sites


def sites_within(
    s: Stmt, loops: tuple[LoopBounds, ...], ranges: Ranges, conds: tuple[Cond, ...] = ()
) -> list[Site]:
    """Return all accesses in ``s`` of memory that ``s`` does not allocate.

    ``loops`` are the loops around ``s``, outermost first, ``conds`` the conditions under which it runs.
    """
    own = _written_and_allocated(s)[1]
    used = {b for b in touched_in(s) if not b.in_registers}
    collector = _Collector(used - own, {**ranges, **{x.var: x.range for x in loops}})
    collector.loops, collector.conds = loops, conds
    collector.stmt(s, loops)
    return collector.sites


def _buffers(x: AnyNode) -> tuple[Buffer, ...]:
    """Return the buffers that a node itself accesses."""
    if isinstance(x, (Load, Store, AtomicAdd)):
        return (x.buffer,)
    if isinstance(x, Call):
        return tuple(b for b, _ in x.pointers)
    return (x.table, x.source, x.zero) if isinstance(x, PointerLoad) else ()


def touched_in(s: Stmt) -> set[Buffer]:
    """Return the buffers that ``s`` accesses, or may access through a function or a pointer."""
    return {b for x in walk(s) for b in _buffers(x)}


def written_in(s: Stmt) -> set[Buffer]:
    """Return the buffers that ``s`` writes, or may write through a function."""
    return _written_and_allocated(s)[0]


def _written_and_allocated(s: Stmt) -> tuple[set[Buffer], set[Buffer]]:
    written: set[Buffer] = set()
    allocated: set[Buffer] = set()
    for x in statements_of(s):
        if isinstance(x, (Store, AtomicAdd)):
            written.add(x.buffer)
        elif isinstance(x, (AsyncCopy, TensorCopy)):
            written.add(x.dst.buffer)
        elif isinstance(x, Alloc):
            allocated.add(x.buffer)
        elif isinstance(x, Invoke):
            written.add(x.dst.buffer)
        elif isinstance(x, Call):
            written.update(b for b, _ in x.pointers)
    return written, allocated


class _Collector:
    def __init__(self, written: set[Buffer], ranges: Ranges) -> None:
        self.sites: list[Site] = []
        self.written = written
        self.ranges = dict(ranges)
        self.loops: tuple[LoopBounds, ...] = ()
        self.conds: tuple[Cond, ...] = ()
        self.storage: dict[Buffer, tuple[Alloc, int]] = {}
        self.targets: dict[Buffer, tuple[Buffer, ...]] = {}
        """For the memory behind a pointer, the buffers that the pointer points into."""

    def stmt(self, s: Stmt, path: Path) -> None:
        if isinstance(s, Block):
            for n, x in enumerate(s.stmts):
                self.stmt(x, (*path, n))
        elif isinstance(s, For):
            around = LoopBounds(s.var, s.lo, s.hi, _range(s, self.ranges))
            pointers = [self.named(c.var, c.init + (s.var - s.lo) * c.step) for c in s.carried]
            self.inside((around, *pointers), s.body, (*path, around))
        elif isinstance(s, Let):
            self.inside((self.named(s.var, s.value),), s.body, path)
        elif isinstance(s, If):
            conds, self.conds = self.conds, (*self.conds, *parts_of(s.cond))
            self.stmt(s.body, path)
            self.conds = conds
        elif isinstance(s, Alloc):
            storage, self.storage = self.storage, {**self.storage, s.buffer: (s, len(self.loops))}
            self.stmt(s.body, path)
            self.storage = storage
        elif isinstance(s, PointerLoad):
            targets, self.targets = self.targets, {**self.targets, s.buffer: (s.source, s.zero)}
            self.site(s.table, s.index, None, False, path)
            self.stmt(s.body, path)
            self.targets = targets
        elif isinstance(s, Store):
            self.store(s, path)
        elif isinstance(s, Invoke):
            for v in (s.dst, *s.args):
                self.reads(v, path)
            self.site(s.dst.buffer, s.dst.index, s.dst.lanes, True, path)
        elif isinstance(s, AsyncCopy):
            conds, self.conds = self.conds, (*self.conds, *(parts_of(s.cond) if s.cond is not None else ()))
            self.reads(s.src, path)
            self.conds = conds
            self.site(s.dst.buffer, s.dst.index, s.dst.lanes, True, path)
        elif isinstance(s, TensorCopy):
            self.site(s.src.buffer, None, None, False, path)
            self.site(s.dst.buffer, None, None, True, path)
        elif isinstance(s, AtomicAdd):
            self.reads(s.value, path)
            for is_write in (False, True):
                self.site(s.buffer, s.index, s.lanes, is_write, path, True, True)
        elif isinstance(s, Call):
            for is_write in (False, True):
                for buffer, _ in s.pointers:
                    self.site(buffer, None, None, is_write, path)

    def named(self, var: Var, value: Index) -> LoopBounds:
        """Return the bounds of a variable with a ``value``, as for a loop that runs once."""
        return LoopBounds(var, value, value + 1, try_interval(value, self.ranges) or (-INFINITE, INFINITE))

    def inside(self, around: tuple[LoopBounds, ...], body: Stmt, path: Path) -> None:
        """Collect accesses in the body of a loop; a variable must not be bound twice on one path."""
        loops = self.loops
        self.loops = (*loops, *around)
        for x in around:
            self.ranges[x.var] = x.range
        self.stmt(body, path)
        self.loops = loops

    def store(self, s: Store, path: Path) -> None:
        v, first = s.value, len(self.sites)
        own = Load(s.buffer, s.index, s.lanes)
        is_sum = isinstance(v, Binary) and v.op == "add" and v.a is own
        if isinstance(v, Binary) and is_sum:
            self.reads(v.b, path)
            is_sum = all(x.access.buffer is not s.buffer for x in self.sites[first:])
            self.site(s.buffer, s.index, s.lanes, False, path, is_sum)
        else:
            self.reads(v, path)
        self.site(s.buffer, s.index, s.lanes, True, path, is_sum)

    def reads(self, v: Value, path: Path) -> None:
        if not self.targets and not reads_any(v, self.written):
            return
        stack = [(v, self.conds)]
        outer, seen = self.conds, set()
        while stack:
            x, self.conds = stack.pop()
            if (x, self.conds) in seen:
                continue
            seen.add((x, self.conds))
            if isinstance(x, Load):
                self.site(x.buffer, x.index, x.lanes, False, path)
            elif isinstance(x, Select):
                stack += [(x.no, self.conds), (x.yes, (*self.conds, *parts_of(x.cond)))]
            else:
                stack += [(y, self.conds) for y in reversed(children(x)) if isinstance(y, Value)]
        self.conds = outer

    def site(
        self, buffer: Buffer, index: tuple[Index, ...] | None, lanes: Lanes | None, is_write: bool, path: Path,
        is_sum: bool = False, is_atomic: bool = False,
    ) -> None:  # fmt: skip
        for target in self.targets.get(buffer, ()):
            self.site(target, None, None, is_write, path)
        if buffer not in self.written:
            return
        spread = (0, 0)
        if lanes is not None:
            spread = min(lanes.offsets), max(lanes.offsets)
            if not (buffer.flat or buffer.in_registers):
                index = None
        storage, private = self.storage.get(buffer, (buffer, 0))
        access = Access(buffer, index, is_write, self.loops, self.conds, spread)
        self.sites.append(Site(access, (*path, int(is_write)), storage, private, is_sum, is_atomic))


def reads_any(v: Value, buffers: set[Buffer]) -> bool:
    """Return whether a value reads one of the buffers; a shared subexpression is visited once."""
    stack, seen = [v], set[Value]()
    while stack:
        x = stack.pop()
        if type(x) is Load:
            if x.buffer in buffers:
                return True
        elif type(x) is not Const and x not in seen:
            seen.add(x)
            stack += [y for y in children(x) if isinstance(y, Value)]
    return False


def _range(loop: For, ranges: Ranges) -> Range:
    """Return the range of a loop, without an upper end if its size is known only at the call, except for a constant
    minimum.
    """
    if loop.lo.is_const and loop.hi.is_const:
        return loop.lo.const, loop.hi.const - 1
    lo, hi = try_interval(loop.lo, ranges), try_interval(loop.hi, ranges)
    ends = [a.const for a in loop.hi.args if a.is_const] if isinstance(loop.hi, Min) else []
    return lo[0] if lo else -INFINITE, (hi[1] if hi else min(ends, default=INFINITE)) - 1
