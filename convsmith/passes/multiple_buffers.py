"""Give copies of a loop several slots, so that copies of later iterations run before the use of earlier iterations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from convsmith.arith.simplify import simplify
from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index, is_true, mod
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import Alloc, AsyncCopy, AtomicAdd, For, If, Invoke, Kernel, Let, Stmt, Store, block
from convsmith.ir.text import head_text
from convsmith.ir.value import Load
from convsmith.ir.walk import statements_of, variables_of, walk
from convsmith.passes.accesses import written_in
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.relocate import Relocate, with_slots
from convsmith.passes.scope import ScopedRewriter, allocate, gathered_allocations, require_loops, with_body


def _refuse(why: str) -> ConfigError:
    return ConfigError("buffering", f"multiple_buffers: {why}")


def _used(s: Stmt) -> set[Buffer]:
    """Return the buffers that a statement reads or writes."""
    return {x.buffer for x in walk(s) if isinstance(x, (Load, Store, AtomicAdd))}


class _Slots(ScopedRewriter):
    def __init__(self, loop: str, buffers: Collection[str], count: int, ahead: int, rounds: str) -> None:
        super().__init__()
        self.loop, self.buffers, self.count, self.ahead, self.rounds = loop, buffers, count, ahead, rounds
        self.slots: dict[Buffer, Buffer] = {}
        """The buffers with slots, by the original buffers."""
        self.around: list[Alloc | For] = []

    def visit_Alloc(self, s: Alloc) -> Stmt:
        self.around.append(s)
        body = self.stmt(s.body)
        self.around.pop()
        if body is s.body:
            return s
        new = self.slots.get(s.buffer, s.buffer)
        if new is not s.buffer and any(s.buffer in _used(x) for x in statements_of(body)):
            raise _refuse(f"{s.buffer} is used outside of loop {self.loop}, too; legal is a buffer of the loop's own")
        return Alloc(new, body)

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name == self.loop:
            return self._buffered(loop)
        self.around.append(loop)
        out = self._For(loop)
        self.around.pop()
        return out

    def _buffered(self, loop: For) -> Stmt:
        if loop.kind not in ("serial", "unrolled") or loop.carried:
            raise _refuse(f"loop {loop.var} is {loop.kind} or carries pointers; legal is a plain serial loop")
        inside, parts = gathered_allocations(loop.body)
        allocated = [*inside, *(x.buffer for x in self.around if isinstance(x, Alloc))]
        named = [b for b in allocated if b.name in self.buffers]
        if {b.name for b in named} != set(self.buffers):
            raise _refuse(f"{', '.join(self.buffers)}: not all are allocated around loop {loop.var} or within it")
        copies = [x for x in parts if not written_in(x).isdisjoint(named)]
        rest = [x for x in parts if x not in copies]
        last = max((n for n, x in enumerate(parts) if x in copies), default=0)
        if any(not _used(x).isdisjoint(named) for x in parts[:last] if x not in copies):
            raise _refuse(f"loop {loop.var} uses {', '.join(self.buffers)} before it fills them")
        self._require_copies(loop, named, copies, [b for b in inside if b not in named])
        for b in named:
            self.slots[b] = with_slots(b, self.count)

        uses = allocate((x for x in inside if x not in named), block(*rest))
        return allocate((self.slots[x] for x in inside if x in named), self._pipelined(loop, block(*copies), uses))

    def _require_copies(
        self, loop: For, named: Sequence[Buffer], copies: Sequence[Stmt], private: Sequence[Buffer]
    ) -> None:
        """Require that the copies may run earlier, and that each iteration writes the same elements."""
        written = written_in(loop.body)
        for b in named:
            where = next((n for n, x in enumerate(self.around) if isinstance(x, Alloc) and x.buffer is b), None)
            within = [] if where is None else [x.var for x in self.around[where:] if isinstance(x, For)]
            moving = {loop.var, *within}
            for s in (y for x in copies for y in statements_of(x)):
                fixed: list[Index] = []
                if isinstance(s, (Store, AtomicAdd)):
                    fixed = [*s.index] if s.buffer is b else []
                elif isinstance(s, AsyncCopy):
                    fixed = [*s.dst.index]
                bounds = {v for e in fixed for v in variables_of(e)}
                if isinstance(s, For):
                    bounds |= variables_of(s.lo) | variables_of(s.hi)
                elif isinstance(s, (If, Let)):
                    bounds |= variables_of(s.cond if isinstance(s, If) else s.value)
                if not moving.isdisjoint(bounds):
                    raise _refuse(f"`{head_text(s)}` writes other elements of {b} in another iteration of {loop.var}")
        for s in copies:
            line = head_text(s)
            if not written_in(s) <= set(named) or any(isinstance(x, (Invoke, AtomicAdd)) for x in statements_of(s)):
                raise _refuse(f"`{line}` does more than to write {', '.join(map(str, named))}")
            reads = {x.buffer for x in walk(s) if isinstance(x, Load)}
            if not reads.isdisjoint(written | set(private)):
                both = sorted(map(str, reads & (written | set(private))))
                raise _refuse(f"`{line}` reads {', '.join(both)}, which loop {loop.var} writes")

    # -- the loop
    def _at(self, s: Stmt, loop: For, iteration: Index, slot: Index) -> Stmt:
        """Return a part of the loop's body for an iteration, on a slot."""
        out: Stmt = s if iteration is loop.var else substitute(s, {loop.var: iteration})
        for old, new in self.slots.items():
            out = Relocate(old, new, lambda index: (slot, *index)).stmt(out)
        return out

    def _if_it_runs(self, loop: For, iteration: Index, s: Stmt, ranges: dict[Var, tuple[int, int]]) -> Stmt:
        cond = simplify(iteration < loop.hi, ranges)
        return s if is_true(cond) else If(cond, s)

    def _pipelined(self, loop: For, copies: Stmt, rest: Stmt) -> Stmt:
        first = [
            self._if_it_runs(loop, loop.lo + n, self._at(copies, loop, loop.lo + n, as_index(n)), self.ranges)
            for n in range(self.ahead)
        ]
        if self.rounds:
            return block(*first, *self._unrolled(loop, copies, rest))
        number = loop.var - loop.lo
        copy = self._at(copies, loop, loop.var + self.ahead, mod(number + self.ahead, self.count))
        use = self._at(rest, loop, loop.var, mod(number, self.count))
        body = block(self._if_it_runs(loop, loop.var + self.ahead, copy, self.ranges), use)
        return block(*first, For(loop.var, loop.lo, loop.hi, body, loop.kind))

    def _unrolled(self, loop: For, copies: Stmt, rest: Stmt) -> Iterator[Stmt]:
        """Yield a loop of rounds, which use every slot once, and the remaining iterations."""
        if not (loop.lo.is_const and loop.hi.is_const):
            raise _refuse(f"loop {loop.var} runs {loop.lo} .. {loop.hi}; unrolling needs a constant number")
        lo, total = loop.lo.const, loop.hi.const - loop.lo.const
        rounds = max(total - self.ahead, 0) // self.count
        var = Var(self.rounds)

        def step(iteration: Index, n: int, copy: bool) -> Iterator[Stmt]:
            if copy:
                yield self._at(copies, loop, iteration + self.ahead, as_index((n + self.ahead) % self.count))
            yield self._at(rest, loop, iteration, as_index(n % self.count))

        if rounds:
            steps = [s for n in range(self.count) for s in step(var * self.count + n + lo, n, True)]
            yield For(var, as_index(0), as_index(rounds), block(*steps))
        for n in range(rounds * self.count, total):
            yield from step(as_index(n + lo), n, n + self.ahead < total)


