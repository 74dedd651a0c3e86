"""Split a loop into residue classes: expressions modulo a number are constant within each, and groups of threads can
execute one each.
"""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, as_index, floordiv, minimum, mod, product
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import FENCES, For, Kernel, Stmt
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import require_nest_order
from convsmith.passes.scope import LoopRewriter, require_loops, require_no_effects, with_body


class _Residue(LoopRewriter):
    def __init__(self, loop: str, modulus: int, name: str, turning: bool) -> None:
        super().__init__()
        self.loop, self.modulus, self.remainder, self.turning = loop, modulus, Var(name), turning

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        if loop.lo is not as_index(0):
            raise ConfigError("bounds", f"residue: loop {self.loop} starts at {loop.lo}; only loops from 0 are cut")
        if self.turning:
            return self.turned(loop)
        m, r = self.modulus, self.remainder
        body = substitute(loop.body, {loop.var: loop.var * m + r})
        if loop.kind != "grid":
            # In the order of the loop: residue classes within rounds.
            classes = For(r, loop.lo, minimum(m, loop.hi - loop.var * m), body)
            rounds = For(loop.var, loop.lo, floordiv(loop.hi + (m - 1), m), classes)
            require_nest_order(f"residue({self.loop})", [rounds, classes], [classes, rounds], self.ranges)
        kind = "serial" if loop.kind == "grid" else loop.kind
        inner = For(loop.var, loop.lo, floordiv(loop.hi - r + (m - 1), m), body, kind)
        return For(r, loop.lo, as_index(min(m, loop.hi.const) if loop.hi.is_const else m), inner, loop.kind)


    def turned(self, loop: For) -> Stmt:
        """Return the loops of a grid over groups whose order is reversed in every second round."""
        if loop.kind != "grid" or not loop.hi.is_const or loop.hi.const < self.modulus:
            raise ConfigError(
                "bounds", f"residue: loop {self.loop} is {loop.kind} and runs 0 .. {loop.hi}; legal for turning groups "
                f"is a loop over groups of at least {self.modulus} iterations",
            )  # fmt: skip
        m, r, is_odd = self.modulus, self.remainder, mod(loop.var, 2)
        place = r + is_odd * (m - 1) - product(is_odd, r) * 2
        body = substitute(loop.body, {loop.var: loop.var * m + place})
        rounds = rounds_of_group(loop.hi.const, r, m, True)
        return For(r, loop.lo, as_index(m), For(loop.var, loop.lo, rounds, body), loop.kind)


def rounds_of_group(tiles: int, group: Var, groups: int, turning: bool) -> Index:
    """Return how many of the first ``tiles`` a group computes if ``groups`` take one in each round, in their order; in
    reverse order in every second round if they are ``turning``.
    """
    whole, rest = divmod(tiles, groups)
    place = groups - 1 - group if turning and whole % 2 else group
    return floordiv(rest - place + (groups - 1), groups) + whole


@stages(*LOOPS)
def residue(kernel: Kernel, loop: str, modulus: int, name: str, turning: bool = False) -> Kernel:
    """Run ``loop`` once per residue: its variable becomes ``loop * modulus + name``, and loop ``name`` goes around it.

    A loop shorter than the modulus has as many residues as iterations. The residues of a ``grid`` loop, whose
    iterations are independent, are groups, each of which runs its iterations in sequence: a persistent kernel. The
    groups take iterations in reverse order in every second round if they are ``turning``: where iterations get shorter,
    the group with the longest one of a round then has the shortest one of the next.

    Before::

        kernel k(a: f32[3], dst: f32[5])
          for i in 0 .. 5:
            if i % 2 == 0:
              dst[i] = a[i // 2]

    After ``residue("i", 2, "i.r")``::

        kernel k(a: f32[3], dst: f32[5])
          for i.r in 0 .. 2:
            for i in 0 .. (-i.r) // 2 + 3:
              if i.r % 2 == 0:
                dst[i * 2 + i.r] = a[i + i.r // 2]

    Before::

        kernel k(a: f32[5], dst: f32[5])
          for g in 0 .. 5 #grid:
            dst[g] = a[g]

    After ``residue("g", 2, "g.p")``::

        kernel k(a: f32[5], dst: f32[5])
          for g.p in 0 .. 2 #grid:
            for g in 0 .. (-g.p) // 2 + 3:
              dst[g * 2 + g.p] = a[g * 2 + g.p]

    After ``residue("g", 2, "g.p", True)``::

        kernel k(a: f32[5], dst: f32[5])
          for g.p in 0 .. 2 #grid:
            for g in 0 .. (-g.p) // 2 + 3:
              dst[g * 2 + g.p + g % 2 - g.p * (g % 2) * 2] = a[g * 2 + g.p + g % 2 - g.p * (g % 2) * 2]
    """
    require_no_effects(kernel, "residue", FENCES)
    require_loops(kernel, (loop,), "residue")
    if modulus < 1:
        raise ConfigError("modulus", f"residue: loop {loop} modulo {modulus}; there is at least one class")
    return with_body(kernel, _Residue(loop, modulus, name, turning).stmt(kernel.body))
