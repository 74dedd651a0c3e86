"""Join nested loops whose iterations follow each other in all accesses.

One loop then steps through what two loops stepped through. Code has fewer loops, which take LLVM longer than straight
code, and runs longer without a branch that is predicted wrong.
"""

from __future__ import annotations

from convsmith.ir.index import Index, Var, as_index, product
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import For, Kernel, Stmt
from convsmith.ir.walk import AnyNode, children, variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import with_body


class _Join(Rewriter):
    def visit_For(self, s: For) -> Stmt:
        outer = self._For(s)
        if not isinstance(outer, For):
            return outer
        inner = outer.body
        if not isinstance(inner, For) or any(x.kind != "serial" or x.carried for x in (outer, inner)):
            return outer
        n = inner.hi
        if inner.lo is not as_index(0) or not n.is_const or not _follow(inner.body, outer.var, inner.var, n.const):
            return outer
        body = substitute(inner.body, {outer.var: as_index(0)})
        return For(inner.var, product(outer.lo, n), product(outer.hi, n), body)


def _follow(node: AnyNode, outer: Var, inner: Var, count: int) -> bool:
    """Return whether one iteration of the loop over ``outer`` changes each index in ``node`` by as much as ``count``
    iterations of the loop over ``inner``.
    """
    if isinstance(node, Index):
        steps = dict(node.terms)
        is_sum = not any(type(atom) is not Var and {outer, inner} & variables_of(atom) for atom in steps)
        return is_sum and steps.get(outer, 0) == steps.get(inner, 0) * count
    return all(_follow(x, outer, inner, count) for x in children(node))


@stages(*FLATTENED)
def join_loops(kernel: Kernel) -> Kernel:
    """Replace each two nested loops whose iterations follow each other in all accesses by one loop; requires a flat
    kernel.

    Before::

        kernel k(a: f32[24], dst: f32[24])
          for i in 0 .. 2:
            for j in 0 .. 3:
              for k in 0 .. 4:
                dst[i * 3 + j + k * 6] = a[i * 12 + j * 4 + k]

    After ``join_loops()``::

        kernel k(a: f32[24], dst: f32[24])
          for j in 0 .. 6:
            for k in 0 .. 4:
              dst[j + k * 6] = a[j * 4 + k]
    """
    return with_body(kernel, _Join().stmt(kernel.body))
