"""Share memory between private buffers whose lifetimes do not overlap.

The lifetime of a buffer runs from the first to the last statement that accesses it. Within its allocation, an access in
a loop counts for the whole loop, because a later iteration may read an element that an earlier one writes. A buffer
that several copies of a nest allocate has one lifetime for each allocation.

Asynchronous copies change the answer. A copy between an argument and a buffer could overlap the statements before or
after it, but would have to wait if it needed memory that another buffer uses. The plan therefore keeps both buffers
apart: one buffer of a pair may not be filled while the other is still read, nor be drained while the other is written.
In a loop around both, each of the buffers precedes the other.

The rewrite makes every allocation of a group allocate one buffer of the largest size. Buffers share memory if they hold
one data type and are flat, and if no parallel loop gives one of them, but not the other, memory for each iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.rewrite import Substitute
from convsmith.ir.stmt import Alloc, AtomicAdd, Block, Call, For, If, Kernel, Let, PointerLoad, Stmt, Store
from convsmith.ir.value import Load, Select, Value
from convsmith.ir.walk import statements_of, walk
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import each_body


class Lifetime(NamedTuple):
    """The statements ``first`` to ``last`` that access a buffer, and the loops and allocations around its allocation.
    """

    first: int
    last: int
    around: tuple[Stmt, ...]

    def overlaps(self, other: Lifetime) -> bool:
        """Return whether some statement belongs to both lifetimes."""
        return self.first <= other.last and other.first <= self.last


@dataclass(eq=False)
class StoredBuffer:
    """A private buffer and its lifetimes; copies from arguments fill it if ``is_filled``, and copies to arguments drain
    it if ``is_drained``.
    """

    buffer: Buffer
    lifetimes: list[Lifetime] = field(default_factory=list)
    is_filled: bool = False
    is_drained: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the buffer."""
        return self.buffer.nbytes

    @property
    def first(self) -> int:
        """Number of the first statement that accesses the buffer."""
        return min(x.first for x in self.lifetimes)

    def may_share(self, other: StoredBuffer, asynchronous: bool) -> bool:
        """Return whether one block of memory may hold both buffers."""
        a, b = self.buffer, other.buffer
        if a.dtype is not b.dtype or a.scope != b.scope or not (a.flat and b.flat):
            return False
        pairs = [(x, y) for x in self.lifetimes for y in other.lifetimes]
        if any(x.overlaps(y) or self._differs_in_threads(x, other, y) for x, y in pairs):
            return False
        return not asynchronous or not any(self._blocks(x, other, y) for x, y in pairs)

    def _differs_in_threads(self, x: Lifetime, other: StoredBuffer, y: Lifetime) -> bool:
        """Return whether iterations of a loop that run at once have private memory for exactly one of both buffers."""
        for outer, inner in ((x, y), (y, x)):
            of = self.buffer if outer is x else other.buffer
            within = [n for n, s in enumerate(inner.around) if isinstance(s, Alloc) and s.buffer is of]
            loops = (s for s in inner.around[within[-1] :] if isinstance(s, For)) if within else ()
            if any(loop.kind in ("parallel", "scalable") for loop in loops):
                return True
        return False

    def _blocks(self, x: Lifetime, other: StoredBuffer, y: Lifetime) -> bool:
        """Return whether a copy of one buffer would wait for the other."""
        is_repeated = any(isinstance(a, For) and a is b for a, b in zip(x.around, y.around))
        first, second = (self, other) if x.last < y.first else (other, self)
        is_waiting = first.is_drained or second.is_filled
        return is_waiting or (is_repeated and (second.is_drained or first.is_filled))


@record(frozen=True)
class StoragePlan:
    """The private ``buffers`` of a kernel of ``statements``, by first use, and the ``groups`` that share memory.

    Groups are in descending order of size. Copies are ``asynchronous`` or not.
    """

    buffers: tuple[StoredBuffer, ...]
    groups: tuple[tuple[StoredBuffer, ...], ...]
    statements: int
    asynchronous: bool

    @property
    def before(self) -> int:
        """Bytes of all buffers without sharing."""
        return sum(x.bytes for x in self.buffers)

    @property
    def after(self) -> int:
        """Bytes of all groups, with sharing."""
        return sum(max(x.bytes for x in group) for group in self.groups)

    @property
    def live(self) -> int:
        """Maximum bytes of the buffers that are alive at one statement, a lower bound for every plan."""
        starts = [x.first for b in self.buffers for x in b.lifetimes]
        return max((sum(b.bytes for b in self.buffers if _is_alive(b, n)) for n in starts), default=0)

    @property
    def lines(self) -> list[str]:
        """One line for each buffer, and the peak before and after sharing."""
        partners = {x: [y.buffer.name for y in group if y is not x] for group in self.groups for x in group}
        rows = [
            (
                f"{x.buffer.name}", f"{x.buffer.dtype}{list(x.buffer.shape)}", f"{x.bytes} bytes",
                "statements " + ", ".join(f"{t.first} to {t.last}" for t in x.lifetimes),
                f"shares memory with {', '.join(partners[x])}" if partners[x] else "memory of its own",
            )
            for x in self.buffers
        ]  # fmt: skip
        widths = [max(len(row[n]) for row in rows) for n in range(4)] if rows else []
        lines = ["  ".join((*(f"{x:{w}}" for x, w in zip(row, widths)), row[4])) for row in rows]
        copies = ", copies are asynchronous" if self.asynchronous else ""
        lines.append(
            f"peak {self.before} bytes before sharing, {self.after} after; {self.live} are alive at once, in "
            f"{self.statements} statements{copies}"
        )
        return lines

    def __str__(self) -> str:
        """Return the lines of the plan."""
        return "\n".join(self.lines)


