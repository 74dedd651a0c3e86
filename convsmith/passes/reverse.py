"""Run the iterations of a loop from the last to the first."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import Barrier, For, Kernel, Stmt
from convsmith.ir.walk import loops_of, statements_of
from convsmith.passes.accesses import sites_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.order import in_any_order, require_order
from convsmith.passes.scope import LoopRewriter, require_loops, with_body


class _Reverse(LoopRewriter):
    def __init__(self, name: str, inner: str) -> None:
        super().__init__()
        self.name, self.inner = name, inner

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.name or all(x.var.name != self.inner for x in loops_of(loop.body)):
            return self._For(loop)
        what = f"reverse({self.name}, {self.inner})"
        if any(isinstance(x, Barrier) for x in statements_of(loop.body)):
            raise ConfigError("dependence", f"{what}: threads meet in the loop; accesses would cross their barriers")
        require_order(what, sites_of(loop, self.ranges), lambda path: in_any_order(path, {loop.var}), self.ranges)
        body = substitute(loop.body, {loop.var: loop.lo + loop.hi - 1 - loop.var})
        return For(loop.var, loop.lo, loop.hi, body, loop.kind, loop.carried)


@stages(*FLATTENED)
def reverse(kernel: Kernel, loop: str, inner: str) -> Kernel:
    """Run each loop ``loop`` around a loop ``inner`` from its last iteration to its first; any order must be legal.

    A tile of rows of which each reads some rows of a source, and the next one those behind them, finds the elements
    that it shares with the row before in registers.

    Before::

        kernel k(a: f32[6], w: f32[3], c: f32[4])
          for i in 0 .. 4:
            for t in 0 .. 3:
              c[i] = c[i] + a[i - t + 2] * w[t]

    After ``reverse("i", "t")``::

        kernel k(a: f32[6], w: f32[3], c: f32[4])
          for i in 0 .. 4:
            for t in 0 .. 3:
              c[-i + 3] = c[-i + 3] + a[-i - t + 5] * w[t]
    """
    require_loops(kernel, (loop, inner), "reverse")
    return with_body(kernel, _Reverse(loop, inner).stmt(kernel.body))
