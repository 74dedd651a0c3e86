"""Run copies through tensor maps ahead of the statements that use them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from convsmith.arith.evaluate import evaluate
from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
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
    def __init__(self, loop: str, slots: int, around: str, resident: Sequence[str]) -> None:
        super().__init__()
        self.loop, self.slots, self.around_it, self.resident = loop, slots, around, resident
        self.staying: list[Buffer] = []

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name == self.around_it:
            made = self._For(loop)
            return allocate(self.staying, made)
        if loop.var.name != self.loop:
            return self._For(loop)
        inside, parts = gathered_allocations(loop.body)
        steps = loop.hi - loop.lo
        if self.resident and not (self.around_it and steps.is_const):
            raise ConfigError(
                "resident", f"pipeline_copies: loop {loop.var} runs {steps} times; elements stay for the rounds of a "
                "group that all have as many steps",
            )  # fmt: skip
        slots = {b: steps.const if b.name in self.resident else self.slots for b in inside if b.scope == "shared"}
        copies = {b: with_slots(b, n) for b, n in slots.items()}
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
            place = slot if old.name not in self.resident else loop.var - lo
            body = Relocate(old, new, partial(_at_place, place)).stmt(body)
        if self.resident:
            body = block(*map(self._copied_once, gathered_allocations(body)[1]))
        self.staying = [b for b in copies.values() if b.name in self.resident]
        slotted = [b for b in copies.values() if b not in self.staying]
        return allocate(slotted, For(loop.var, lo, lo + count, body, "pipelined"))

    def _copied_once(self, s: Stmt) -> Stmt:
        """Return a copy of resident elements, which the first round makes alone; other statements as they are."""
        if not isinstance(s, TensorCopy) or s.dst.buffer.name not in self.resident:
            return s
        rounds = Var(self.around_it)
        if rounds in {v for i in (*s.at, *s.offsets) for v in variables_of(i)}:
            raise ConfigError("resident", f"pipeline_copies: `{s}` copies other elements in each round")
        return TensorCopy(s.dst, s.src, s.map, s.at, s.offsets, s.groups, rounds < 1)


def _at_place(place: Index, index: tuple[Index, ...]) -> tuple[Index, ...]:
    return (place, *index)


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
def pipeline_copies(
    kernel: Kernel, loop: str, slots: int, around: str = "", resident: Sequence[str] = ()
) -> Kernel:  # fmt: skip
    """Give the shared memory that ``loop`` fills ``slots``, and let copies run ahead of its other statements.

    The slots are used cyclically, also across iterations of the loop ``around`` it, if that is given. If these have
    different numbers of steps, the variable of ``loop`` counts on from one of them to the next. Buffers that are
    ``resident`` have a slot for each step, which the first iteration of the loop ``around`` fills, and which stay.

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
    return with_body(kernel, _PipelineCopies(loop, slots, around, resident).stmt(kernel.body))
