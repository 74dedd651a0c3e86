"""Contract multiplications and additions to fused multiply-adds."""

from __future__ import annotations

from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Kernel, Stmt, Store
from convsmith.ir.value import Binary, Fma, Select, Value
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.order import is_only_sum
from convsmith.passes.scope import each_body


class _FormFma(Rewriter):
    def __init__(self, types: tuple[str, ...]) -> None:
        super().__init__()
        self.types = types

    def visit_Store(self, s: Store) -> Stmt:
        if s.lanes is not None or s.buffer.dtype.name not in self.types or not is_only_sum(s):
            return s
        assert isinstance(s.value, Binary)
        made = _added(s.value.a, s.value.b)
        return s if made is None else Store(s.buffer, s.index, made)


def _added(before: Value, term: Value) -> Value | None:
    """Return ``before`` plus a product, which may be absent, as fused multiply-adds; None for other terms."""
    if isinstance(term, Binary) and term.op == "mul":
        return Fma(term.a, term.b, before)
    if isinstance(term, Select):
        made = _added(before, term.yes)
        return None if made is None else Select(term.cond, made, before)
    return None


@stages(*FLATTENED)
def form_fma(kernel: Kernel, types: tuple[str, ...]) -> Kernel:
    """Add products to sums of the ``types`` by ``fma``, which rounds once; an absent term changes no sum.

    Before::

        kernel k(a: f32[4], b: f32[4], dst: f32[4])
          for i in 0 .. 4:
            dst[i] = dst[i] + a[i] * b[i]

    After ``form_fma(("f32",))``::

        kernel k(a: f32[4], b: f32[4], dst: f32[4])
          for i in 0 .. 4:
            dst[i] = fma(a[i], b[i], dst[i])
    """
    return each_body(kernel, _FormFma(types).stmt)
