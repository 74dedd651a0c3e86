"""Run loops only between bounds that are known at the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from convsmith.ir.index import Index, Var, maximum, minimum
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import For, Kernel, Stmt
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import require_loops, with_body


class _Clip(Rewriter):
    def __init__(self, bounds: Mapping[str, tuple[Var, Var]]) -> None:
        super().__init__()
        self.bounds = bounds

    def visit_For(self, loop: For) -> Stmt:
        found = self.bounds.get(loop.var.name)
        lo: Index = loop.lo if found is None else maximum(loop.lo, found[0])
        hi: Index = loop.hi if found is None else minimum(loop.hi, found[1])
        return For(loop.var, lo, hi, self.stmt(loop.body), loop.kind, loop.carried)


@stages(*LOOPS)
def clip(kernel: Kernel, bounds: Sequence[tuple[str, Var, Var]]) -> Kernel:
    """Run each loop of ``bounds`` from its first size to before its second one, which become sizes of the kernel.

    A call whose left-out iterations add zeros alone passes such bounds; any other call passes those of the whole loop.

    Before::

        kernel k(a: f32[4], b: f32[3], dst: f32[1])
          for i in 0 .. 3:
            dst[0] = dst[0] + a[i] * b[i]

    After ``clip((("i", Var("first"), Var("past")),))``::

        kernel k(a: f32[4], b: f32[3], dst: f32[1], first, past)
          for i in max(0, first) .. min(3, past):
            dst[0] = dst[0] + a[i] * b[i]
    """
    require_loops(kernel, [name for name, _, _ in bounds], "clip")
    body = _Clip({name: (first, past) for name, first, past in bounds}).stmt(kernel.body)
    sizes = (size for _, first, past in bounds for size in (first, past))
    return replace(with_body(kernel, body), sizes=(*kernel.sizes, *sizes))
