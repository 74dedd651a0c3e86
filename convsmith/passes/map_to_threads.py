"""Turn consecutive loops over threads into one nest, with barriers between parts whose threads depend on each other."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from itertools import count, product
from math import prod

from convsmith.arith.dependence import LoopBounds
from convsmith.arith.evaluate import evaluate
from convsmith.arith.ranges import Range
from convsmith.arith.simplify import simplify
from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index, floordiv, mod
from convsmith.ir.rewrite import Rewriter, Substitute, substitute
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import THREAD_LOOPS, Alloc, Barrier, Block, For, If, Kernel, Let, Stmt, Store, block
from convsmith.ir.threads import nest_of
from convsmith.ir.value import Load, Value
from convsmith.ir.walk import children, loops_of, statements_of, variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import ScopedRewriter, allocate, with_body, wrap
from convsmith.passes.thread_conflicts import EarlierAccess
from convsmith.passes.thread_order import Accesses, Serial, ThreadWalk, all_accesses, bounds_of_threads, later_access


def _refuse(why: str) -> ConfigError:
    return ConfigError("threads", f"map_to_threads: {why}")


# -- one nest of thread loops
class _Lifted(Rewriter):
    """Moves shared memory out of a statement, to ``shared``, and replaces names that all threads share by their
    indices.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shared: list[Buffer] = []

    def visit_For(self, loop: For) -> Stmt:
        return loop if loop.kind in THREAD_LOOPS else self._For(loop)

    def visit_Let(self, s: Let) -> Stmt:
        return self.stmt(substitute(s.body, {s.var: s.value}))

    def visit_Alloc(self, s: Alloc) -> Stmt:
        if s.buffer.scope != "shared":
            return self._Alloc(s)
        old, names = s.buffer, {b.name for b in self.shared}
        name = next(x for n in range(len(names) + 1) if (x := f"{old.name}{n or ''}") not in names)
        new = old if name == old.name else replace(old, name=name)
        self.shared.append(new)
        return self.stmt(s.body if new is old else Substitute({}, {old: new}).stmt(s.body))

    def visit_Store(self, s: Store) -> Stmt:
        raise _refuse(f"`{s}` stands outside of the loops over threads")

    visit_AtomicAdd = visit_Invoke = visit_Store


def _for_frame(nest: Sequence[For], frame: Sequence[For]) -> Stmt:
    """Return the body of ``nest`` for the thread of ``frame`` that has the same number.

    A frame of warps contains a loop over lanes if the nest has more threads.
    """
    extents, own = [_count(x) for x in frame], [_count(x) for x in nest]
    if _is_of_warps(frame) and prod(own) > prod(extents):
        lanes, rest = divmod(prod(own), prod(extents))
        if rest:
            raise _refuse(f"{prod(own)} threads of {nest[0].var} are no whole number of lanes of {prod(extents)} warps")
        is_lane = nest[-1].kind == "lane" and own[-1] == lanes
        var = nest[-1].var if is_lane else Var(f"{nest[-1].var}.l")
        lane = For(var, as_index(0), as_index(lanes), nest[-1].body, "lane")
        return For(var, lane.lo, lane.hi, _for_frame(nest, [*frame, lane]), "lane")
    values: dict[Var, Index] = {}
    number = as_index(0)
    for x, n in zip(frame, extents):
        number = number * n + x.var
    if extents == own:
        values = {x.var: y.var + x.lo for x, y in zip(nest, frame)}
    else:
        ranges: dict[Var, Range] = {x.var: (0, n - 1) for x, n in zip(frame, extents)}
        inner = 1
        for x, n in reversed(list(zip(nest, own))):
            whole = floordiv(number, inner)
            values[x.var] = simplify(whole if x is nest[0] else mod(whole, n), ranges) + x.lo
            inner *= n
    body: Stmt = substitute(nest[-1].body, {v: e for v, e in values.items() if e is not v})
    return body if prod(own) == prod(extents) else If(number < prod(own), body)


def _is_of_warps(nest: Sequence[For]) -> bool:
    """Return whether the threads of a nest are whole warps."""
    kinds = {x.kind for x in nest}
    return "warp" in kinds and "lane" not in kinds


def _count(loop: For) -> int:
    """Return the iterations of a loop over threads."""
    count = loop.hi - loop.lo
    if not count.is_const:
        raise _refuse(f"the {loop.kind} loop {loop.var} runs {loop.lo} .. {loop.hi}; legal is a constant number")
    return count.const


