"""Load the factors of the next product into registers of their own while the present product is computed.

Threads load factors from shared memory behind a barrier, and wait for them before the first product. With two sets of
registers, the factors of the first product behind a barrier are loaded before the last product in front of it is
computed, so that products run while the loads are under way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product, takewhile
from math import prod
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import THREAD_LOOPS, Alloc, Block, For, Kernel, Stmt, block
from convsmith.ir.walk import statements_of
from convsmith.passes.accesses import written_in
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.relocate import Relocate
from convsmith.passes.scope import LoopRewriter, allocate, allocated, gathered_allocations, perfect_nest, with_body

MAX_PRODUCTS = 64
"""Maximum number of products of a step, which become straight-line code."""
_SETS = 2
"""Number of sets of registers, which successive products use in turn."""


def _refuse(why: str) -> ConfigError:
    return ConfigError("load_ahead", f"load_ahead: {why}")


class _ProductLoop(NamedTuple):
    """A loop over ``threads`` whose ``loops`` run products: each fills the ``buffers`` in registers by ``fills``, and
    reads them in ``rest``.
    """

    threads: For
    loops: tuple[For, ...]
    buffers: tuple[Buffer, ...]
    fills: tuple[Stmt, ...]
    rest: tuple[Stmt, ...]

    @property
    def points(self) -> list[dict[Var, Index]]:
        """The iterations of the loops over products, in their order."""
        around = [range(x.lo.const, x.hi.const) for x in self.loops]
        return [{x.var: as_index(n) for x, n in zip(self.loops, at)} for at in product(*around)]


class _EarlyFill(NamedTuple):
    """The loads of the factors of a product of a use, in which variables have ``values``."""

    use: _ProductLoop
    values: Mapping[Var, Index]

    def at(self, values: Mapping[Var, Index]) -> _EarlyFill:
        """Return the loads where the variables that the present values depend on have other ``values``."""
        now = {v: substitute(e, values) for v, e in self.values.items()}
        return _EarlyFill(self.use, {**values, **now})


def _use_of(s: Stmt) -> _ProductLoop | None:
    """Return a statement as a loop over threads whose products fill registers; None if it is none."""
    if not isinstance(s, For) or s.kind not in THREAD_LOOPS:
        return None
    (threads, *loops), body = perfect_nest(s)
    buffers, parts = gathered_allocations(body)
    fills = [*takewhile(lambda x: written_in(x) <= {*buffers}, parts)]
    rest = parts[len(fills) :]
    if not fills or not rest or any(x.kind in THREAD_LOOPS for x in loops):
        return None
    if not all(b.in_registers for b in buffers) or not all(x.lo.is_const and x.hi.is_const for x in (threads, *loops)):
        return None
    return _ProductLoop(threads, tuple(loops), tuple(buffers), tuple(fills), tuple(rest))


def _has_use(s: Stmt) -> bool:
    return any(_use_of(x) is not None for x in statements_of(s))


class _LoadAhead(LoopRewriter):
    def __init__(self) -> None:
        super().__init__()
        self.sets: dict[Buffer, Buffer] = {}
        """The sets of registers of each buffer."""
        self.found = False

    def visit_Alloc(self, s: Alloc) -> Stmt:
        if s.buffer.scope != "shared":
            return self._Alloc(s)
        buffers, body = allocated(s)
        parts = _parts(body)
        first = next((n for n, x in enumerate(parts) if _has_use(x)), None)
        if first is None or any(isinstance(x, Alloc) and x.buffer.scope == "shared" for x in statements_of(body)):
            return self._Alloc(s)
        fill = self._first(parts)
        assert fill is not None
        steps = [*parts[:first], self._around(fill.use.threads, [self._filled(fill, 0)])]
        steps += self._steps(parts[first:], 0, None)
        self.found = True
        return allocate((*buffers, *self.sets.values()), block(*steps))

    def _first(self, parts: Sequence[Stmt]) -> _EarlyFill | None:
        """Return the loads of the first product that ``parts`` compute; None if they compute none."""
        for s in parts:
            if (use := _use_of(s)) is not None:
                return _EarlyFill(use, use.points[0])
            if isinstance(s, For) and (inner := self._first(_parts(s.body))) is not None:
                return inner.at({s.var: s.lo})
        return None

    def _steps(self, parts: Sequence[Stmt], number: int, after: _EarlyFill | None) -> Iterator[Stmt]:
        """Yield ``parts``, whose first product is the one of this ``number``; ``after`` are the loads of the product
        behind them.
        """
        for n, s in enumerate(parts):
            if not _has_use(s):
                yield s
                continue
            following = self._first(parts[n + 1 :]) or after
            use = _use_of(s)
            if use is not None:
                yield from self._products(use, number, following)
                number += len(use.points)
            elif isinstance(s, For):
                yield from self._loop(s, number, following)
                number += _count(s)
            else:
                raise _refuse("products stand in a condition; legal are products that all threads run")

    def _loop(self, loop: For, number: int, after: _EarlyFill | None) -> Iterator[Stmt]:
        """Yield a loop, whose last iteration is apart: it loads factors of what stands behind the loop."""
        lo, hi, parts = loop.lo, loop.hi, _parts(loop.body)
        if loop.kind not in ("serial", "unrolled") or not (lo.is_const and hi.is_const) or lo.const >= hi.const:
            raise _refuse(f"loop {loop.var} is {loop.kind} and runs {lo} .. {hi}; legal is a serial one with constants")
        each = sum(map(_count, parts))
        if hi.const - lo.const > 1:
            if each % _SETS:
                raise _refuse(f"an iteration of {loop.var} has {each} products, which use {_SETS} sets of registers in "
                              f"turn; legal is a multiple of {_SETS}")  # fmt: skip
            first = self._first(parts)
            assert first is not None
            steps = [*self._steps(parts, number, first.at({loop.var: loop.var + 1}))]
            yield For(loop.var, lo, hi - 1, block(*steps), loop.kind)
        last = substitute(loop.body, {loop.var: hi - 1})
        yield from self._steps(_parts(last), number + each * (hi.const - lo.const - 1), after)

    def _products(self, use: _ProductLoop, number: int, after: _EarlyFill | None) -> Iterator[Stmt]:
        """Yield the products of a use: each loads the factors of the next one. Other threads may have to arrive before
        the factors behind the last one can be loaded, so that it has loops over threads of its own.
        """
        points = use.points
        if len(points) > MAX_PRODUCTS:
            raise _refuse(f"a step has {len(points)} products; legal are at most {MAX_PRODUCTS}")
        within: list[Stmt] = []
        for n, (at, ahead) in enumerate(pairwise(points), number):
            within += [self._filled(_EarlyFill(use, ahead), n + 1), self._used(use, at, n)]
        if within:
            yield self._around(use.threads, within)
        last = number + len(points) - 1
        loads = []
        if after is not None:
            threads = {after.use.threads.var: use.threads.var}
            loads.append(self._filled(after, last + 1, threads))
        yield self._around(use.threads, [*loads, self._used(use, points[-1], last)])

    def _filled(self, fill: _EarlyFill, number: int, threads: Mapping[Var, Index] | None = None) -> Stmt:
        """Return the loads of the factors of a product into the set of its ``number``."""
        values = {**fill.values, **(threads or {})}
        return self._in_set(substitute(block(*fill.use.fills), values), fill.use, number, threads)

    def _used(self, use: _ProductLoop, at: Mapping[Var, Index], number: int) -> Stmt:
        return self._in_set(substitute(block(*use.rest), at), use, number)

    def _in_set(self, s: Stmt, use: _ProductLoop, number: int, threads: Mapping[Var, Index] | None = None) -> Stmt:
        """Return ``s`` with the set of registers that the product of this ``number`` uses."""
        thread = (threads or {}).get(use.threads.var, use.threads.var) - use.threads.lo
        for old in use.buffers:
            shape = (use.threads.hi.const - use.threads.lo.const, _SETS, *old.shape)
            new = self.sets.setdefault(old, make_buffer(old.name, old.dtype, shape, old.scope))
            s = Relocate(old, new, lambda index: (thread, as_index(number % _SETS), *index)).stmt(s)
        return s

    def _around(self, threads: For, body: Sequence[Stmt]) -> Stmt:
        return For(threads.var, threads.lo, threads.hi, block(*body), threads.kind)


def _parts(s: Stmt) -> Sequence[Stmt]:
    return s.stmts if isinstance(s, Block) else (s,)


def _count(s: Stmt) -> int:
    """Return the number of products that a statement runs."""
    if (use := _use_of(s)) is not None:
        return prod(x.hi.const - x.lo.const for x in use.loops)
    if isinstance(s, For) and s.lo.is_const and s.hi.is_const:
        return (s.hi.const - s.lo.const) * sum(map(_count, _parts(s.body)))
    return 0


@stages(*LOOPS)
def load_ahead(kernel: Kernel) -> Kernel:
    """Load factors from shared memory into two sets of registers in turn, each before the product in front of its own.

    The loads of the first product stand before all others, and the last iteration of a loop of steps behind the loop.
    An iteration has an even number of products.

    Before::

        kernel k(a: f32[24], c: f32[2])
          alloc acc: f32[2] @register:
            for t in 0 .. 2 #group:
              acc[t] = 0.0
            alloc s: f32[2, 4] @shared:
              for t in 0 .. 4 #group:
                s[0, t] = a[t]
              for k in 0 .. 6:
                if -k + 4 >= 0:
                  for t in 0 .. 4 #group:
                    s[(k + 1) % 2, t] = a[k * 4 + t + 4]
                for t in 0 .. 2 #group:
                  for i in 0 .. 2:
                    alloc r: f32[] @register:
                      r[] = s[k % 2, i * 2 + t]
                      acc[t] = acc[t] + r[]
            for t in 0 .. 2 #group:
              c[t] = acc[t]

    After ``load_ahead()``::

        kernel k(a: f32[24], c: f32[2])
          alloc acc: f32[2] @register:
            for t in 0 .. 2 #group:
              acc[t] = 0.0
            alloc s: f32[2, 4] @shared:
              alloc r: f32[2, 2] @register:
                for t in 0 .. 4 #group:
                  s[0, t] = a[t]
                for t in 0 .. 2 #group:
                  r[t, 0] = s[0, t]
                for k in 0 .. 5:
                  if -k + 4 >= 0:
                    for t in 0 .. 4 #group:
                      s[(k + 1) % 2, t] = a[k * 4 + t + 4]
                  for t in 0 .. 2 #group:
                    r[t, 1] = s[k % 2, t + 2]
                    acc[t] = acc[t] + r[t, 0]
                  for t in 0 .. 2 #group:
                    r[t, 0] = s[(k + 1) % 2, t]
                    acc[t] = acc[t] + r[t, 1]
                for t in 0 .. 2 #group:
                  r[t, 1] = s[1, t + 2]
                  acc[t] = acc[t] + r[t, 0]
                for t in 0 .. 2 #group:
                  acc[t] = acc[t] + r[t, 1]
            for t in 0 .. 2 #group:
              c[t] = acc[t]
    """
    rewriter = _LoadAhead()
    body = rewriter.stmt(kernel.body)
    if not rewriter.found:
        raise _refuse(f"no loop over threads of {kernel.name} loads factors from shared memory for each product")
    return with_body(kernel, body)