@stages(*LOOPS)
def multiple_buffers(
    kernel: Kernel, loop: str, buffers: tuple[str, ...], count: int, ahead: int = 1, rounds: str = ""
) -> Kernel:
    """Give the ``buffers``, which ``loop`` fills and uses, ``count`` slots, and fill each ``ahead`` iterations early.

    Iteration ``k`` fills the slot of iteration ``k + ahead``, then uses its own; the first slots are filled before the
    loop, whose body allocates its other memory at the start. Two slots with ``ahead=1`` need one barrier per iteration
    where one slot needs two; a third slot lets a thread continue with the next iteration before all threads have
    arrived. ``rounds`` names a loop of ``count`` iterations, in which slots are constant, as registers need them. A
    ``count`` of 1 changes nothing.

    Before::

        kernel k(a: f32[24], c: f32[8])
          alloc s: f32[8] @shared:
            for k in 0 .. 3:
              for t in 0 .. 8 #group:
                s[t] = a[k * 8 + t]
              for t in 0 .. 8 #group:
                c[t] = c[t] + s[-t + 7]

    After ``multiple_buffers("k", ("s",), 2)``::

        kernel k(a: f32[24], c: f32[8])
          alloc s: f32[2, 8] @shared:
            for t in 0 .. 8 #group:
              s[0, t] = a[t]
            for k in 0 .. 3:
              if -k + 1 >= 0:
                for t in 0 .. 8 #group:
                  s[(k + 1) % 2, t] = a[k * 8 + t + 8]
              for t in 0 .. 8 #group:
                c[t] = c[t] + s[k % 2, -t + 7]
    """
    require_loops(kernel, (loop,), "multiple_buffers")
    if count < 1 or not buffers:
        raise _refuse(f"{count} slots of {len(buffers)} buffers; legal is at least 1 of each")
    if count == 1:
        return kernel
    if not 1 <= ahead < count:
        raise _refuse(f"{count} slots are filled {ahead} iterations ahead; legal is 1 to {count - 1}")
    body = _Slots(loop, buffers, count, ahead, rounds).stmt(kernel.body)
    return with_body(kernel, body)
