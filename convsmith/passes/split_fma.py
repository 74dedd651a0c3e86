"""Split fused multiply-adds into multiplications and additions."""

from __future__ import annotations

from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Kernel
from convsmith.ir.value import Binary, Fma, Value, dtype_of, is_lost_part, lanes_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import each_body


class _SplitFma(Rewriter):
    def __init__(self, kept: int) -> None:
        super().__init__()
        self.kept = kept

    def visit_Fma(self, v: Fma) -> Value:
        a, b, c = self.expr(v.a), self.expr(v.b), self.expr(v.c)
        made = Fma(a, b, c)
        is_kept = self.kept and lanes_of(made) * dtype_of(made).bits == self.kept
        return made if is_kept or is_lost_part(made) else Binary("add", c, Binary("mul", a, b))


@stages(*FLATTENED)
def split_fma(kernel: Kernel, kept: int = 0) -> Kernel:
    """Round the product of a multiply-add, on machines where a function would compute it otherwise.

    Multiply-adds of vectors of ``kept`` bits are left alone, for which the machine has an instruction. So is one that
    subtracts: it computes what a product loses when it is rounded.

    Before::

        kernel k(a: f32[4], b: f32[4], dst: f32[4])
          for i in 0 .. 4:
            dst[i] = fma(a[i], b[i], fma(a[i], a[i], neg(a[i] * a[i])))

    After ``split_fma()``::

        kernel k(a: f32[4], b: f32[4], dst: f32[4])
          for i in 0 .. 4:
            dst[i] = fma(a[i], a[i], neg(a[i] * a[i])) + a[i] * b[i]
    """
    return each_body(kernel, _SplitFma(kept).stmt)