# -- registers of one thread
class _OwnRegisters(Rewriter):
    """Drops the dims of registers that number the threads, because each thread has its own registers."""

    def __init__(self, frame: Sequence[For]) -> None:
        super().__init__()
        self.frame = frame
        self.threads = frozenset(x.var for x in frame)
        self.kept: dict[Buffer, tuple[Buffer, tuple[int, ...]]] = {}

    def visit_Alloc(self, s: Alloc) -> Stmt:
        old = s.buffer
        if not old.in_registers:
            return self._Alloc(s)
        uses = [x for x in _accesses_of(s.body) if x.buffer is old]
        shared = [d for d in range(len(old.shape)) if any(variables_of(x.index[d]) & self.threads for x in uses)]
        if shared:
            self._require_own(old, uses, shared)
            kept = tuple(d for d in range(len(old.shape)) if d not in shared)
            new = make_buffer(old.name, old.dtype, tuple(old.shape[d] for d in kept), old.scope)
            self.kept[old] = new, kept
            return Alloc(new, self.stmt(s.body))
        return self._Alloc(s)

    def _require_own(self, buffer: Buffer, uses: Sequence[Load], dims: Sequence[int]) -> None:
        """Require that each thread has the same coordinates along ``dims`` everywhere, and no two threads have equal
        ones."""
        first = uses[0]
        places: set[tuple[int, ...]] = set()
        for at in product(*(range(_count(x)) for x in self.frame)):
            values = {x.var: n for x, n in zip(self.frame, at)}
            try:
                here = {tuple(evaluate(x.index[d], values) for d in dims) for x in uses}
            except KeyError as error:
                raise _refuse(f"{first}: dims {list(dims)} of {buffer} depend on {error.args[0]}, too") from None
            if len(here) > 1 or here & places:
                raise _refuse(f"{first}: dims {list(dims)} of registers {buffer} do not number the threads")
            places |= here

    def visit_Load(self, v: Load) -> Value:
        known = self.kept.get(v.buffer)
        return self._Load(v) if known is None else Load(known[0], tuple(v.index[d] for d in known[1]), v.lanes)

    def visit_Store(self, s: Store) -> Stmt:
        known = self.kept.get(s.buffer)
        if known is None:
            return self._Store(s)
        return Store(known[0], tuple(s.index[d] for d in known[1]), self.expr(s.value), s.lanes)


def _accesses_of(s: Stmt) -> list[Load]:
    """Return the accesses in ``s`` of all registers, as loads."""
    out: list[Load] = []

    class Accesses(Rewriter):
        def visit_Load(self, v: Load) -> Value:
            out.append(v)
            return v

        def visit_Store(self, x: Store) -> Stmt:
            out.append(Load(x.buffer, x.index, x.lanes))
            return self._Store(x)

    Accesses().stmt(s)
    return [x for x in out if x.buffer.in_registers]


# -- barriers
class _Barriers(ThreadWalk[Accesses]):
    """Chooses the nests that a barrier precedes: each nest whose accesses conflict with accesses since the last
    barrier.

    ``parts`` are the statements that the threads execute for each nest. The barrier of the first nest under a condition
    is placed before the condition, where it always orders the threads. A barrier that other barriers make superfluous,
    such as one at the start of a loop, is removed again.
    """

    def __init__(self, threads: tuple[LoopBounds, ...], ranges: dict[Var, Range], parts: dict[Stmt, Stmt]) -> None:
        super().__init__(threads, ranges)
        self.parts = parts
        self.before: dict[Stmt, None] = {}
        self._asks = False
        self._lacks = False

    def choose(self, s: Stmt) -> dict[Stmt, None]:
        """Return the nests and conditions in ``s`` that a barrier precedes."""
        self.walk(s, (), [])
        self._asks = True
        for part in list(self.before):
            del self.before[part]
            self._lacks = False
            self.walk(s, (), [])
            if self._lacks:
                self.before[part] = None
        return self.before

    def is_unit(self, s: Stmt) -> bool:
        return s in self.parts

    def statement(self, unit: Stmt) -> Stmt:
        return self.parts[unit]

    def unit(self, s: Stmt, serial: Serial, state: Accesses) -> Accesses:
        state = self._ordered(s, s, serial, state)
        return all_accesses(state, (EarlierAccess(x, serial) for x in self.sites(s, serial)))

    def condition(self, s: If, serial: Serial, state: Accesses) -> Accesses:
        return self._ordered(s, _first_nest(s), serial, state)

    def joined(self, a: Accesses, b: Accesses) -> Accesses:
        return all_accesses(a, b)

    def carried(self, state: Accesses, loop: LoopBounds) -> Accesses:
        return [later_access(x, loop) for x in state if loop in x.serial]

    def _ordered(self, s: Stmt, nest: Stmt | None, serial: Serial, state: Accesses) -> Accesses:
        """Return the accesses since the last barrier, after adding a barrier before ``s`` if ``nest`` needs one."""
        if nest is not None and s not in self.before:
            if any(self.conflict(a, b, serial) for a in state for b in self.sites(nest, serial)):
                if self._asks:
                    self._lacks = True
                else:
                    self.before[s] = None
                    self.version += 1
        return [] if s in self.before else state


def _first_nest(s: Stmt) -> For | None:
    """Return the nest that ``s`` starts with, unless a serial loop is around it."""
    while isinstance(s, (If, Alloc)) or (isinstance(s, Block) and s.stmts):
        s = s.stmts[0] if isinstance(s, Block) else s.body
    return s if isinstance(s, For) and s.kind in THREAD_LOOPS else None


