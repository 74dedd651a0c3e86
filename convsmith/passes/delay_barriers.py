"""Move barriers behind the copies that follow them, to the loads that need them."""

from __future__ import annotations

from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import THREAD_LOOPS, Alloc, Barrier, Block, For, If, Kernel, Let, Stmt, block
from convsmith.ir.threads import nest_of
from convsmith.ir.value import Load
from convsmith.ir.walk import statements_of, walk
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import ScopedRewriter, with_body, wrap
from convsmith.passes.thread_order import UnorderedPairs, bounds_of_threads


def _has_barrier(s: Stmt) -> bool:
    return any(isinstance(x, Barrier) for x in statements_of(s))


def _loads(s: Stmt) -> bool:
    """Return whether a statement loads elements of shared memory."""
    return any(isinstance(x, Load) and x.buffer.scope == "shared" for x in walk(s))


class _Delayed(Rewriter):
    """Moves the barriers of each block in serial code to the last run of loads before the next barrier or the end of
    the block. If threads ``enter`` loops together, a barrier stands before each loop in which one has moved.
    """

    def __init__(self, enter: bool) -> None:
        super().__init__()
        self.enter = enter

    def stmt(self, s: Stmt) -> Stmt:
        return super().stmt(s) if isinstance(s, (Block, For, Let, Alloc)) and _has_barrier(s) else s

    def visit_For(self, loop: For) -> Stmt:
        new = self._For(loop)
        return block(Barrier(), new) if self.enter and new is not loop else new

    def visit_Block(self, s: Block) -> Stmt:
        out: list[Stmt] = []
        parts = [self.stmt(x) for x in s.stmts]
        while parts:
            end = next((n for n, x in enumerate(parts[1:], 1) if _has_barrier(x)), len(parts))
            out += _moved(parts[:end])
            parts = parts[end:]
        return s if out == [*s.stmts] else block(*out)


def _moved(parts: list[Stmt]) -> list[Stmt]:
    """Return statements up to a barrier, with one that stands first among them moved to their last run of loads.

    Loads of some of the threads are a run of their own.
    """
    if not isinstance(parts[0], Barrier) or parts[0].part != "whole":
        return parts
    starts = [n for n, s in enumerate(parts) if _loads(s) and (isinstance(s, If) or not _loads(parts[n - 1]))]
    return [*parts[1 : starts[-1]], parts[0], *parts[starts[-1] :]] if starts else parts


class _Delay(ScopedRewriter):
    def visit_For(self, loop: For) -> Stmt:
        if loop.kind not in THREAD_LOOPS:
            return self._For(loop)
        nest = nest_of(loop)
        if not all(x.lo.is_const and x.hi.is_const for x in nest):
            return loop
        order, body = UnorderedPairs(bounds_of_threads(nest), dict(self.ranges)), nest[-1].body
        for enter in (False, True):
            new = _Delayed(enter).stmt(body)
            if new is body:
                return loop
            if order.of(new) <= order.of(body):
                return wrap(nest, new)
        return loop


@stages(*FLATTENED, ensures=TENSORISED)
def delay_barriers(kernel: Kernel) -> Kernel:
    """Move barriers behind the copies that follow them, to the last loads from shared memory before the next barrier.

    They move only if all accesses are ordered then. Copies that stood behind a barrier are started before it. Where
    they are asynchronous, threads wait at the barrier for copies of earlier iterations, and one more group of copies
    may be on its way. A barrier before a loop may stand in for one that its first iteration no longer starts with.

    Before::

        kernel k(a: f32[48], c: f32[8])
          alloc s: f32[24] @shared:
            for t in 0 .. 8 #group:
              alloc r: f32[] @register:
                s[t] = a[t]
                s[t + 8] = a[t + 8]
                barrier
                r[] = s[-t + 7]
                for k in 0 .. 4:
                  barrier
                  s[t + (k + 2) % 3 * 8] = a[k * 8 + t + 16]
                  c[t] = c[t] + r[]
                  r[] = s[-t + (k + 1) % 3 * 8 + 7]

    After ``delay_barriers()``::

        kernel k(a: f32[48], c: f32[8])
          alloc s: f32[24] @shared:
            for t in 0 .. 8 #group:
              alloc r: f32[] @register:
                s[t] = a[t]
                s[t + 8] = a[t + 8]
                barrier
                r[] = s[-t + 7]
                barrier
                for k in 0 .. 4:
                  s[t + (k + 2) % 3 * 8] = a[k * 8 + t + 16]
                  c[t] = c[t] + r[]
                  barrier
                  r[] = s[-t + (k + 1) % 3 * 8 + 7]
    """
    return with_body(kernel, _Delay().stmt(kernel.body))
