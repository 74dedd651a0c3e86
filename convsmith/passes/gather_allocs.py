"""Move the allocations of a loop's body to its start."""

from __future__ import annotations

from convsmith.ir.buffer import Buffer
from convsmith.ir.stmt import Alloc, Block, For, Kernel, Stmt, block
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import LoopRewriter, allocate, require_loops, with_body


class _GatherAllocs(LoopRewriter):
    def __init__(self, loop: str) -> None:
        super().__init__()
        self.loop = loop

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        found: list[Buffer] = []
        parts = _gathered(loop.body, found)
        return For(loop.var, loop.lo, loop.hi, allocate(found, block(*parts)), loop.kind, loop.carried)


def _gathered(s: Stmt, found: list[Buffer]) -> list[Stmt]:
    """Return the statements of ``s`` without its allocations, whose buffers are appended to ``found``."""
    if isinstance(s, Alloc):
        found.append(s.buffer)
        return _gathered(s.body, found)
    if isinstance(s, Block):
        return [x for part in s.stmts for x in _gathered(part, found)]
    return [s]


@stages(*LOOPS)
def gather_allocs(kernel: Kernel, loop: str) -> Kernel:
    """Allocate at the start of an iteration of ``loop`` all buffers that its body allocates, outside of inner loops.

    Before::

        kernel k(a: f32[2], c: f32[2])
          for i in 0 .. 2:
            alloc s: f32[1] @shared:
              s[0] = a[i]
              alloc r: f32[1] @shared:
                r[0] = s[0]
                c[i] = r[0]

    After ``gather_allocs("i")``::

        kernel k(a: f32[2], c: f32[2])
          for i in 0 .. 2:
            alloc s: f32[1] @shared:
              alloc r: f32[1] @shared:
                s[0] = a[i]
                r[0] = s[0]
                c[i] = r[0]

    """
    require_loops(kernel, (loop,), "gather_allocs")
    return with_body(kernel, _GatherAllocs(loop).stmt(kernel.body))
