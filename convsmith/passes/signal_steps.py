"""Order the copies and the products of a pipelined loop by statements: fences, waits, and arrivals at slots."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.instruction import Instruction
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import UNROLLED
from convsmith.ir.stmt import (
    AsyncCopy,
    Commit,
    Fence,
    For,
    Invoke,
    Kernel,
    Receive,
    Release,
    Stmt,
    Store,
    Wait,
    block,
)
from convsmith.ir.threads import pipeline_parts, slots_of
from convsmith.ir.value import Load
from convsmith.ir.walk import statements_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import with_body

UNDER_WAY = 1
"""Number of earlier steps whose products may still be pending when a consumer starts the products of the next step."""


class _Signals(Rewriter):
    """Replaces pipelined loops by signalled loops."""

    def __init__(self, body: Stmt, products: frozenset[str]) -> None:
        super().__init__()
        self.products, self.in_round = products, False
        self.stored = {
            x.buffer if isinstance(x, Store) else x.dst.buffer
            for x in statements_of(body) if isinstance(x, (Store, AsyncCopy))
        }  # fmt: skip

    def visit_For(self, loop: For) -> Stmt:
        if loop.kind == "pipelined":
            return self._signalled(loop)
        outer, self.in_round = self.in_round, self.in_round or loop.kind == "serial"
        made = self._For(loop)
        self.in_round = outer
        return made

    def _signalled(self, loop: For) -> Stmt:
        parts = pipeline_parts(loop)
        if parts is None:
            raise ConfigError(
                "pipeline", f"signal_steps: the loop {loop.var} does not begin with copies through tensor maps"
            )
        inside = (x for s in parts.uses for x in statements_of(s))
        products = [x for x in inside if isinstance(x, Invoke) and x.instruction in self.products]
        under_way = min(UNDER_WAY, slots_of(parts.copies) - 1) if products else 0
        before = [Fence("registers")] if products else []
        if any(isinstance(v, Load) and v.buffer in self.stored for x in products for v in x.args):
            before.append(Fence("shared"))
        ended = [Commit("products"), Wait(under_way, "products")] if products else []
        uses = (Receive(), *before, *parts.uses, *ended, Release(loop.var - under_way))
        body = parts.around(block(*parts.copies, *uses))
        after: list[Stmt] = [Wait(0, "products")] if products else []
        if under_way and self.in_round:
            after.append(Release(loop.hi - 1))
        return block(Fence("barriers"), For(loop.var, loop.lo, loop.hi, body, "signalled"), *after)


@stages(*FLATTENED, ensures=UNROLLED)
def signal_steps(kernel: Kernel, rows: tuple[Instruction, ...]) -> Kernel:
    """Order the copies of pipelined loops, and the products of ``rows``, which run beside the threads, by statements.

    A step receives its copies, and releases its slot once its products have ended. If there are several slots, the
    products of a step may end during the next one, whose release is that of the step before. Fences order the accesses
    of threads before the products, and the barriers of the slots before the first copy.

    Before::

        kernel k(a: f32[8], c: f32[8])
          alloc s: f32[4] @shared:
            for i in 0 .. 4 #pipelined:
              tensor s[i % 2 * 2] = a[0] dims(2:1, 4:2) box(2, 1) at(0, i)
              for w in 0 .. 1 #warp:
                for l in 0 .. 2 #lane:
                  c[i * 2 + l] = s[l + i % 2 * 2]

    After ``signal_steps(())``::

        kernel k(a: f32[8], c: f32[8])
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
    return with_body(kernel, _Signals(kernel.body, frozenset(row.name for row in rows)).stmt(kernel.body))
