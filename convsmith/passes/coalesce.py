"""Coalesce two nested loops into one loop if their accesses are contiguous."""

from __future__ import annotations

from convsmith.ir.index import Cond, Ge0, Index, Var, as_index, make_sum
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import For, Kernel, Stmt
from convsmith.ir.walk import children, loops_of, variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import has_loop, with_body


class _CoefficientsDiffer(Exception):
    pass


def _check(n: object, outer: Var, inner: Var, size: int, divides: bool) -> None:
    """Raise unless the coefficient of ``outer`` in every index below is ``size`` times that of ``inner``.

    If it ``divides``, a condition may depend only on ``outer``.
    """
    if divides and isinstance(n, Ge0) and inner not in variables_of(n):
        return
    if isinstance(n, Index):
        coeffs = dict(n.terms)
        if coeffs.pop(outer, 0) != size * coeffs.pop(inner, 0):
            raise _CoefficientsDiffer
        if variables_of(make_sum(0, coeffs)) & {outer, inner}:
            raise _CoefficientsDiffer
        return
    for c in children(n):  # type: ignore[arg-type]
        _check(c, outer, inner, size, divides)


class _Divided(Rewriter):
    """Replaces ``outer`` by a quotient of ``inner`` in conditions that do not depend on ``inner``."""

    def __init__(self, outer: Var, inner: Var, size: int) -> None:
        super().__init__()
        self.outer, self.inner, self.size = outer, inner, size

    def visit_Ge0(self, c: Ge0) -> Cond:
        used = variables_of(c)
        if self.outer not in used or self.inner in used:
            return c
        divided: Cond = substitute(c, {self.outer: as_index(self.inner) // self.size})
        return divided


class _Coalesce(Rewriter):
    def __init__(self, outer: str, inner: str, name: str, divides: bool) -> None:
        super().__init__()
        self.outer, self.inner, self.name, self.divides = outer, inner, name, divides

    def visit_For(self, loop: For) -> Stmt:
        inner = loop.body
        if not has_loop(loop, (self.outer,)):
            return loop
        if loop.var.name != self.outer or not isinstance(inner, For) or inner.var.name != self.inner:
            return self._For(loop)
        if (loop.kind == "parallel") != (inner.kind == "parallel"):
            return self._For(loop)
        if not (inner.lo is as_index(0) and inner.hi.is_const and inner.hi.const > 0):
            return self._For(loop)
        size = inner.hi.const
        try:
            _check(inner.body, loop.var, inner.var, size, self.divides)
        except _CoefficientsDiffer:
            return self._For(loop)
        fused = Var(self.name)
        tested = _Divided(loop.var, inner.var, size).stmt(inner.body)
        body = substitute(tested, {loop.var: as_index(0), inner.var: fused})
        return For(fused, loop.lo * size, loop.hi * size, body, loop.kind)


@stages(*FLATTENED)
def coalesce(kernel: Kernel, outer: str, inner: str, name: str, divides: bool = False) -> Kernel:
    """Coalesce directly nested loops ``outer`` and ``inner`` into the loop ``name``, wherever all accesses permit it.

    A condition that depends only on ``outer`` prevents it, unless the new loop ``divides`` its variable there.

    Before::

        kernel k(src: f32[24], wei: f32[24], dst: f32[1])
          alloc acc: f32[] @register:
            acc[] = 0.0
            for kw in 1 .. 3:
              for ic in 0 .. 8:
                acc[] = acc[] + src[ic + kw * 8 - 8] * wei[ic + kw * 8]
            dst[0] = acc[]

    After ``coalesce("kw", "ic", "ic")``::

        kernel k(src: f32[24], wei: f32[24], dst: f32[1])
          alloc acc: f32[] @register:
            acc[] = 0.0
            for ic in 8 .. 24:
              acc[] = acc[] + src[ic - 8] * wei[ic]
            dst[0] = acc[]
    """
    if not any(x.var.name == outer and isinstance(x.body, For) for x in loops_of(kernel.body)):
        return kernel
    return with_body(kernel, _Coalesce(outer, inner, name, divides).stmt(kernel.body))
