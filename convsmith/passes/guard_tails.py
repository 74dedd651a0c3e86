"""Give loops that will be unrolled constant bounds; a guard skips the iterations beyond the original bounds."""

from __future__ import annotations

from convsmith.ir.index import as_index, conj
from convsmith.ir.stmt import For, If, Kernel, Stmt
from convsmith.ir.walk import loops_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import ScopedRewriter, loop_range, with_body


class _GuardTails(ScopedRewriter):
    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name not in self.names or (loop.lo.is_const and loop.hi.is_const):
            return self._For(loop)
        lo, hi = loop_range(loop, self.ranges)
        body = If(conj((loop.var >= loop.lo, loop.var < loop.hi)), loop.body)
        return self._For(For(loop.var, as_index(lo), as_index(hi + 1), body, loop.kind, loop.carried))


@stages(*LOOPS)
def guard_tails(kernel: Kernel, loops: tuple[str, ...]) -> Kernel:
    """Run ``loops`` over their whole range and guard each iteration; few loops need it after ``partition``.

    Before::

        kernel k(a: f32[10], dst: f32[10])
          for i.o in 0 .. 3:
            for i.i in 0 .. min(-i.o * 4 + 10, 4):
              dst[i.i + i.o * 4] = a[i.i + i.o * 4]

    After ``guard_tails(("i.i",))``::

        kernel k(a: f32[10], dst: f32[10])
          for i.o in 0 .. 3:
            for i.i in 0 .. 4:
              if i.i >= 0 and -i.i + min(-i.o * 4 + 10, 4) - 1 >= 0:
                dst[i.i + i.o * 4] = a[i.i + i.o * 4]
    """
    if not any(x.var.name in loops and (x.lo.terms or x.hi.terms) for x in loops_of(kernel.body)):
        return kernel
    return with_body(kernel, _GuardTails(tuple(loops)).stmt(kernel.body))
