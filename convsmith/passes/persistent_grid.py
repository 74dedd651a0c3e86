"""Run the groups of a grid in rounds: as many groups as are resident on the device share the iterations."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var, as_index, floordiv
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import For, Kernel, Stmt
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import LoopRewriter, require_loops, with_body


class _PersistentGrid(LoopRewriter):
    def __init__(self, loop: str, groups: int, name: str) -> None:
        super().__init__()
        self.loop, self.groups, self.group = loop, groups, Var(name)

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        if loop.kind != "grid" or not loop.lo.is_const or loop.lo.const or not loop.hi.is_const:
            raise ConfigError(
                "rounds", f"persistent_grid: loop {self.loop} is {loop.kind}; legal is a grid loop from 0"
            )
        number, size = self.group, self.groups
        body = substitute(loop.body, {loop.var: loop.var * size + number})
        inner = For(loop.var, loop.lo, floordiv(loop.hi - number + (size - 1), size), body)
        return For(number, as_index(0), as_index(min(size, loop.hi.const)), inner, "grid")


@stages(*LOOPS)
def persistent_grid(kernel: Kernel, loop: str, groups: int, name: str) -> Kernel:
    """Distribute the iterations of a grid ``loop`` over at most ``groups`` groups, which run several in sequence.

    The new loop ``name`` over the groups surrounds the loop, which counts the rounds of a group. Iterations of a grid
    are independent, so they may run in any order.

    Before::

        kernel k(a: f32[5], dst: f32[5])
          for g in 0 .. 5 #grid:
            dst[g] = a[g]

    After ``persistent_grid("g", 2, "g.p")``::

        kernel k(a: f32[5], dst: f32[5])
          for g.p in 0 .. 2 #grid:
            for g in 0 .. (-g.p) // 2 + 3:
              dst[g * 2 + g.p] = a[g * 2 + g.p]
    """
    require_loops(kernel, (loop,), "persistent_grid")
    if groups < 1:
        raise ConfigError("rounds", f"persistent_grid: {groups} groups for {loop}; legal is at least 1")
    return with_body(kernel, _PersistentGrid(loop, groups, name).stmt(kernel.body))
