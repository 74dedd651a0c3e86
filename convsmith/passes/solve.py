"""Replace a loop by the solution of an equation if all other iterations of the loop have no effect."""

from __future__ import annotations

from math import gcd

from convsmith.ir.index import Cond, Eq0, Index, Mod, Var, conj, eq, floordiv, make_sum, mod, parts_of
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import For, Kernel, Stmt, Store
from convsmith.ir.value import Binary, Select
from convsmith.ir.walk import variables_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import masked_term
from convsmith.passes.scope import perfect_nest, require_loops, with_body, wrap


def _solution(cond: Cond, var: Var, end: int, inner: set[Var]) -> tuple[Index, Cond] | None:
    """Return the only value of ``var`` in ``0 .. end`` that can satisfy ``cond``, and the remaining condition.

    None if the condition is no equation, possibly modulo a number, or may have several solutions.
    """
    if type(cond) is not Eq0:
        return None
    sides = dict(cond.arg.terms)
    sign = sides.pop(var, 0)
    value = make_sum(cond.arg.const, sides) * -sign
    if abs(sign) == 1 and not variables_of(value) & (inner | {var}):
        return value, conj((value >= 0, value < end))
    if cond.arg.const or len(cond.arg.terms) != 1:
        return None
    atom = cond.arg.terms[0][0]
    if not isinstance(atom, Mod):
        return None
    coeffs = dict(atom.num.terms)
    factor = coeffs.pop(var, 0)
    rest = make_sum(atom.num.const, coeffs)
    common = gcd(factor, atom.den)
    count = atom.den // common
    if not factor or end > count or variables_of(rest) & (inner | {var}):
        return None
    value = mod(floordiv(rest, common) * pow(-factor // common, -1, count), count)
    return value, conj((eq(mod(rest, common), 0), *((value < end,) if end < count else ())))


class _Solve(Rewriter):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.name:
            return self._For(loop)
        (_, *chain), s = perfect_nest(loop)
        term = masked_term(s) if isinstance(s, Store) else None
        if term is None or not (loop.lo.is_const and loop.lo.const == 0 and loop.hi.is_const):
            return loop
        inner = {x.var for x in chain}
        parts = parts_of(term.cond)
        for part in parts:
            solution = _solution(part, loop.var, loop.hi.const, inner)
            if solution is not None:
                value, left = solution
                assert isinstance(s, Store) and isinstance(s.value, Binary)
                cond = conj(left if p is part else p for p in parts)
                new = Store(s.buffer, s.index, Binary("add", s.value.a, Select(cond, term.yes, term.no)), s.lanes)
                solved: Stmt = substitute(wrap(chain, new), {loop.var: value})
                return solved
        return loop


@stages(*LOOPS)
def solve(kernel: Kernel, loop: str) -> Kernel:
    """Replace ``loop`` by the iteration whose variable solves an equation.

    The equation is part of the mask of the term that the loop adds, so all other iterations have no effect. A loop
    without an equation is unchanged. An equation may be modulo a number.

    Before::

        kernel k(a: f32[7], b: f32[4], dst: f32[5])
          for i in 0 .. 5:
            for k in 0 .. 3:
              dst[i] = dst[i] + (a[i + k] * b[k] if (i - k + 1) % 3 == 0 else 0.0)

    After ``solve("k")``::

        kernel k(a: f32[7], b: f32[4], dst: f32[5])
          for i in 0 .. 5:
            dst[i] = dst[i] + a[i + (i + 1) % 3] * b[(i + 1) % 3]

    Before::

        kernel k(a: f32[6], dst: f32[2])
          for i in 0 .. 2:
            for k.a in 0 .. 2:
              for k in 0 .. 3:
                dst[i] = dst[i] + (a[k + k.a * 3] if i - k.a == 0 else 0.0)

    After ``solve("k.a")``::

        kernel k(a: f32[6], dst: f32[2])
          for i in 0 .. 2:
            for k in 0 .. 3:
              dst[i] = dst[i] + (a[i * 3 + k] if i >= 0 and -i + 1 >= 0 else 0.0)
    """
    require_loops(kernel, (loop,), "solve")
    return with_body(kernel, _Solve(loop).stmt(kernel.body))
