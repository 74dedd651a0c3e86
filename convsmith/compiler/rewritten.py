"""The kernels of a plan after all rewrites, and the places of their private buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from convsmith.codegen.artifact import Launch
from convsmith.compiler.launch import launch_of
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer
from convsmith.ir.stmt import Alloc, Kernel
from convsmith.ir.walk import loops_of, statements_of
from convsmith.passes.manager import Instrument, Step, run_steps
from convsmith.schedule.packing import packing_steps
from convsmith.schedule.plan import Plan

__all__ = ["Lowered", "in_order", "preparing", "private_buffers", "rewritten"]

_LINE = 64
"""Bytes of a cache line, to which private buffers are aligned."""


@record(frozen=True)
class Lowered:
    """The kernels of a plan after all rewrites, and their LLVM text.

    The kernels ``before`` and ``after`` run in each call, around ``kernel``; ``packs``, which pack operands and sum
    packed entries, run when an operand is packed. Each thread needs ``scratch`` bytes, in which private buffers have
    ``places``, a start and an end. ``launched`` maps the symbols of all kernels to the kernels and their launches.
    """

    kernel: Kernel
    packs: tuple[Kernel, ...]
    before: tuple[Kernel, ...]
    after: tuple[Kernel, ...]
    text: str
    scratch: int
    places: Mapping[Buffer, tuple[int, int]]
    launched: Mapping[str, tuple[Kernel, Launch]]

    def __str__(self) -> str:
        """Return the kernels of each call in the order in which they run, each with the kernels that prepare its
        arguments.
        """
        names = {k.name for k in self.before}
        main = replace(self.kernel, before=tuple(k for k in self.kernel.before if k.name not in names))
        return "".join(map(str, (*self.before, main)))


def rewritten(plan: Plan, instruments: Sequence[Instrument] = ()) -> Lowered:
    """Run the pipelines of ``plan``, the main one under ``instruments``; the text is empty."""
    kernel = run_steps(plan.naive(), plan.pipeline, instruments)
    prepared = _prepared(plan, kernel)
    after = tuple(run_steps(k, steps) for k, steps in plan.finishing())
    registers = max((k.config.register_file for k in plan.kernels), default=0)
    launched = {plan.symbol(): (kernel, launch_of(kernel, plan.threads(), plan.machine, registers))}
    for k in (*prepared.values(), *after):
        launched[plan.symbol(k.name)] = (k, launch_of(k, _threads(plan, k), plan.machine, registers))
    places: dict[Buffer, tuple[int, int]] = {}
    size, apart = 0, max(_LINE, plan.machine.alignment)
    for k in (*prepared.values(), kernel):  # kernels run one after the other, in the same memory
        private = private_buffers(k)
        ends = list(accumulate((-(-b.nbytes // apart) * apart for b in private), initial=0))
        places |= dict(zip(private, pairwise(ends)))
        size = max(size, ends[-1])
    each_call = plan.each_call
    before = tuple(k for k in prepared.values() if k.name in each_call)
    given = (k for reader in (*before, kernel) for k in (*reader.packs, *reader.before))
    packs = in_order(tuple(k for k in given if k.name not in each_call))
    return Lowered(kernel, packs, before, after, "", size, places, launched)


def _threads(plan: Plan, kernel: Kernel) -> int:
    """Return the number of threads that share ``kernel``, which runs before or after the main one; 1 if it has no
    parallel loop.
    """
    is_shared = any(x.kind == "parallel" for x in loops_of(kernel.body))
    return plan.threads(kernel.name) if is_shared else 1


def private_buffers(kernel: Kernel) -> list[Buffer]:
    """Return the buffers of ``kernel`` that each thread allocates for itself."""
    inside = (s.buffer for s in statements_of(kernel.body) if isinstance(s, Alloc))
    return list(dict.fromkeys(b for b in inside if b.scope == "cache"))


def _prepared(plan: Plan, kernel: Kernel) -> dict[str, Kernel]:
    """Return the rewritten kernels that run before ``kernel``, the rewritten main one, by name, in order."""
    found: dict[str, Kernel] = {}
    for k, steps in preparing(plan, kernel):
        made = run_steps(k, steps)
        found |= {**_prepared(plan, made), k.name: made}
    return found


def in_order(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """Return ``kernels``, each after the kernels that write an array that it reads."""
    writer = {b.name: k for k in kernels for b in k.written}
    ordered: dict[str, Kernel] = {}

    def add(kernel: Kernel) -> None:
        for b in kernel.params:
            if b not in kernel.written and b.name in writer:
                add(writer[b.name])
        ordered.setdefault(kernel.name, kernel)

    for kernel in kernels:
        add(kernel)
    return tuple(ordered.values())


def preparing(plan: Plan, kernel: Kernel) -> Iterator[tuple[Kernel, Sequence[Step]]]:
    """Yield the naive kernels that prepare arguments of ``kernel``, the rewritten main one, with their pipelines."""
    pipelines = plan.preparing if kernel.before else {}
    constant = plan.constant if kernel.packs else ()
    for k in in_order((*kernel.packs, *kernel.before)):
        if k in kernel.packs:
            yield k, packing_steps(k, plan.machine, plan.threads(k.name), k.params[0].name in constant)
        else:
            yield k, pipelines[k.name]
