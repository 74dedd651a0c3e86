"""The schedule of a kernel for a machine with vectors: the phases that all of its statements pass through together.

A kernel computes one statement, the statements of a fused chain, or a transform around its product. A rewrite of the
whole kernel runs once; other rewrites run once per statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as with_fields
from typing import Protocol

from convsmith.ir.index import is_true
from convsmith.passes.bind import bind
from convsmith.passes.collapse import collapse
from convsmith.passes.hoist_pointers import hoist_pointers
from convsmith.passes.manager import Step
from convsmith.passes.name_indices import name_indices
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.outline import outline
from convsmith.passes.replace import replace
from convsmith.passes.share_storage import share_storage
from convsmith.passes.simplify import simplify
from convsmith.passes.skip_zero import skip_zero
from convsmith.passes.strength import strength_reduce
from convsmith.passes.unroll import unroll
from convsmith.passes.unvectorise import unvectorise
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.lower import (
    finish_result,
    flatten_tiles,
    join_steps,
    pick_fragments,
    stream_operands,
    vectorise_copy,
    vectorise_nest,
)
from convsmith.schedule.order import tile_registers
from convsmith.schedule.pointers import indirect
from convsmith.schedule.read import cut_copy, cut_remainders, fill_tiles, peels, stage_operands
from convsmith.schedule.schedule import Schedule


class Surrounding(Protocol):
    """Nests around the nests of a kernel's statements, which pass through the same phases."""

    def cut(self, s: Schedule) -> None:
        """Split the loops of the nests where their iterations differ."""

    def transpose(self, s: Schedule) -> None:
        """Transpose tiles of flat nests in registers."""

    def vectorise(self, s: Schedule) -> None:
        """Make vectors of innermost loops."""

    def outline(self, s: Schedule) -> None:
        """Make functions of the nests."""


def pipeline_of(
    parts: Sequence[KernelPlan], ordering: Schedule, shared: tuple[str, ...] = (), around: Surrounding | None = None
) -> tuple[Step, ...]:
    """Return the rewrites of a kernel whose statements have the plans ``parts``, after ``ordering`` has ordered their
    loops.

    Threads share the loops named ``shared``, besides the shared loops of the plans.
    """
    s = Schedule()
    s.include(ordering)
    machine = parts[0].machine
    written = [tile_registers(s, k.config, k.nest, k.sums) for k in parts]
    reads = [stage_operands(s, k, loops) for k, loops in zip(parts, written)]
    if any(map(peels, parts)):
        s.run(skip_zero)
    for k, r in zip(parts, reads):
        fill_tiles(s, k, r)
    s.run(simplify)
    through_table = any(indirect(k.columns, k.config) for k in parts)
    if through_table:
        s.run(hoist_pointers)
    if shared:
        s.run(bind, shared, "parallel")
    for n, k in reversed([*enumerate(parts)]):
        cut_remainders(s, k, reads[n])
        if (source := reads[n].source) is not None:
            reads[n] = with_fields(reads[n], source=cut_copy(s, k, source))
    if around is not None:
        around.cut(s)
    flatten_tiles(s, parts)
    if around is not None:
        around.transpose(s)
        around.outline(s)
    s.run(simplify)
    s.run(share_storage)
    for k, r in zip(parts, reads):
        pick_fragments(s, k)
        if r.source is not None:
            vectorise_copy(s, k, r.source)
    s.run(narrow_index)
    if around is not None:
        around.vectorise(s)
    for k, r in zip(parts, reads):
        vectorise_nest(s, k, r)
    s.run(replace, machine.instructions)
    for k in parts:
        join_steps(s, k)
    s.run(simplify, False)
    for k in parts:
        finish_result(s, k)
    if any(k.config.outline for k in parts):
        s.run(outline)
    if shared or any(k.config.threads > 1 for k in parts):
        s.run(collapse)
    for rewrite in (name_indices, strength_reduce, unroll):
        s.run(rewrite)
    if any(k.config.realise == "peel" and not is_true(k.columns.a.mask) for k in parts):
        s.run(simplify, False)  # pieces of the taps determine which pixels of a tile have a tap
    if machine.scalar_types:
        s.run(unvectorise, machine.scalar_types)
    if through_table:
        s.run(hoist_pointers)
    for k, r in zip(parts, reads):
        stream_operands(s, k, r)
    return tuple(s.steps)