def _is_alive(x: StoredBuffer, statement: int) -> bool:
    return any(t.first <= statement <= t.last for t in x.lifetimes)


def plan_storage(kernel: Kernel, asynchronous: bool = False) -> StoragePlan:
    """Return the storage plan of ``kernel``; ``asynchronous`` copies overlap other statements.

    The largest buffers choose first. A buffer joins the group of the nearest size in which it may share memory with
    every member.
    """
    lives = _Lives(kernel)
    lives.stmt(kernel.body)
    buffers = sorted(lives.found.values(), key=lambda x: x.first)
    groups: list[list[StoredBuffer]] = []
    for x in sorted(buffers, key=lambda x: -x.bytes):
        fitting = [g for g in groups if all(x.may_share(y, asynchronous) for y in g)]
        if fitting:
            min(fitting, key=lambda g: g[0].bytes).append(x)
        else:
            groups.append([x])
    ordered = (tuple(sorted(g, key=lambda x: x.first)) for g in groups)
    return StoragePlan(tuple(buffers), tuple(ordered), lives.count, asynchronous)


class _Lives:
    """Collects the lifetimes of the buffers that a kernel allocates in memory."""

    def __init__(self, kernel: Kernel) -> None:
        self.params = set(kernel.params)
        self.found: dict[Buffer, StoredBuffer] = {}
        self.around: list[Stmt] = []
        self.count = 0
        self.spans: dict[Buffer, list[int]] = {}
        """First and last statement of the allocations in scope."""
        self.waiting: list[set[Buffer]] = []
        """For each enclosing loop, the buffers that it accesses and does not allocate."""

    def stmt(self, s: Stmt) -> None:
        if isinstance(s, Block):
            for x in s.stmts:
                self.stmt(x)
        elif isinstance(s, For):
            self.loop(s)
        elif isinstance(s, Alloc):
            self.alloc(s)
        elif isinstance(s, (If, Let)):
            self.stmt(s.body)
        elif isinstance(s, PointerLoad):
            first = self.count
            self.stmt(s.body)
            self.access((s.table, s.source, s.zero), first)
        else:
            self.leaf(s)

    def loop(self, s: For) -> None:
        first = self.count
        self.around.append(s)
        self.waiting.append(set())
        self.stmt(s.body)
        self.access((c.buffer for c in s.carried), first)
        self.around.pop()
        self.access(self.waiting.pop(), first)

    def alloc(self, s: Alloc) -> None:
        if s.buffer.in_registers:
            self.stmt(s.body)
            return
        around = tuple(self.around)
        self.around.append(s)
        self.spans[s.buffer] = []
        self.stmt(s.body)
        self.around.pop()
        span = self.spans.pop(s.buffer)
        first, last = span or (self.count, self.count)
        self.stored(s.buffer).lifetimes.append(Lifetime(first, last, around))

    def leaf(self, s: Stmt) -> None:
        used = {x.buffer for x in walk(s) if isinstance(x, Load)}
        if isinstance(s, Call):
            used |= {buffer for buffer, _ in s.pointers}
        if isinstance(s, AtomicAdd):
            used.add(s.buffer)
        if isinstance(s, Store):
            used.add(s.buffer)
            source = _copied(s.value)
            if source in self.params and s.buffer in self.spans:
                self.stored(s.buffer).is_filled = True
            if source is not None and s.buffer in self.params and source in self.spans:
                self.stored(source).is_drained = True
        self.count += 1
        self.access(used, self.count - 1)

    def access(self, buffers: Iterable[Buffer], first: int) -> None:
        """Record an access of ``buffers`` by the statements from ``first`` to the current one."""
        last = max(first, self.count - 1)
        for buffer in self.spans.keys() & set(buffers):
            span = self.spans[buffer]
            span[:] = [min([first, *span]), max([last, *span])]
            for inside in self.waiting:
                inside.add(buffer)

    def stored(self, buffer: Buffer) -> StoredBuffer:
        """Return the entry of ``buffer``, created at its first mention."""
        return self.found.setdefault(buffer, StoredBuffer(buffer))


