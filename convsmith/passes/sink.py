"""Move loops to the innermost place of their perfect nests."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.ir.stmt import FENCES, For, Kernel, Stmt
from convsmith.ir.walk import variables_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import require_nest_order
from convsmith.passes.scope import LoopRewriter, perfect_nest, require_loops, require_no_effects, with_body, wrap


class _Sink(LoopRewriter):
    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names

    def visit_For(self, loop: For) -> Stmt:
        chain, body = perfect_nest(loop)
        moving = [x for x in chain if x.var.name in self.names]
        staying = [x for x in chain if x.var.name not in self.names]
        moving.sort(key=lambda x: self.names.index(x.var.name))
        new = staying + moving
        later = {x.var for x in new}
        for x in new:
            if later & (variables_of(x.lo) | variables_of(x.hi)):
                return self._For(loop)
            later.discard(x.var)
        if new != chain:
            require_nest_order(f"sink({', '.join(self.names)})", chain, new, self.ranges)
        new_body = self.inside(*chain)
        return loop if new == chain and new_body is body else wrap(new, new_body)


@stages(*LOOPS)
def sink(kernel: Kernel, names: Sequence[str]) -> Kernel:
    """Move the named loops inwards, past every other loop of their perfect nest, in the order given.

    Before::

        kernel k(a: f32[5, 3], b: f32[3], dst: f32[5])
          alloc acc: f32[5] @register:
            for i in 0 .. 5:
              acc[i] = 0.0
            for i in 0 .. 5:
              for k in 0 .. 3:
                acc[i] = acc[i] + a[i, k] * b[k]
            for i in 0 .. 5:
              dst[i] = acc[i]

    After ``sink(("i",))``::

        kernel k(a: f32[5, 3], b: f32[3], dst: f32[5])
          alloc acc: f32[5] @register:
            for i in 0 .. 5:
              acc[i] = 0.0
            for k in 0 .. 3:
              for i in 0 .. 5:
                acc[i] = acc[i] + a[i, k] * b[k]
            for i in 0 .. 5:
              dst[i] = acc[i]
    """
    require_no_effects(kernel, "sink", FENCES)
    require_loops(kernel, names, "sink")
    return with_body(kernel, _Sink(list(names)).stmt(kernel.body))
