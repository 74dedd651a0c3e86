"""Let the lanes that multiply take the registers that the threads that start copies leave."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import UNROLLED
from convsmith.ir.stmt import GROUP_LOOPS, For, Kernel, ShareRegisters, Stmt, block
from convsmith.ir.walk import statements_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import with_body


class _ShareRegisters(Rewriter):
    def __init__(self, shares: ShareRegisters) -> None:
        super().__init__()
        self.shares = shares

    def visit_For(self, loop: For) -> Stmt:
        inside = list(statements_of(loop.body))
        if any(isinstance(s, For) and s.kind in GROUP_LOOPS for s in inside):
            return self._For(loop)
        if loop.kind not in GROUP_LOOPS or not any(isinstance(s, For) and s.kind == "signalled" for s in inside):
            return loop
        return For(loop.var, loop.lo, loop.hi, block(self.shares, loop.body), loop.kind, loop.carried)


@stages(*FLATTENED, ensures=UNROLLED)
def share_registers(kernel: Kernel, count: int, copiers: int) -> Kernel:
    """Give the lanes that execute the statements of a group ``count`` registers each, before any other statement.

    At its launch, each thread of a group has as many registers as any other. Those that start copies leave all but
    ``copiers``, so that lanes have room for more sums.

    Before::

        kernel k(a: f32[8], c: f32[8])
          for g in 0 .. 1 #grid:
            alloc s: f32[4] @shared:
              fence barriers
              for i in 0 .. 4 #signalled:
                tensor s[i % 2 * 2] = a[0] dims(2:1, 4:2) box(2, 1) at(0, i)
                receive
                for w in 0 .. 1 #warp:
                  for l in 0 .. 2 #lane:
                    c[i * 2 + l] = s[l + i % 2 * 2]
                release step i

    After ``share_registers(112, 24)``::

        kernel k(a: f32[8], c: f32[8])
          for g in 0 .. 1 #grid:
            registers 112 beside 24
            alloc s: f32[4] @shared:
              fence barriers
              for i in 0 .. 4 #signalled:
                tensor s[i % 2 * 2] = a[0] dims(2:1, 4:2) box(2, 1) at(0, i)
                receive
                for w in 0 .. 1 #warp:
                  for l in 0 .. 2 #lane:
                    c[i * 2 + l] = s[l + i % 2 * 2]
                release step i
    """
    if not 0 < copiers < count:
        raise ConfigError(
            "registers", f"share_registers: lanes take {count} registers, threads that start copies keep {copiers}; "
            "legal is less for these"
        )  # fmt: skip
    return with_body(kernel, _ShareRegisters(ShareRegisters(count, copiers)).stmt(kernel.body))
