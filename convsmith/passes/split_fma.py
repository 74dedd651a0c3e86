"""Split fused multiply-adds into multiplications and additions."""

from __future__ import annotations

from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Kernel
from convsmith.ir.value import Binary, Fma, Unary, Value
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import each_body


class _SplitFma(Rewriter):
    def visit_Fma(self, v: Fma) -> Value:
        a, b, c = self.expr(v.a), self.expr(v.b), self.expr(v.c)
        is_lost_part = isinstance(c, Unary) and c.op == "neg"
        return Fma(a, b, c) if is_lost_part else Binary("add", c, Binary("mul", a, b))


@stages(*FLATTENED)
def split_fma(kernel: Kernel) -> Kernel:
    """Round the product of a multiply-add, on machines where a function would compute it otherwise.

    A multiply-add that subtracts is left alone: it computes what a product loses when it is rounded.

    Before::

        kernel k(a: f32[4], b: f32[4], dst: f32[4])
          for i in 0 .. 4:
            dst[i] = fma(a[i], b[i], fma(a[i], a[i], neg(a[i] * a[i])))

    After ``split_fma()``::

        kernel k(a: f32[4], b: f32[4], dst: f32[4])
          for i in 0 .. 4:
            dst[i] = fma(a[i], a[i], neg(a[i] * a[i])) + a[i] * b[i]
    """
    return each_body(kernel, _SplitFma().stmt)
