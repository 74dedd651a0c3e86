"""Copy to shared memory asynchronously: commit the copies of an iteration, and wait before the first use."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import NamedTuple

from convsmith.arith.dependence import LoopBounds
from convsmith.arith.ranges import Range
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Var
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import (
    THREAD_LOOPS,
    AsyncCopy,
    AtomicAdd,
    Barrier,
    Block,
    Call,
    Commit,
    For,
    Invoke,
    Kernel,
    Stmt,
    Store,
    Wait,
    block,
)
from convsmith.ir.threads import nest_of
from convsmith.ir.value import Const, Load, Repeat, Select, Value
from convsmith.ir.walk import statements_of
from convsmith.passes.accesses import written_in
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import ScopedRewriter, with_body, wrap
from convsmith.passes.thread_conflicts import EarlierAccess
from convsmith.passes.thread_order import Serial, ThreadWalk, bounds_of_threads, later_access

SIZES = (4, 8, 16)
"""Bytes that one asynchronous copy may move."""
MAX_ITERATIONS = 8
"""Maximum number of iterations between a copy and its use that are told apart; beyond it, any number is assumed."""


# -- copies
class _Copies(Rewriter):
    """Replaces stores to shared memory of elements from global memory, or of zeros under a condition, by asynchronous
    copies.
    """

    def __init__(self, written: Collection[Buffer], sizes: Collection[int]) -> None:
        super().__init__()
        self.written, self.sizes = written, sizes

    def visit_Store(self, s: Store) -> Stmt:
        copy = _copy_of(s)
        if copy is None or copy.src.buffer in self.written:
            return s
        lanes = copy.dst.lanes.count if copy.dst.lanes else 1
        return copy if lanes * copy.dst.buffer.dtype.bytes in self.sizes else s


def _copy_of(s: Store) -> AsyncCopy | None:
    """Return the store as a copy of contiguous elements from global to shared memory; None if it is a store of another
    kind.
    """
    cond, value = None, s.value
    if isinstance(value, Select) and _is_zero(value.no):
        cond, value = value.cond, value.yes
    if not isinstance(value, Load) or s.buffer.scope != "shared" or value.buffer.scope != "global":
        return None
    lanes = s.lanes, value.lanes
    if lanes != (None, None) and any(x is None or x.stride != 1 or x.active < x.count for x in lanes):
        return None
    return AsyncCopy(Load(s.buffer, s.index, s.lanes), value, cond)


def _is_zero(v: Value) -> bool:
    while isinstance(v, Repeat):
        v = v.a
    return isinstance(v, Const) and not any(v.bits)


def _has(s: Stmt, *kinds: type[Stmt]) -> bool:
    return any(isinstance(x, kinds) for x in statements_of(s))


class _CommitEach(Rewriter):
    """Closes a group of copies after each run of statements that only copy, to different buffers."""

    def stmt(self, s: Stmt) -> Stmt:
        if not _has(s, AsyncCopy):
            return s
        return block(s, Commit()) if _only_copies(s) and not isinstance(s, Block) else super().stmt(s)

    def visit_Block(self, s: Block) -> Stmt:
        out: list[Stmt] = []
        group: set[Buffer] = set()
        for x in s.stmts:
            copied = _copied_in(x) if _only_copies(x) else set()
            if group and (not copied or not copied.isdisjoint(group)):
                out.append(Commit())
                group = set()
            out.append(x if copied else self.stmt(x))
            group |= copied
        return block(*out, Commit()) if group else block(*out)


def _only_copies(s: Stmt) -> bool:
    return _has(s, AsyncCopy) and not _has(s, Store, Invoke, Call, AtomicAdd, Barrier)


def _copied_in(s: Stmt) -> set[Buffer]:
    """Return the buffers that asynchronous copies in ``s`` write."""
    return {x.dst.buffer for x in statements_of(s) if isinstance(x, AsyncCopy)}


# -- waits
_Group = frozenset[EarlierAccess]
"""The write accesses of a group of copies."""


class _Pending(NamedTuple):
    """Groups of copies that may not have arrived, the latest first.

    ``open`` are copies that are not yet in a group. ``at_barrier`` are the groups that were pending when the thread
    arrived at the last barrier that it has passed, ``at_arrival`` the groups that were pending at the arrival that it
    will wait for.
    """

    groups: tuple[_Group, ...] = ()
    open: _Group = frozenset()
    barrier: Stmt | None = None
    at_barrier: tuple[_Group, ...] = ()
    arrival: Stmt | None = None
    at_arrival: tuple[_Group, ...] = ()


_States = frozenset[_Pending]
"""The set of states that may precede a statement, over the iterations and conditions that were executed or not."""


class _Waits(ThreadWalk[_States]):
    """Chooses the statements before which a thread waits, and how many groups may be pending after each wait.

    A use by other threads asks for a wait before the barrier that precedes it.
    """

    def __init__(self, threads: Serial, ranges: dict[Var, Range]) -> None:
        super().__init__(threads, ranges)
        self.before: dict[Stmt, int] = {}

    def is_unit(self, s: Stmt) -> bool:
        return not _has(s, Barrier, Commit)

    def unit(self, s: Stmt, serial: Serial, state: _States) -> _States:
        if s in self.before:
            state = frozenset(_waited(x, self.before[s]) for x in state)
        if isinstance(s, Commit):
            return frozenset(x._replace(groups=(x.open, *x.groups), open=frozenset()) for x in state)
        if isinstance(s, Barrier):
            if s.part != "wait":
                state = frozenset(x._replace(arrival=s, at_arrival=x.groups) for x in state)
            if s.part != "arrive":
                state = frozenset(x._replace(barrier=x.arrival, at_barrier=x.at_arrival) for x in state)
            return state
        sites = self.sites(s, serial)
        out = []
        for x in state:
            used = (n for n, g in enumerate(x.groups) if any(self.conflict(a, b, serial, ()) for a in g for b in sites))
            first = next(used, None)
            if first is not None:
                self._ask(s, x, first)
                x = _waited(x, first)
            if _has(s, AsyncCopy):
                copied = (EarlierAccess(b, serial) for b in sites if b.access.is_write)
                x = x._replace(open=x.open | frozenset(copied))
            out.append(x)
        return frozenset(out)

    def _ask(self, s: Stmt, x: _Pending, first: int) -> None:
        """Insert a wait for the group of the given number at its place before the use ``s``."""
        place, pending = s, first
        if x.barrier is not None and x.groups[first] in x.at_barrier:
            place, pending = x.barrier, x.at_barrier.index(x.groups[first])
        if self.before.get(place, pending + 1) > pending:
            self.before[place] = pending
            self.version += 1

    def joined(self, a: _States, b: _States) -> _States:
        return a | b

    def entered(self, state: _States, loop: LoopBounds) -> _States:
        def first(x: EarlierAccess) -> EarlierAccess:
            return x if loop in x.serial else replace(x, later=frozenset({**dict(x.later), loop.var: 0}.items()))

        return _each_access(state, first)

    def carried(self, state: _States, loop: LoopBounds) -> _States:
        return _each_access(state, lambda x: later_access(x, loop, MAX_ITERATIONS))


def _each_access(state: _States, change: Callable[[EarlierAccess], EarlierAccess]) -> _States:
    """Return the states with every access changed; groups beyond `MAX_ITERATIONS` are merged."""

    def groups(x: tuple[_Group, ...]) -> tuple[_Group, ...]:
        every = [frozenset(map(change, g)) for g in x]
        if len(every) <= MAX_ITERATIONS:
            return tuple(every)
        return (*every[:MAX_ITERATIONS], frozenset[EarlierAccess]().union(*every[MAX_ITERATIONS:]))

    return frozenset(
        x._replace(
            groups=groups(x.groups), open=frozenset(map(change, x.open)), at_barrier=groups(x.at_barrier),
            at_arrival=groups(x.at_arrival),
        )
        for x in state
    )  # fmt: skip


def _waited(x: _Pending, pending: int) -> _Pending:
    return x._replace(groups=x.groups[:pending])


class _InsertWaits(Rewriter):
    def __init__(self, before: dict[Stmt, int]) -> None:
        super().__init__()
        self.before = before

    def stmt(self, s: Stmt) -> Stmt:
        out = super().stmt(s)
        return block(Wait(self.before[s]), out) if s in self.before else out


class _AsyncCopies(ScopedRewriter):
    def __init__(self, written: Collection[Buffer], sizes: Collection[int]) -> None:
        super().__init__()
        self.written, self.sizes = written, sizes

    def visit_For(self, loop: For) -> Stmt:
        if loop.kind not in THREAD_LOOPS:
            return self._For(loop)
        nest = nest_of(loop)
        body = _Copies(self.written, self.sizes).stmt(nest[-1].body)
        if body is nest[-1].body or not all(x.lo.is_const and x.hi.is_const for x in nest):
            return loop
        body = _CommitEach().stmt(body)
        waits = _Waits(bounds_of_threads(nest), dict(self.ranges))
        version = -1
        while version != waits.version:
            version = waits.version
            waits.walk(body, (), frozenset((_Pending(),)))
        return wrap(nest, _InsertWaits(waits.before).stmt(body))


@stages(*FLATTENED, ensures=TENSORISED)
def async_copies(kernel: Kernel, sizes: tuple[int, ...] = SIZES) -> Kernel:
    """Copy from global to shared memory asynchronously, if a copy has one of the ``sizes`` in bytes.

    Consecutive copies to different buffers form a group, which the thread commits. A thread waits before the barrier
    that precedes the first use of the elements, and only for their group: with ``multiple_buffers`` several iterations
    ahead, the copies of all but one of these iterations stay in flight. If a condition selects between an element and
    zero, the copy has the condition.

    Before::

        kernel k(a: f32[64], c: f32[8])
          alloc s: f32[24] @shared:
            for t in 0 .. 8 #group:
              s[t] = a[t]
              s[t + 8] = a[t + 8]
              for k in 0 .. 6:
                barrier
                if -k + 3 >= 0:
                  s[t + (k + 2) % 3 * 8] = (a[k * 8 + t + 16] if t - 1 >= 0 else 0.0)
                c[t] = c[t] + s[-t + k % 3 * 8 + 7]

    After ``async_copies()``::

        kernel k(a: f32[64], c: f32[8])
          alloc s: f32[24] @shared:
            for t in 0 .. 8 #group:
              async s[t] = a[t]
              commit
              async s[t + 8] = a[t + 8]
              commit
              for k in 0 .. 6:
                wait 1
                barrier
                if -k + 3 >= 0:
                  async s[t + (k + 2) % 3 * 8] = a[k * 8 + t + 16] if t - 1 >= 0
                commit
                c[t] = c[t] + s[-t + k % 3 * 8 + 7]
    """
    return with_body(kernel, _AsyncCopies(written_in(kernel.body), sizes).stmt(kernel.body))
