"""Fuse two nested loops into one loop over the iterations of both."""

from __future__ import annotations

from typing import Literal

from convsmith.arith.ranges import Range, try_interval
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Ge0, Index, Var, as_index, floordiv, maximum, minimum, product, quotient
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import For, Kernel, Stmt
from convsmith.ir.walk import AnyNode, children, loops_of, variables_of
from convsmith.passes.contracts import FLATTENED, LOOPS, stages
from convsmith.passes.scope import LoopRewriter, extent, has_loop, require_loops, with_body

Divided = Literal["anywhere", "conditions", "nowhere"]
"""Expressions that may contain a quotient or a remainder of the fused loop."""


class _Fuse(LoopRewriter):
    def __init__(self, outer: str, inner: str, name: str, divided: Divided) -> None:
        super().__init__()
        self.outer, self.inner, self.fused, self.divided = outer, inner, Var(name), divided

    def visit_For(self, loop: For) -> Stmt:
        if not has_loop(loop, (self.outer,)):
            return loop
        if loop.var.name != self.outer:
            return self._For(loop)
        body = self.contiguous(loop) if self.divided != "anywhere" else self.any_two(loop)
        if body is None or not isinstance(loop.body, For):
            return self._For(loop)
        n = loop.body.hi
        return For(self.fused, product(loop.lo, n), product(loop.hi, n), body, loop.kind)

    def any_two(self, loop: For) -> Stmt:
        """Return the body with the quotient and the remainder of the fused loop; ConfigError if it cannot be fused."""
        inner = loop.body
        if not isinstance(inner, For) or inner.var.name != self.inner:
            raise ConfigError("not-nested", f"fuse: loop {self.inner} is not directly inside loop {self.outer}")
        counts = None if loop.var in variables_of(inner.hi) else try_interval(inner.hi, self.ranges)
        if not loop.lo is inner.lo is as_index(0) or counts is None or counts[0] < 0:
            raise ConfigError(
                "bounds", f"fuse: loops {self.outer} and {self.inner} must run from 0, {self.inner} equally often in "
                f"all iterations of {self.outer}, and to an end whose range is known",
            )  # fmt: skip
        if loop.kind != inner.kind:
            kinds = f"{loop.kind} and {inner.kind}"
            raise ConfigError("loop-kind", f"fuse: loops {self.outer} and {self.inner} are {kinds}; legal is one kind")
        n, fused = inner.hi, self.fused
        if not n.is_const:
            rounds = _quotient(fused, n, counts, extent(loop, self.ranges))
            return substitute(inner.body, {loop.var: rounds, inner.var: fused - product(rounds, n)})  # type: ignore[no-any-return]
        places = {loop.var: fused // n.const, inner.var: fused % n.const} if n.const else {}
        return substitute(inner.body, places)  # type: ignore[no-any-return]

    def contiguous(self, loop: For) -> Stmt | None:
        """Return the body if its accesses are contiguous in both loops, so that the outer one vanishes from them; None
        if they are not.
        """
        inner = loop.body
        if not isinstance(inner, For) or inner.var.name != self.inner:
            return None
        if not (inner.lo is as_index(0) and inner.hi.is_const and inner.hi.const > 0):
            return None
        if (loop.kind == "parallel") != (inner.kind == "parallel"):
            return None
        n, fused, outer = inner.hi.const, self.fused, Var(f"{loop.var}'")  # the fused loop may have its name
        if self.divided == "nowhere" and _leaves_gaps(inner.body, loop.var, inner.var, n):
            return None
        body: Stmt = substitute(inner.body, {loop.var: outer, inner.var: fused - outer * n})
        if _is_within_terms(fused, body):
            return None
        if outer not in variables_of(body):
            return body
        if self.divided == "nowhere" or not _is_only_in_conditions(outer, fused, body):
            return None
        return substitute(body, {outer: fused // n})  # type: ignore[no-any-return]


def _quotient(fused: Var, n: Index, counts: Range, rounds: int) -> Index:
    """Return ``fused // n``, for ``n`` in the range ``counts`` and quotients below ``rounds``. No variable divides if
    ``n`` has two values: the quotient by the larger one is the smaller one.
    """
    low, high = counts
    if high - low != 1:
        return quotient(fused, maximum(n, 1))
    return minimum(floordiv(fused, max(low, 1)), floordiv(fused, high) + (high - n) * (rounds * high))


def _leaves_gaps(n: AnyNode, outer: Var, inner: Var, count: int) -> bool:
    """Return whether some index in ``n`` is affine in both loops, and one iteration of ``outer`` changes it by another
    amount than ``count`` iterations of ``inner``.
    """
    if isinstance(n, Index):
        steps = dict(n.terms)
        atoms = (atom for atom in steps if type(atom) is not Var)
        return steps.get(outer, 0) != steps.get(inner, 0) * count and not any(
            {outer, inner} & variables_of(atom) for atom in atoms
        )
    return any(_leaves_gaps(x, outer, inner, count) for x in children(n))


def _is_within_terms(var: Var, n: AnyNode) -> bool:
    """Return whether ``var`` occurs in a division or an extremum of an index in ``n``, which is not contiguous."""
    if isinstance(n, Index):
        return any(type(atom) is not Var and var in variables_of(atom) for atom, _ in n.terms)
    return any(_is_within_terms(var, x) for x in children(n) if var in variables_of(x))


def _is_only_in_conditions(var: Var, fused: Var, n: AnyNode) -> bool:
    """Return whether ``var`` occurs in ``n`` only in conditions that do not depend on ``fused``."""
    if var not in variables_of(n):
        return True
    if isinstance(n, Ge0):
        return fused not in variables_of(n)
    return not isinstance(n, Index) and all(_is_only_in_conditions(var, fused, x) for x in children(n))


@stages(*LOOPS, *FLATTENED)
def fuse(kernel: Kernel, outer: str, inner: str, name: str, divided: Divided = "anywhere") -> Kernel:
    """Replace the loop ``outer`` and the loop ``inner`` directly in it by one loop ``name``.

    Before::

        kernel k(a: f32[2, 3], dst: f32[2, 3])
          for i in 0 .. 2:
            for j in 0 .. 3:
              dst[i, j] = a[i, j]

    After ``fuse("i", "j", "i_j")``::

        kernel k(a: f32[2, 3], dst: f32[2, 3])
          for i_j in 0 .. 6:
            dst[i_j // 3, i_j % 3] = a[i_j // 3, i_j % 3]

    If the new loop may be ``divided`` nowhere, or only in conditions, then only loops are fused whose iterations follow
    each other in all accesses:

    Before::

        kernel k(src: f32[24], wei: f32[24], dst: f32[1])
          alloc acc: f32[] @register:
            acc[] = 0.0
            for kw in 1 .. 3:
              for ic in 0 .. 8:
                acc[] = acc[] + src[ic + kw * 8 - 8] * wei[ic + kw * 8]
            dst[0] = acc[]

    After ``fuse("kw", "ic", "ic", "nowhere")``::

        kernel k(src: f32[24], wei: f32[24], dst: f32[1])
          alloc acc: f32[] @register:
            acc[] = 0.0
            for ic in 8 .. 24:
              acc[] = acc[] + src[ic - 8] * wei[ic]
            dst[0] = acc[]
    """
    if divided == "anywhere":
        require_loops(kernel, (outer, inner), "fuse")
    elif divided not in ("conditions", "nowhere"):
        raise ConfigError("divided", f"fuse: {divided!r}; legal are anywhere, conditions and nowhere")
    elif not any(x.var.name == outer and isinstance(x.body, For) for x in loops_of(kernel.body)):
        return kernel
    return with_body(kernel, _Fuse(outer, inner, name, divided).stmt(kernel.body))
