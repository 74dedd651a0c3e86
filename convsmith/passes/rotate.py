"""Let a loop start elsewhere in its range, and end before that place."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import as_index, mod
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import FENCES, For, Kernel, Stmt
from convsmith.passes.accesses import sites_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import in_any_order, require_order
from convsmith.passes.scope import LoopRewriter, require_loops, require_no_effects, with_body


class _Rotate(LoopRewriter):
    def __init__(self, loop: str, start: int) -> None:
        super().__init__()
        self.loop, self.start = loop, start

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        if loop.lo is not as_index(0) or not loop.hi.is_const or not 0 <= self.start < loop.hi.const:
            raise ConfigError(
                "bounds", f"rotate: loop {self.loop} runs {loop.lo} .. {loop.hi}; legal are an end that is a number, "
                f"and a start within 0 .. {loop.hi}, found {self.start}",
            )  # fmt: skip
        if loop.kind != "grid":
            what, sites = f"rotate({self.loop}, {self.start})", sites_of(loop, self.ranges)
            require_order(what, sites, lambda path: in_any_order(path, {loop.var}), self.ranges)
        body = substitute(loop.body, {loop.var: mod(loop.var + self.start, loop.hi.const)})
        return For(loop.var, loop.lo, loop.hi, body, loop.kind, loop.carried)


@stages(*LOOPS)
def rotate(kernel: Kernel, loop: str, start: int) -> Kernel:
    """Run the iterations of ``loop`` from ``start`` on, and then those before it; any order of them must be legal.

    Before::

        kernel k(a: f32[3], dst: f32[3])
          for i in 0 .. 3:
            dst[i] = a[i]

    After ``rotate("i", 2)``::

        kernel k(a: f32[3], dst: f32[3])
          for i in 0 .. 3:
            dst[(i + 2) % 3] = a[(i + 2) % 3]
    """
    require_no_effects(kernel, "rotate", FENCES)
    require_loops(kernel, (loop,), "rotate")
    return with_body(kernel, _Rotate(loop, start).stmt(kernel.body)) if start else kernel
