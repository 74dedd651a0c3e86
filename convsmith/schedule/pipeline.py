"""The schedule of a kernel on any machine: the phases that all of its statements pass through together.

A kernel computes one statement, the statements of a fused chain, or a transform around its product. A rewrite of the
whole kernel runs once; other rewrites run once per statement. The phases are the same for all machines: the levels of
a nest, the rows of the machine and the stagings of the config decide which rewrites a phase consists of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import Protocol

from convsmith.diag.forking import cached_property
from convsmith.ir.index import is_true
from convsmith.machine.base import Machine
from convsmith.passes.bind import bind
from convsmith.passes.hoist_pointers import hoist_pointers
from convsmith.passes.manager import Step
from convsmith.passes.simplify import simplify
from convsmith.passes.skip_zero import skip_zero
from convsmith.schedule.copies import restricted
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.lower import (
    finish_result,
    flat_code,
    flatten_tiles,
    join_steps,
    make_vectors,
    merge_products,
    pick_fragments,
    run_threads,
    single_of,
    straight_code,
    stream_operands,
    vectorise_copy,
    vectorise_nest,
    write_beside_products,
)
from convsmith.schedule.near_copies import lower_near, order_near
from convsmith.schedule.order import tile_registers
from convsmith.schedule.pointers import indirect
from convsmith.schedule.read import (
    Reads,
    cut_copy,
    cut_remainders,
    fill_registers,
    fill_tiles,
    has_empty_classes,
    has_guards,
    peels,
    stage_operands,
)
from convsmith.schedule.schedule import Schedule
from convsmith.schedule.transposed_copies import lower_transposed


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

    def scale(self, s: Schedule) -> None:
        """Make vectors scalable where the machine has such."""


@dataclass
class KernelParts:
    """The plans ``parts`` of a kernel's statements, with their ``reads`` once operands are staged.

    Host threads share the loops named ``shared``, besides the shared loops of the plans. Other nests may be ``around``.
    """

    parts: Sequence[KernelPlan]
    shared: tuple[str, ...] = ()
    around: Surrounding | None = None
    reads: Sequence[Reads] = ()

    @property
    def machine(self) -> Machine:
        """The machine for which the kernel is made."""
        return self.parts[0].machine

    @cached_property
    def through_table(self) -> bool:
        """Whether a statement reads its source through a table of pointers."""
        return any(indirect(k.columns, k.config) for k in self.parts)


def stage(s: Schedule, kernel: KernelParts) -> None:
    """Form the tiles of sums, and copy operands to memory that is nearer to them."""
    tiles = [tile_registers(s, k) for k in kernel.parts]
    kernel.reads = [stage_operands(s, k, tile) for k, tile in zip(kernel.parts, tiles)]


def realise(s: Schedule, kernel: KernelParts) -> None:
    """Realise absent elements, fill tiles to whole vectors, and load registers."""
    if any(peels(k) or has_empty_classes(k) or restricted(k.config) for k in kernel.parts):
        s.run(skip_zero)
    for k, r in zip(kernel.parts, kernel.reads):
        fill_tiles(s, k, r)
    s.run(simplify)
    kernel.reads = [fill_registers(s, k, r) for k, r in zip(kernel.parts, kernel.reads)]


def split(s: Schedule, kernel: KernelParts) -> None:
    """Bind loops to host threads and to straight-line code, and split nests where their iterations differ."""
    if kernel.through_table:
        s.run(hoist_pointers)
    if kernel.shared:
        s.run(bind, kernel.shared, "parallel")
    cut = []
    for k, r in reversed([*zip(kernel.parts, kernel.reads)]):
        cut_remainders(s, k, r)
        near = {n: order_near(s, x, k.machine) for n, x in r.near.items()}
        source, turned = (None, None) if r.source is None else cut_copy(s, k, r.source)
        cut.append(with_fields(r, source=source, near=near, turned=turned))
    kernel.reads = cut[::-1]
    if kernel.around is not None:
        kernel.around.cut(s)


def tensorise(s: Schedule, kernel: KernelParts) -> None:
    """Give nests flat offsets, and replace loops by instructions on fragments and by vectors."""
    machine, around, statements = kernel.machine, kernel.around, [*zip(kernel.parts, kernel.reads)]
    flatten_tiles(s, kernel.parts)
    if around is not None:
        around.transpose(s)
        around.outline(s)
    flat_code(s, machine)
    for n, (k, r) in enumerate(statements):
        pick_fragments(s, k, r.tile)
        if r.source is not None:
            statements[n] = k, with_fields(r, source=vectorise_copy(s, k, r.source))
        if r.turned is not None:
            lower_transposed(s, r.turned, machine)
        for near in r.near.values():
            lower_near(s, near, machine)

    def vectorise() -> None:
        if around is not None:
            around.vectorise(s)
        for k, r in statements:
            vectorise_nest(s, k, r)
            run_threads(s, k, r)

    make_vectors(s, machine, vectorise, [x for k in kernel.parts if (x := single_of(k)) is not None])
    kernel.reads = [r for _, r in statements]
    for k in kernel.parts:
        join_steps(s, k)


def lower(s: Schedule, kernel: KernelParts) -> None:
    """Lower vectors and instructions to straight-line code, functions, tasks and pointers."""
    parts = kernel.parts
    s.run(simplify, False)
    for k, r in zip(parts, kernel.reads):
        finish_result(s, k, r)
    if kernel.around is not None:
        kernel.around.scale(s)
    write_beside_products(s, parts)
    straight_code(
        s, kernel.machine, outlines=any(k.config.outline for k in parts),
        is_shared=bool(kernel.shared) or any(k.config.threads > 1 for k in parts), through_table=kernel.through_table,
        peels=any(k.config.realise == "peel" and not is_true(k.columns.a.mask) for k in parts),
        guards=any(map(has_guards, parts)),
        signals=any(k.brought is not None for k in parts), carries=any(k.config.carry for k in parts),
        clusters=[x for k in parts for x in k.nest.at("cluster")],
        registers=next((k.brought.registers for k in parts if k.brought is not None), None),
        teams=max(k.nest.teams for k in parts),
    )  # fmt: skip
    for k, r in zip(parts, kernel.reads):
        merge_products(s, k)
        stream_operands(s, k, r)


PHASES: tuple[Callable[[Schedule, KernelParts], None], ...] = (stage, realise, split, tensorise, lower)
"""The phases of all kernels after their loops are ordered."""


def pipeline_of(
    parts: Sequence[KernelPlan], ordering: Schedule, shared: tuple[str, ...] = (), around: Surrounding | None = None
) -> tuple[Step, ...]:
    """Return the rewrites of a kernel whose statements have the plans ``parts``, after ``ordering`` has ordered their
    loops.
    """
    s, kernel = Schedule(), KernelParts(parts, shared, around)
    s.include(ordering)
    for phase in PHASES:
        phase(s, kernel)
    return tuple(s.steps)
