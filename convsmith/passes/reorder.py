"""Permute perfectly nested loops, or move some of them to the innermost places."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var
from convsmith.ir.stages import FLAT
from convsmith.ir.stmt import FENCES, For, Kernel, Stmt
from convsmith.ir.walk import variables_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import require_nest_order
from convsmith.passes.scope import LoopRewriter, perfect_nest, require_loops, require_no_effects, with_body, wrap

INNERMOST = "innermost"
"""The place to which loops can move, past all other loops of their nests."""


def _needed_outside(loops: Sequence[For]) -> tuple[For, frozenset[Var]] | None:
    """Return the first of ``loops`` whose bounds depend on loops that it contains, and these; None if there is none."""
    inside = {loop.var for loop in loops}
    for loop in loops:
        if used := (variables_of(loop.lo) | variables_of(loop.hi)) & inside:
            return loop, used
        inside.discard(loop.var)
    return None


class _Reorder(LoopRewriter):
    def __init__(self, names: Sequence[str], innermost: bool) -> None:
        super().__init__()
        self.names, self.innermost = list(names), innermost
        self.what = f"reorder({', '.join(names)}{', innermost' if innermost else ''})"

    def visit_For(self, loop: For) -> Stmt:
        chain, body = perfect_nest(loop)
        moved = sorted((x for x in chain if x.var.name in self.names), key=lambda x: self.names.index(x.var.name))
        if not self.innermost and len(moved) < len(self.names):
            return self._For(loop)
        new = self._order(chain, moved)
        if found := _needed_outside(new):
            if self.innermost:
                return self._For(loop)
            used = ", ".join(sorted(map(str, found[1])))
            raise ConfigError(
                "bounds", f"reorder: the bounds of loop {found[0].var} need {used}, which would no longer be around it"
            )
        if any(a is not b and (a.kind, b.kind) != ("grid", "grid") for a, b in zip(chain, new)):
            require_nest_order(self.what, chain, new, self.ranges)  # groups run in any order
        inner = self.inside(*chain) if self.innermost else body
        return loop if new == chain and inner is body else wrap(new, inner)

    def _order(self, chain: Sequence[For], moved: Sequence[For]) -> list[For]:
        """Return the loops of ``chain`` in the new order; ``moved`` are the named loops in theirs."""
        if self.innermost:
            return [*(x for x in chain if x.var.name not in self.names), *moved]
        order = iter(moved)
        return [next(order) if x.var.name in self.names else x for x in chain]


@stages(*LOOPS, FLAT)
def reorder(kernel: Kernel, names: Sequence[str], to: str = "") -> Kernel:
    """Put the named loops of a perfect nest into the given order; other loops of the nest keep their places.

    With ``to="innermost"``, the named loops of each nest move inwards instead, past every other loop of the nest; a
    nest in which a loop's bounds forbid it is unchanged.

    Before::

        kernel k(a: f32[2, 3, 4], dst: f32[2, 3, 4])
          for i in 0 .. 2:
            for j in 0 .. 3:
              for k in 0 .. 4:
                dst[i, j, k] = a[i, j, k]

    After ``reorder(("k", "i"))``::

        kernel k(a: f32[2, 3, 4], dst: f32[2, 3, 4])
          for k in 0 .. 4:
            for j in 0 .. 3:
              for i in 0 .. 2:
                dst[i, j, k] = a[i, j, k]

    Before::

        kernel k(a: f32[5, 3], b: f32[3], dst: f32[5])
          alloc acc: f32[5] @register:
            for i in 0 .. 5:
              acc[i] = 0.0
            for i in 0 .. 5:
              for k in 0 .. 3:
                acc[i] = acc[i] + a[i, k] * b[k]
            for i in 0 .. 5:
              dst[i] = acc[i]

    After ``reorder(("i",), "innermost")``::

        kernel k(a: f32[5, 3], b: f32[3], dst: f32[5])
          alloc acc: f32[5] @register:
            for i in 0 .. 5:
              acc[i] = 0.0
            for k in 0 .. 3:
              for i in 0 .. 5:
                acc[i] = acc[i] + a[i, k] * b[k]
            for i in 0 .. 5:
              dst[i] = acc[i]
    """
    require_no_effects(kernel, "reorder", FENCES)
    require_loops(kernel, names, "reorder")
    if to not in ("", INNERMOST):
        raise ConfigError("place", f"reorder: loops cannot move to {to!r}; legal is {INNERMOST!r}")
    return with_body(kernel, _Reorder(names, to == INNERMOST).stmt(kernel.body))
