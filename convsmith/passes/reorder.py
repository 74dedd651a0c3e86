"""Permute perfectly nested loops."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.diag.errors import ConfigError
from convsmith.ir.stages import FLAT
from convsmith.ir.stmt import FENCES, For, Kernel, Stmt
from convsmith.ir.walk import variables_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import require_nest_order
from convsmith.passes.scope import LoopRewriter, perfect_nest, require_loops, require_no_effects, with_body, wrap


def _check_bounds(loops: Sequence[For]) -> None:
    inside = {loop.var for loop in loops}
    for loop in loops:
        if loop.lo.is_const and loop.hi.is_const:
            inside.discard(loop.var)
            continue
        used = (variables_of(loop.lo) | variables_of(loop.hi)) & inside
        if used:
            raise ConfigError(
                "bounds",
                f"reorder: the bounds of loop {loop.var} need {', '.join(sorted(map(str, used)))}, "
                f"which would no longer be around it",
            )
        inside.discard(loop.var)


class _Reorder(LoopRewriter):
    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names

    def visit_For(self, loop: For) -> Stmt:
        chain, body = perfect_nest(loop)
        named = {x.var.name: x for x in chain if x.var.name in self.names}
        if len(named) == len(self.names):
            order = iter(self.names)
            new = [named[next(order)] if x.var.name in named else x for x in chain]
            if new == chain:
                return loop
            _check_bounds(new)
            require_nest_order(f"reorder({', '.join(self.names)})", chain, new, self.ranges)
            return wrap(new, body)
        return self._For(loop)


@stages(*LOOPS, FLAT)
def reorder(kernel: Kernel, names: Sequence[str]) -> Kernel:
    """Put the named loops of a perfect nest into the given order; other loops of the nest keep their places.

    Before::

        kernel k(a: f32[2, 3, 4], dst: f32[2, 3, 4])
          for i in 0 .. 2:
            for j in 0 .. 3:
              for k in 0 .. 4:
                dst[i, j, k] = a[i, j, k]

    After ``reorder(("k", "i"))``::

        kernel k(a: f32[2, 3, 4], dst: f32[2, 3, 4])
          for k in 0 .. 4:
            for j in 0 .. 3:
              for i in 0 .. 2:
                dst[i, j, k] = a[i, j, k]
    """
    require_no_effects(kernel, "reorder", FENCES)
    require_loops(kernel, names, "reorder")
    return with_body(kernel, _Reorder(tuple(names)).stmt(kernel.body))
