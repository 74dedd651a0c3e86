"""Cut a loop into consecutive loops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import as_index
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import For, Kernel, Stmt, block
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import LoopRewriter, require_loops, with_body


class _Cut(LoopRewriter):
    def __init__(self, loop: str, places: Sequence[int]) -> None:
        super().__init__()
        self.loop, self.places = loop, places

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        if not (loop.lo.is_const and loop.hi.is_const):
            raise ConfigError("bounds", f"cut: loop {self.loop} runs {loop.lo} .. {loop.hi}; only constants are cut")
        lo, hi = loop.lo.const, loop.hi.const
        ends = [lo, *(n for n in sorted(self.places) if lo < n < hi), hi]
        bodies = ((b - a, substitute(loop.body, {loop.var: loop.var + a})) for a, b in pairwise(ends))
        return block(*(For(loop.var, as_index(0), as_index(n), body, loop.kind) for n, body in bodies))


@stages(*LOOPS)
def cut(kernel: Kernel, loop: str, places: Sequence[int]) -> Kernel:
    """Split ``loop`` at each of ``places`` into consecutive loops of the same name, each starting at 0.

    Before::

        kernel k(a: f32[2], dst: f32[8])
          for i in 0 .. 8:
            dst[i] = a[(i + 2) // 5]

    After ``cut("i", (3,))``::

        kernel k(a: f32[2], dst: f32[8])
          for i in 0 .. 3:
            dst[i] = a[(i + 2) // 5]
          for i in 0 .. 5:
            dst[i + 3] = a[i // 5 + 1]
    """
    require_loops(kernel, (loop,), "cut")
    return with_body(kernel, _Cut(loop, places).stmt(kernel.body))
