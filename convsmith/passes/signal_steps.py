"""Order the copies and the products of a pipelined loop, and the stores of tiles, by statements: fences, waits, and
arrivals at slots.
"""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.instruction import Instruction
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import UNROLLED
from convsmith.ir.stmt import (
    Alloc,
    AsyncCopy,
    Block,
    Commit,
    Fence,
    For,
    Invoke,
    Kernel,
    Receive,
    Release,
    Stmt,
    Store,
    TensorCopy,
    Wait,
    block,
)
from convsmith.ir.threads import pipeline_parts, slots_of
from convsmith.ir.value import Load
from convsmith.ir.walk import statements_of
from convsmith.passes.accesses import written_in
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import allocate, with_body

UNDER_WAY = 1
"""Number of earlier steps whose products may still be pending when a consumer starts the products of the next step."""


class _Signals(Rewriter):
    """Replaces pipelined loops by signalled loops, and makes groups of adjacent stores of tiles."""

    def __init__(self, body: Stmt, products: frozenset[str]) -> None:
        super().__init__()
        self.products, self.in_round = products, False
        self.leaving, self.kept = _leaving(body), list[Buffer]()
        self.stored = {
            x.buffer if isinstance(x, Store) else x.dst.buffer
            for x in statements_of(body) if isinstance(x, (Store, AsyncCopy))
        }  # fmt: skip

    def visit_For(self, loop: For) -> Stmt:
        if loop.kind == "pipelined":
            return self._signalled(loop)
        outer, self.in_round = self.in_round, self.in_round or loop.kind == "serial"
        body = self.stmt(loop.body)
        self.in_round = outer
        body = self.waited(body) if loop.kind == "grid" else body
        return For(loop.var, loop.lo, loop.hi, body, loop.kind, loop.carried)

    def visit_Alloc(self, s: Alloc) -> Stmt:
        if s.buffer not in self.leaving:
            return self._Alloc(s)
        self.kept.append(s.buffer)
        return self.stmt(s.body)

    def visit_TensorCopy(self, s: TensorCopy) -> Stmt:
        return block(Fence("shared"), s, Commit("stores")) if s.is_store else s

    def visit_Block(self, s: Block) -> Stmt:
        out: list[Stmt] = []
        run: list[Stmt] = []
        left: set[Buffer] = set()
        for n, x in enumerate(s.stmts):
            if isinstance(x, TensorCopy) and x.is_store:
                run.append(x)
                left.add(x.src.buffer)
                continue
            if run:
                out += [Fence("shared"), *run, Commit("stores")]
                run = []
            under_way = left | (_leaving(Block(s.stmts[n + 1 :])) if self.in_round else set())
            if not written_in(x).isdisjoint(under_way):
                out.append(Wait(0, "stores"))
            out.append(self.stmt(x))
        return block(*out, *([Fence("shared"), *run, Commit("stores")] if run else []))

    def waited(self, body: Stmt) -> Stmt:
        """Return the statements of a group in the arrays from which tiles are stored, which outlive the stores."""
        kept, self.kept = self.kept, []
        return allocate(kept, block(body, Wait(0, "stores"))) if kept else body

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


def _leaving(s: Stmt) -> set[Buffer]:
    """Return the arrays in shared memory from which tiles are stored."""
    return {x.src.buffer for x in statements_of(s) if isinstance(x, TensorCopy) and x.is_store}


@stages(*FLATTENED, ensures=UNROLLED)
def signal_steps(kernel: Kernel, rows: tuple[Instruction, ...]) -> Kernel:
    """Order the copies of pipelined loops, and the products of ``rows``, which run beside the threads, by statements.

    A step receives its copies, and releases its slot once its products have ended. If there are several slots, the
    products of a step may end during the next one, whose release is that of the step before. Fences order the accesses
    of threads before the products, and the barriers of the slots before the first copy. A fence also orders what
    threads have written before a tile of it is stored, and they wait until it has been read before they write the next
    tile.

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
    signals = _Signals(kernel.body, frozenset(row.name for row in rows))
    return with_body(kernel, signals.waited(signals.stmt(kernel.body)))