def _copied(v: Value) -> Buffer | None:
    """Return the buffer that a value is an element of, or an element or constant selected by a mask; otherwise None."""
    if isinstance(v, Select):
        v = v.yes
    return v.buffer if isinstance(v, Load) else None


class _Share(Substitute):
    """Replaces buffers by the buffers of their groups; an allocation within an allocation of the same buffer is
    dropped.
    """

    def __init__(self, buffers: dict[Buffer, Buffer]) -> None:
        super().__init__({}, buffers)
        self.allocated: set[Buffer] = set()

    def shared(self, b: Buffer) -> Buffer:
        """Return the buffer that replaces ``b``."""
        return self._buffers.get(b, b)

    def visit_Alloc(self, s: Alloc) -> Stmt:
        new = self.shared(s.buffer)
        if new in self.allocated:
            return self.stmt(s.body)
        self.allocated.add(new)
        body = self.stmt(s.body)
        self.allocated.remove(new)
        return Alloc(new, body)

    def visit_Call(self, s: Call) -> Stmt:
        return Call(s.function, tuple((self.shared(b), i) for b, i in s.pointers), s.indices)

    def visit_PointerLoad(self, s: PointerLoad) -> Stmt:
        made = self._PointerLoad(s)
        assert isinstance(made, PointerLoad)
        table, source, zero = self.shared(s.table), self.shared(s.source), self.shared(s.zero)
        return PointerLoad(
            made.buffer, table, made.index, made.offset, source, zero, made.zero_at, made.body, made.rows
        )  # fmt: skip


def _group_buffer(group: Sequence[StoredBuffer]) -> Buffer:
    """Return the buffer of a group: the first one's name, and the largest size."""
    first = group[0].buffer
    size = max(x.buffer.size for x in group)
    return first if first.size == size else make_buffer(first.name, first.dtype, (size,), first.scope)


@stages(*FLATTENED)
def share_storage(kernel: Kernel, asynchronous: bool = False) -> Kernel:
    """Make buffers with disjoint lifetimes share memory; ``asynchronous`` copies restrict which buffers may share.

    A call of a function accesses the buffers that it passes; arrays that a function allocates are its own.

    Before::

        kernel k(a: f32[8], b: f32[8])
          alloc x: f32[8] @cache:
            alloc y: f32[8] @cache:
              alloc z: f32[8] @cache:
                for i in 0 .. 8:
                  x[i] = a[i]
                for j in 0 .. 8:
                  y[j] = x[j] + x[-j + 7]
                for k in 0 .. 8:
                  z[k] = y[k] + y[-k + 7]
                for l in 0 .. 8:
                  b[l] = z[l]

    After ``share_storage()``::

        kernel k(a: f32[8], b: f32[8])
          alloc x: f32[8] @cache:
            alloc y: f32[8] @cache:
              for i in 0 .. 8:
                x[i] = a[i]
              for j in 0 .. 8:
                y[j] = x[j] + x[-j + 7]
              for k in 0 .. 8:
                x[k] = y[k] + y[-k + 7]
              for l in 0 .. 8:
                b[l] = x[l]

    """
    if asynchronous and kernel.functions:
        raise ConfigError(
            "storage", f"share_storage: kernel {kernel.name} has functions, which hide copies; legal beside "
            "asynchronous copies is a kernel before outlining"
        )  # fmt: skip
    private = {s.buffer for s in statements_of(kernel.body) if isinstance(s, Alloc) and not s.buffer.in_registers}
    if len(private) < 2:
        return kernel
    groups = [g for g in plan_storage(kernel, asynchronous).groups if len(g) > 1]
    if not groups:
        return kernel
    buffers = {x.buffer: joined for g in groups for joined in [_group_buffer(g)] for x in g}
    return each_body(_with_pointers(kernel, buffers), lambda s: _Share(buffers).stmt(s))


def _with_pointers(kernel: Kernel, buffers: Mapping[Buffer, Buffer]) -> Kernel:
    """Return ``kernel`` with the buffers replaced that its functions have pointers into."""
    functions = []
    for f in kernel.functions:
        pointers = tuple((var, buffers.get(b, b)) for var, b in f.pointers)
        functions.append(f if pointers == f.pointers else replace(f, pointers=pointers))
    return replace(kernel, functions=tuple(functions)) if functions else kernel
