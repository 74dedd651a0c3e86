"""Split barriers into an arrival and a wait, so that threads run the statements in between while waiting for late
threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convsmith.ir.index import as_index
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import (
    THREAD_LOOPS,
    AsyncCopy,
    Barrier,
    Block,
    Commit,
    For,
    Kernel,
    Stmt,
    Wait,
    block,
)
from convsmith.ir.threads import nest_of
from convsmith.ir.walk import children, loops_of, statements_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import ScopedRewriter, with_body, wrap
from convsmith.passes.thread_order import UnorderedPairs, bounds_of_threads


class _Other(Rewriter):
    """Replaces one statement by another."""

    def __init__(self, old: Stmt, new: Stmt) -> None:
        super().__init__()
        self.old, self.new = old, new

    def stmt(self, s: Stmt) -> Stmt:
        return self.new if s is self.old else super().stmt(s)


def _may_precede_wait(parts: Sequence[Stmt]) -> bool:
    """Return whether statements may be placed between an arrival and its wait, because they contain no barriers or
    copies.
    """
    every = (x for s in parts for x in statements_of(s))
    return not any(isinstance(x, (Barrier, AsyncCopy, Commit, Wait)) for x in every)


def _work(s: Stmt) -> int:
    """Return the number of statements that ``s`` executes; a loop whose bounds are not constant counts once."""
    below = [x for x in children(s) if isinstance(x, Stmt)]
    times = s.hi - s.lo if isinstance(s, For) else as_index(1)
    return (times.const if times.is_const else 1) * (sum(map(_work, below)) if below else 1)


def _splits(loop: For) -> Iterator[tuple[int, Stmt]]:
    """Yield the work between arrival and wait, and the statement that replaces ``loop``, for each way to split one
    barrier.

    If the split moves a barrier to the end of an iteration, a barrier before the loop may replace the first one.
    """
    parts = loop.body.stmts if isinstance(loop.body, Block) else (loop.body,)

    def split(before: Sequence[Stmt], between: Sequence[Stmt], after: Sequence[Stmt]) -> Iterator[tuple[int, Stmt]]:
        if between and _may_precede_wait(between):
            body = block(*before, Barrier("arrive"), *between, Barrier("wait"), *after)
            new, work = For(loop.var, loop.lo, loop.hi, body, loop.kind, loop.carried), sum(map(_work, between))
            yield from ((work, new), (work, block(Barrier(), new)))

    for n, s in enumerate(parts):
        if isinstance(s, Barrier) and s.part == "whole":
            for m in range(n):
                yield from split(parts[:m], parts[m:n], parts[n + 1 :])
            for m in range(n + 1, len(parts) + 1):
                yield from split(parts[:n], parts[n + 1 : m], parts[m:])
            for m in range(1, 0 if n else len(parts)):
                yield from split(parts[1:m], parts[m:], ())


class _Split(ScopedRewriter):
    def visit_For(self, loop: For) -> Stmt:
        if loop.kind not in THREAD_LOOPS:
            return self._For(loop)
        nest = nest_of(loop)
        if not all(x.lo.is_const and x.hi.is_const for x in nest):
            return loop
        order = UnorderedPairs(bounds_of_threads(nest), dict(self.ranges))
        body = nest[-1].body
        for serial in reversed(list(loops_of(body))):
            if serial.kind == "serial" and any(isinstance(x, Barrier) for x in statements_of(serial.body)):
                body = self._best(body, serial, order)
        return loop if body is nest[-1].body else wrap(nest, body)

    def _best(self, body: Stmt, serial: For, order: UnorderedPairs) -> Stmt:
        """Return ``body`` with the longest split of a barrier of ``serial`` that leaves no new pair unordered."""
        known = order.of(body)
        for _, new in sorted(_splits(serial), key=lambda x: -x[0]):
            changed = _Other(serial, new).stmt(body)
            if order.of(changed) <= known:
                return changed
        return body


@stages(*FLATTENED, ensures=TENSORISED)
def split_barriers(kernel: Kernel) -> Kernel:
    """Split a barrier of each serial loop of the threads, if statements can run between arrival and wait.

    A statement can run there if it accesses no element that other threads write before they arrive, or after they have
    waited: with three slots, for example, the products of an iteration. A barrier at the start of an iteration may move
    to its end; the first barrier is then placed before the loop. The longest legal split is taken.

    Before::

        kernel k(a: f32[48], c: f32[8])
          alloc s: f32[24] @shared:
            for t in 0 .. 8 #group:
              s[t] = a[t]
              for k in 0 .. 5:
                barrier
                s[t + (k + 1) % 3 * 8] = a[k * 8 + t + 8]
                for i in 0 .. 2:
                  c[t] = c[t] + s[i * 4 + k % 3 * 8 + t // 2]

    After ``split_barriers()``::

        kernel k(a: f32[48], c: f32[8])
          alloc s: f32[24] @shared:
            for t in 0 .. 8 #group:
              s[t] = a[t]
              barrier
              for k in 0 .. 5:
                s[t + (k + 1) % 3 * 8] = a[k * 8 + t + 8]
                barrier arrive
                for i in 0 .. 2:
                  c[t] = c[t] + s[i * 4 + k % 3 * 8 + t // 2]
                barrier wait
    """
    return with_body(kernel, _Split().stmt(kernel.body))
