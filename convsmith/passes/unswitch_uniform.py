"""Replace conditions that are uniform over a loop by one test of a value, so that the loop can become a vector."""

from __future__ import annotations

from convsmith.ir.index import Cond, Ge0, Var, as_index, conj, parts_of
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import For, If, Kernel, Stmt
from convsmith.ir.value import Select, Value
from convsmith.ir.walk import variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import LoopRewriter, with_body


class _Conditions(Rewriter):
    """Removes a variable below ``width`` from conditions that have the same value for all its values."""

    def __init__(self, var: Var, width: int) -> None:
        super().__init__()
        self.var, self.width = var, width

    def visit_If(self, s: If) -> Stmt:
        return If(self.same(s.cond), self.stmt(s.body))

    def visit_Select(self, v: Select) -> Value:
        return Select(self.same(v.cond), self.expr(v.yes), self.expr(v.no))

    def same(self, cond: Cond) -> Cond:
        if self.var not in variables_of(cond):
            return cond
        return conj(_of_all(part, self.var, self.width) for part in parts_of(cond))


def without(s: Stmt, var: Var, width: int) -> Stmt:
    """Return ``s`` with uniform conditions independent of ``var``, which is below ``width``."""
    return _Conditions(var, width).stmt(s)


def _of_all(cond: Cond, var: Var, width: int) -> Cond:
    """Return the condition without ``var``, if it has the same value for all values of ``var`` below ``width``."""
    if not isinstance(cond, Ge0):
        return cond
    step = dict(cond.arg.terms).get(var)
    rest = cond.arg - var * (step or 0)
    if step not in (1, -1) or var in variables_of(rest) or any(n % width for _, n in rest.terms):
        return cond
    first = as_index(0) if step == 1 else as_index(width - 1)
    return rest - first >= 0 if rest.const % width == first.const else cond


class _UnswitchUniform(LoopRewriter):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.name or not (loop.lo.is_const and loop.lo.const == 0 and loop.hi.is_const):
            return self._For(loop)
        return For(loop.var, loop.lo, loop.hi, without(loop.body, loop.var, loop.hi.const), loop.kind, loop.carried)


@stages(*FLATTENED)
def unswitch_uniform(kernel: Kernel, loop: str) -> Kernel:
    """Make conditions within the loop ``loop`` that are uniform over its iterations independent of its variable.

    Before::

        kernel k(a: f32[8], dst: f32[8])
          for i in 0 .. 3:
            for l in 0 .. 4:
              if -i * 4 - l + 7 >= 0:
                dst[i * 4 + l] = a[i * 4 + l]

    After ``unswitch_uniform("l")``::

        kernel k(a: f32[8], dst: f32[8])
          for i in 0 .. 3:
            for l in 0 .. 4:
              if -i + 1 >= 0:
                dst[i * 4 + l] = a[i * 4 + l]

    """
    return with_body(kernel, _UnswitchUniform(loop).stmt(kernel.body))
