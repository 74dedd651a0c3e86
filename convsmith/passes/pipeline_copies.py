"""Run copies through tensor maps ahead of the statements that use them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convsmith.arith.evaluate import evaluate
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, minimum, mod
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import FENCES, For, Kernel, Let, Stmt, TensorCopy, block
from convsmith.ir.walk import variables_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.relocate import Relocate, with_slots
from convsmith.passes.residue import rounds_of_group
from convsmith.passes.scope import (
    LoopRewriter,
    allocate,
    extent,
    gathered_allocations,
    require_loops,
    require_no_effects,
    with_body,
)

MOST_CHANGES = 32
"""Most changes of the number of steps from a tile to the next one: the number of a step has a term for each."""


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
        count, lo = loop.hi - loop.lo, loop.lo
        step: Index = loop.var
        if self.around_it and count.is_const:
            step = Var(self.around_it) * count + loop.var
        elif self.around_it:  # the variable numbers the steps of all rounds
            lo = _steps_before(count, self.around, Var(self.around_it))
            body = substitute(body, {loop.var: loop.var - lo + loop.lo})
        slot = mod(step, self.slots)
        for old, new in copies.items():
            body = Relocate(old, new, lambda index: (slot, *index)).stmt(body)
        return allocate(copies.values(), For(loop.var, lo, lo + count, body, "pipelined"))


def _steps_before(count: Index, around: Sequence[For | Let], rounds: Var) -> Index:
    """Return the number of steps of a group in its earlier rounds, if it runs ``count`` steps in a round.

    ``count`` is constant in runs of consecutive tiles: in a round, groups have consecutive tiles, in their order or, in
    every second round, in the reverse order.
    """
    loops = [x for x in around if isinstance(x, For) and (x.kind == "grid" or x.var is rounds)]
    used = variables_of(count) | variables_of(loops[-1].hi) if loops else frozenset()
    if len(loops) > 2:  # groups of a cluster run the same steps
        loops = [x for x in loops[:-1] if x.var in used] + loops[-1:]
    if len(loops) != 2 or not loops[0].hi.is_const or variables_of(count) - {x.var for x in loops}:
        raise ConfigError(
            "pipeline", f"pipeline_copies: {count} steps in a round of {rounds}; legal are steps that depend on it and "
            "one loop over groups",
        )  # fmt: skip
    group, groups = loops[0].var, loops[0].hi.const
    x, g = np.indices((extent(loops[1], {group: (0, groups - 1)}), groups))
    places = {group: g, rounds: x}
    there = x < evaluate(loops[1].hi, places)
    counts = np.where(there, evaluate(count, places), 0)
    before = np.cumsum(counts, axis=0) - counts
    for turning in (False, True):
        in_order = np.where(turning & (x % 2 == 1), counts[:, ::-1], counts).ravel()[: int(there.sum())]
        ends = [int(n) + 1 for n in np.flatnonzero(in_order[1:] != in_order[:-1])][: MOST_CHANGES + 1]
        total = rounds * int(in_order[-1])
        for end in ends:
            earlier = rounds_of_group(end, group, groups, turning)
            total = total + minimum(rounds, earlier) * int(in_order[end - 1] - in_order[end])
        if len(ends) <= MOST_CHANGES and (evaluate(total, places) == before)[there].all():
            return total
    raise ConfigError(
        "pipeline", f"pipeline_copies: {count} steps in a round of {rounds} change more than {MOST_CHANGES} times"
    )


@stages(*LOOPS)
def pipeline_copies(kernel: Kernel, loop: str, slots: int, around: str = "") -> Kernel:
    """Give the shared memory that ``loop`` fills ``slots``, and let copies run ahead of its other statements.

    The slots are used cyclically, also across iterations of the loop ``around`` it, if that is given. If these have
    different numbers of steps, the variable of ``loop`` counts on from one of them to the next.

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
