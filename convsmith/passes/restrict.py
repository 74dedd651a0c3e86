"""Move conditions on a loop's variable into the loop's bounds, which may then depend on outer variables."""

from __future__ import annotations

from convsmith.ir.index import Cond, Ge0, Index, Var, conj, floordiv, is_true, make_sum, maximum, minimum, parts_of
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import For, If, Kernel, Stmt
from convsmith.ir.walk import variables_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import perfect_nest, require_loops, with_body, wrap


def _bounds(cond: Cond, var: Var, inner: set[Var]) -> tuple[Index | None, Index | None] | None:
    """Return the (lower bound, end) that ``cond`` puts on ``var``, one of them None; None if it does not bound ``var``.
    """
    if type(cond) is not Ge0:
        return None
    coeffs = dict(cond.arg.terms)
    a = coeffs.pop(var, 0)
    rest = make_sum(cond.arg.const, coeffs)
    names = variables_of(rest)
    if not a or names & inner or var in names:
        return None
    if a > 0:
        return floordiv(-rest + (a - 1), a), None
    return None, floordiv(rest, -a) + 1


def _once(cond: Cond, loop: For, inner: set[Var]) -> tuple[Index | None, Index | None] | None:
    """Return the bounds by which a ``loop`` of one iteration runs only if ``cond`` holds; None if it has more
    iterations, or if ``cond`` depends on loops of the nest.
    """
    count = loop.hi - loop.lo
    if type(cond) is not Ge0 or count.terms or count.const != 1 or variables_of(cond) & {loop.var, *inner}:
        return None
    return None, loop.lo + cond.arg + 1


class _Restrict(Rewriter):
    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.names = names

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name not in self.names:
            return self._For(loop)
        (_, *chain), s = perfect_nest(loop)
        if not isinstance(s, If):
            return self._For(loop)
        inner = {x.var for x in chain}
        lo, hi, left = [loop.lo], [loop.hi], []
        for part in parts_of(s.cond):
            bounds = _bounds(part, loop.var, inner) or _once(part, loop, inner)
            if bounds is None:
                left.append(part)
            elif bounds[0] is not None:
                lo.append(bounds[0])
            elif bounds[1] is not None:
                hi.append(bounds[1])
        if len(lo) == len(hi) == 1:
            return self._For(loop)
        cond = conj(left)
        body: Stmt = s.body if is_true(cond) else If(cond, s.body)
        body = self.stmt(wrap(chain, body))
        return For(loop.var, maximum(*lo), minimum(*hi), body, loop.kind, loop.carried)


@stages(*LOOPS)
def restrict(kernel: Kernel, loops: tuple[str, ...]) -> Kernel:
    """Turn conditions of a guarded statement that bound the variable of one of ``loops`` into bounds of that loop.

    A loop of one iteration takes conditions that do not depend on the nest: it runs once, or not at all.

    Before::

        kernel k(src: f32[5], wei: f32[3], dst: f32[5])
          for ow in 0 .. 5:
            alloc acc: f32[] @register:
              acc[] = 0.0
              for kw in 0 .. 3:
                if kw + ow - 1 >= 0 and -kw - ow + 5 >= 0:
                  acc[] = acc[] + src[kw + ow - 1] * wei[kw]
              dst[ow] = acc[]

    After ``restrict(("kw",))``::

        kernel k(src: f32[5], wei: f32[3], dst: f32[5])
          for ow in 0 .. 5:
            alloc acc: f32[] @register:
              acc[] = 0.0
              for kw in max(-ow + 1, 0) .. min(-ow + 6, 3):
                acc[] = acc[] + src[kw + ow - 1] * wei[kw]
              dst[ow] = acc[]
    """
    require_loops(kernel, loops, "restrict")
    return with_body(kernel, _Restrict(tuple(loops)).stmt(kernel.body))
