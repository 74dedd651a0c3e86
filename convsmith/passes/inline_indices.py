"""Substitute sums and multiples for the variables that name them, so that equal accesses have equal indices."""

from __future__ import annotations

from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import Kernel, Let, Stmt
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.lets import has_costly
from convsmith.passes.scope import each_body


class _Inline(Rewriter):
    def visit_Let(self, s: Let) -> Stmt:
        if has_costly(s.value):
            return self._Let(s)
        return self.stmt(substitute(s.body, {s.var: s.value}))


@stages(*FLATTENED, ensures=TENSORISED)
def inline_indices(kernel: Kernel) -> Kernel:
    """Replace each variable that names a sum of multiples of others, as `name_indices` names products of sizes by loops
    that `unroll` expands.

    Before::

        kernel k(a: f32[64], dst: f32[4])
          for i in 0 .. 4:
            let inv0 = i * 2:
              let inv1 = i + inv0:
                dst[i] = a[inv0 + inv1]

    After ``inline_indices()``::

        kernel k(a: f32[64], dst: f32[4])
          for i in 0 .. 4:
            dst[i] = a[i * 5]
    """
    return each_body(kernel, lambda s: _Inline().stmt(s))
