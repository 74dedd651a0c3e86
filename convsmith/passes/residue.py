"""Split a loop into residue classes: expressions modulo a number are constant within each, and groups of threads can
execute one each.
"""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var, as_index, floordiv, minimum
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import FENCES, For, Kernel, Stmt
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import require_nest_order
from convsmith.passes.scope import LoopRewriter, require_loops, require_no_effects, with_body


class _Residue(LoopRewriter):
    def __init__(self, loop: str, modulus: int, name: str) -> None:
        super().__init__()
        self.loop, self.modulus, self.remainder = loop, modulus, Var(name)

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        if loop.lo is not as_index(0):
            raise ConfigError("bounds", f"residue: loop {self.loop} starts at {loop.lo}; only loops from 0 are cut")
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


@stages(*LOOPS)
def residue(kernel: Kernel, loop: str, modulus: int, name: str) -> Kernel:
    """Run ``loop`` once per residue: its variable becomes ``loop * modulus + name``, and loop ``name`` goes around it.

    A loop shorter than the modulus has as many residues as iterations. The residues of a ``grid`` loop, whose
    iterations are independent, are groups, each of which runs its iterations in sequence: a persistent kernel.

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
    """
    require_no_effects(kernel, "residue", FENCES)
    require_loops(kernel, (loop,), "residue")
    if modulus < 1:
        raise ConfigError("modulus", f"residue: loop {loop} modulo {modulus}; there is at least one class")
    return with_body(kernel, _Residue(loop, modulus, name).stmt(kernel.body))