class _Replaced(Rewriter):
    """Replaces nests by the statements that the threads execute, with barriers."""

    def __init__(self, parts: dict[Stmt, Stmt], before: Container[Stmt]) -> None:
        super().__init__()
        self.parts, self.before = parts, before

    def stmt(self, s: Stmt) -> Stmt:
        out = self.parts.get(s)
        out = super().stmt(s) if out is None else out
        return block(Barrier(), out) if s in self.before else out


class _MapToThreads(ScopedRewriter):
    """Descends through loops over groups and allocations of shared memory, and makes one nest of the statements inside.
    """

    def stmt(self, s: Stmt) -> Stmt:
        if isinstance(s, Let) or (isinstance(s, For) and s.kind == "grid"):
            return super().stmt(s)
        if isinstance(s, Alloc) and s.buffer.scope == "shared":
            return super().stmt(s)
        return self._one_nest(s)

    def _one_nest(self, s: Stmt) -> Stmt:
        lifted = _Lifted()
        s = lifted.stmt(s)
        nests = [x for x in _outer_loops(s) if x.kind in THREAD_LOOPS]
        if not nests:
            return s
        of_nests = {x for nest in nests for x in nest_of(nest)}
        frame = self._frame(nests, {x.var for x in statements_of(s) if isinstance(x, (For, Let)) and x not in of_nests})
        parts: dict[Stmt, Stmt] = {x: _for_frame(nest_of(x), frame) for x in nests}
        before = _Barriers(bounds_of_threads(frame), dict(self.ranges), parts).choose(s)
        body = _OwnRegisters(frame).stmt(_Replaced(parts, before).stmt(s))
        return allocate(lifted.shared, wrap(frame, body))

    def _frame(self, nests: Sequence[For], taken: set[Var]) -> list[For]:
        """Return loops like those of the largest nest, from 0 on, under names that are not ``taken``.

        If warps execute statements together, the threads of the frame are warps.
        """
        chains = [nest_of(x) for x in nests]
        candidates = [x for x in chains if _is_of_warps(x)] or chains
        loops = max(candidates, key=lambda nest: (prod(map(_count, nest)), len(nest)))
        frame = []
        for x in loops:
            name = next(y for n in count() if Var(y := x.var.name + "_" * n) not in taken)
            frame.append(For(Var(name), as_index(0), as_index(_count(x)), x.body, x.kind))
        return frame


def _outer_loops(s: Stmt) -> Iterator[For]:
    """Yield the loops in ``s`` that are outside of loops over threads."""
    if isinstance(s, For):
        yield s
        if s.kind in THREAD_LOOPS:
            return
    for x in children(s):
        if isinstance(x, Stmt):
            yield from _outer_loops(x)


@stages(*FLATTENED, ensures=TENSORISED)
def map_to_threads(kernel: Kernel) -> Kernel:
    """Make one nest of thread loops around the serial loops of a group, and order the threads' accesses by barriers.

    Consecutive loops over threads become parts of one body; a thread keeps its number, and a loop over fewer threads
    becomes a condition. If one of the nests is over warps without lanes, the common nest is too, and the other parts
    have their loops over lanes within it. Dims of registers that number the threads are dropped. Shared memory moves
    out of the nest. A barrier precedes a part that may access, in another thread, an element that was accessed since
    the last barrier, if one of both accesses writes; barriers are placed as late as possible, so that the fewest
    suffice.

    Before::

        kernel k(a: f32[8, 4], c: f32[4])
          for x in 0 .. 2 #grid:
            alloc s: f32[4] @shared:
              alloc r: f32[4] @register:
                for t in 0 .. 4 #group:
                  r[t] = 0.0
                for k in 0 .. 4:
                  for t in 0 .. 4 #group:
                    s[t] = a[t + x * 4, k]
                  for u in 0 .. 2 #group:
                    r[u] = r[u] + s[-u + 3] * s[u]
                for t in 0 .. 2 #group:
                  c[t + x * 2] = r[t]

    After ``map_to_threads()``::

        kernel k(a: f32[8, 4], c: f32[4])
          for x in 0 .. 2 #grid:
            alloc s: f32[4] @shared:
              for t in 0 .. 4 #group:
                alloc r: f32[] @register:
                  r[] = 0.0
                  for k in 0 .. 4:
                    barrier
                    s[t] = a[t + x * 4, k]
                    barrier
                    if -t + 1 >= 0:
                      r[] = r[] + s[-t + 3] * s[t]
                  if -t + 1 >= 0:
                    c[t + x * 2] = r[]
    """
    nests = [x for x in loops_of(kernel.body) if x.kind in THREAD_LOOPS]
    if not nests or any(isinstance(x, Barrier) for x in statements_of(kernel.body)):
        return kernel
    return with_body(kernel, _MapToThreads().stmt(kernel.body))
