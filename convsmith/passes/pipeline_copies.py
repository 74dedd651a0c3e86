"""Run copies through tensor maps ahead of the statements that use them."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var, mod
from convsmith.ir.stmt import FENCES, For, Kernel, Stmt, TensorCopy, block
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.relocate import Relocate, with_slots
from convsmith.passes.scope import (
    LoopRewriter,
    allocate,
    gathered_allocations,
    require_loops,
    require_no_effects,
    with_body,
)


class _PipelineCopies(LoopRewriter):
    def __init__(self, loop: str, slots: int, around: str) -> None:
        super().__init__()
        self.loop, self.slots, self.around_it = loop, slots, around

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        inside, parts = gathered_allocations(loop.body)
        copies = {b: with_slots(b, self.slots) for b in inside if b.scope == "shared"}
        body = allocate((b for b in inside if b not in copies), block(*parts))
        filled = {x.dst.buffer for x in parts if isinstance(x, TensorCopy)}
        if loop.kind != "serial" or loop.carried or not copies or filled != set(copies):
            raise ConfigError(
                "pipeline", f"pipeline_copies: loop {loop.var} is {loop.kind}; legal is a serial loop that allocates "
                "shared memory and fills all of it by copies through tensor maps",
            )  # fmt: skip
        step = Var(self.around_it) * (loop.hi - loop.lo) + loop.var if self.around_it else loop.var
        slot = mod(step, self.slots)
        for old, new in copies.items():
            body = Relocate(old, new, lambda index: (slot, *index)).stmt(body)
        return allocate(copies.values(), For(loop.var, loop.lo, loop.hi, body, "pipelined"))


@stages(*LOOPS)
def pipeline_copies(kernel: Kernel, loop: str, slots: int, around: str = "") -> Kernel:
    """Give the shared memory that ``loop`` fills ``slots``, and let copies run ahead of its other statements.

    The slots are used cyclically, also across iterations of the loop ``around`` it, if that is given.

    Before::

        kernel k(a: f32[8, 4], c: f32[8])
          for i in 0 .. 8:
            alloc s: f32[4] @shared:
              tensor s[0] = a[0, 0] dims(4:1, 8:4) box(4, 1) at(0, i)
              c[i] = s[3]

    After ``pipeline_copies("i", 3)``::

        kernel k(a: f32[8, 4], c: f32[8])
          alloc s: f32[3, 4] @shared:
            for i in 0 .. 8 #pipelined:
              tensor s[i % 3, 0] = a[0, 0] dims(4:1, 8:4) box(4, 1) at(0, i)
              c[i] = s[i % 3, 3]
    """
    require_no_effects(kernel, "pipeline_copies", FENCES)
    require_loops(kernel, (loop, around) if around else (loop,), "pipeline_copies")
    if slots < 1:
        raise ConfigError("pipeline", f"pipeline_copies: {slots} slots for {loop}; legal is at least 1")
    return with_body(kernel, _PipelineCopies(loop, slots, around).stmt(kernel.body))
