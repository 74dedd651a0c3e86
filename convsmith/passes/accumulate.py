"""Compute sums in several passes over the outer loop, with the partial sums in memory between passes."""

from __future__ import annotations

from dataclasses import replace

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.stmt import Alloc, Block, For, Kernel, Stmt, Store, block
from convsmith.ir.value import Load
from convsmith.ir.walk import substitute
from convsmith.passes.order import require_order_in_passes, require_sum
from convsmith.passes.scope import LoopRewriter, note_copies, require_one

Loop = For
"""Within a rewriter, ``For`` is its method."""


class _Accumulate(LoopRewriter):
    def __init__(self, outer: str, terms: str, cuts: tuple[int, int, int], passes: Index, memory: Buffer) -> None:
        super().__init__()
        self.outer, self.terms, self.cuts, self.passes, self.memory = outer, terms, cuts, passes, memory

    def For(self, loop: For) -> Stmt:
        if loop.var.name != self.outer:
            return self._For(loop)
        nest = loop.body
        if not isinstance(nest, Alloc) or not isinstance(nest.body, Block) or len(nest.body.stmts) != 3:
            raise ConfigError("not-nested", f"accumulate: loop {self.outer} must hold the three parts of a sum")
        start, sums, finish = nest.body.stmts
        if not isinstance(sums, For) or sums.var.name != self.terms:
            raise ConfigError("not-nested", f"accumulate: loop {self.terms} must be the sum within {self.outer}")
        acc, first = nest.buffer, self.cuts[0]
        require_sum("accumulate", acc, start, sums)
        if acc.shape or loop.lo is not as_index(0) or sums.lo is not as_index(0):
            raise ConfigError(
                "bounds", f"accumulate: {acc} must be a scalar, and loops {self.outer} and {self.terms} start at 0"
            )
        if any(isinstance(x, Loop) and x.kind == "parallel" for x in (*self.around, loop)):
            raise ConfigError(
                "loop-kind", f"accumulate: {self.memory} holds the sums of one thread; legal are serial loops"
            )
        if sums.hi is not self.passes * self.cuts[1] + (first + self.cuts[2]):
            raise ConfigError(
                "bounds", f"accumulate: {self.cuts} terms in {self.passes} passes are not the {sums.hi} of {self.terms}"
            )
        require_order_in_passes(f"accumulate({self.outer}, {self.terms})", loop, 1, self.ranges)
        here, there = Load(acc, (), None), Load(self.memory, (loop.var,), None)
        keep, fetch = Store(self.memory, (loop.var,), here), Store(acc, (), there)

        def over(*parts: Stmt) -> Stmt:
            return For(loop.var, loop.lo, loop.hi, Alloc(acc, block(*parts)), loop.kind)

        def terms(number: int, begin: Index) -> Stmt:
            body = substitute(sums.body, {sums.var: begin + sums.var})
            return For(sums.var, as_index(0), as_index(self.cuts[number]), body, sums.kind)

        number = Var("pass")
        middle = over(fetch, terms(1, number * self.cuts[1] + first), keep)
        last = over(fetch, terms(2, self.passes * self.cuts[1] + first), finish)
        return block(over(start, terms(0, as_index(0)), keep), For(number, as_index(0), self.passes, middle), last)


def accumulate(
    kernel: Kernel, outer: str, terms: str, cuts: tuple[int, int, int], passes: Index, memory: Buffer
) -> Kernel:
    """Run ``outer`` once for each pass over its sum: ``cuts`` terms in the first, in each of ``passes``, in the last.

    ``memory``, a new parameter, holds one partial sum per iteration between the passes.

    Before::

        kernel k(a: f32[4, 7], b: f32[4])
          for c in 0 .. 4:
            alloc acc: f32[] @register:
              acc[] = 1.0
              for k in 0 .. 7:
                acc[] = acc[] + a[c, k]
              b[c] = acc[]

    After ``accumulate("c", "k", (3, 2, 2), as_index(1), SUMS)``::

        kernel k(a: f32[4, 7], b: f32[4], sums: f32[4])
          for c in 0 .. 4:
            alloc acc: f32[] @register:
              acc[] = 1.0
              for k in 0 .. 3:
                acc[] = acc[] + a[c, k]
              sums[c] = acc[]
          for pass in 0 .. 1:
            for c in 0 .. 4:
              alloc acc: f32[] @register:
                acc[] = sums[c]
                for k in 0 .. 2:
                  acc[] = acc[] + a[c, k + pass * 2 + 3]
                sums[c] = acc[]
          for c in 0 .. 4:
            alloc acc: f32[] @register:
              acc[] = sums[c]
              for k in 0 .. 2:
                acc[] = acc[] + a[c, k + 5]
              b[c] = acc[]
    """
    require_one(kernel, (outer, terms), "accumulate")
    body = _Accumulate(outer, terms, cuts, passes, memory).stmt(kernel.body)
    return note_copies(kernel, replace(kernel, params=(*kernel.params, memory), body=body))
