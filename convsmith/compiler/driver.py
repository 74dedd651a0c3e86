"""From a plan to an artifact: naive nests, rewrites, LLVM text, object code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import FINITE, Argument, Artifact, Entry, Launch, size_argument
from convsmith.codegen.debug_lines import DebugLines
from convsmith.codegen.device_module import device_text
from convsmith.codegen.module_text import module_text
from convsmith.compiler.arguments import argument_of, buffer_argument, packing_identity, zero_argument
from convsmith.compiler.cubin import assemble_module
from convsmith.compiler.facts import facts
from convsmith.compiler.launch import launch_of
from convsmith.diag.errors import UnsupportedError
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer
from convsmith.ir.intern import one_table
from convsmith.ir.stmt import Alloc, Kernel
from convsmith.ir.text import listing
from convsmith.ir.types import POINTERS
from convsmith.ir.walk import loops_of, statements_of
from convsmith.layout.indirection import recipe, shape_of
from convsmith.layout.requirements import FIXED, Requirements
from convsmith.machine.base import Machine
from convsmith.passes.manager import Instrument, Step, run_steps
from convsmith.problem.attributes import ZERO_POINTS
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic_table import table_name
from convsmith.schedule.given import GivenSchedule
from convsmith.schedule.packing import packing_steps
from convsmith.schedule.plan import Plan
from convsmith.schedule.planned import KeptPlan, plan_for
from convsmith.schedule.pointers import Pointers, pointers

_LINE = 64
"""Bytes of a cache line, to which private buffers are aligned."""


@record(frozen=True)
class Lowered:
    """The kernels of a plan after all rewrites, and their LLVM text.

    The kernels ``before`` and ``after`` run in each call, around ``kernel``; ``packs``, which pack operands and sum
    packed entries, run when an operand is packed. Each thread needs ``scratch`` bytes. ``launches`` maps the symbols of
    all kernels to their launches.
    """

    kernel: Kernel
    packs: tuple[Kernel, ...]
    before: tuple[Kernel, ...]
    after: tuple[Kernel, ...]
    text: str
    scratch: int
    launches: Mapping[str, Launch]

    def __str__(self) -> str:
        """Return the kernels of each call in the order in which they run, each with the kernels that prepare its
        arguments.
        """
        names = {k.name for k in self.before}
        main = replace(self.kernel, before=tuple(k for k in self.kernel.before if k.name not in names))
        return "".join(map(str, (*self.before, main)))


def lower(plan: Plan, instruments: Sequence[Instrument] = (), *, debug: bool = False) -> Lowered:
    """Run the pipelines of ``plan``, the main one under ``instruments``, and print LLVM's text; with ``debug``, code
    for a CPU names the lines of the main kernel's text.
    """
    kernel = run_steps(plan.naive(), plan.pipeline, instruments)
    prepared = _prepared(plan, kernel)
    after = tuple(run_steps(k, steps) for k, steps in plan.finishing())
    launched = {plan.symbol(): (kernel, launch_of(kernel, plan.threads(), plan.machine))}
    for k in (*prepared.values(), *after):
        launched[plan.symbol(k.name)] = (k, launch_of(k, _threads(plan, k), plan.machine))
    offsets: dict[Buffer, int] = {}
    size, apart = 0, max(_LINE, plan.machine.alignment)
    for k in (*prepared.values(), kernel):  # kernels run one after the other, in the same memory
        private = private_buffers(k)
        *starts, end = accumulate((-(-b.nbytes // apart) * apart for b in private), initial=0)
        offsets |= dict(zip(private, starts))
        size = max(size, end)
    scratch = {b: (offset, size) for b, offset in offsets.items()}
    if plan.machine.device is None:
        # Kernels that run before the main one write arrays that no caller passes.
        own = frozenset(b.name for k in prepared.values() for b in k.written)
        known = replace(facts(plan.machine), own=own)
        if debug:
            known = replace(known, debug=DebugLines(listing(kernel).numbers))
        text = module_text(launched, known, scratch)
    else:
        text = device_text({symbol: k for symbol, (k, _) in launched.items()}, facts(plan.machine))
    each_call = plan.each_call
    before = tuple(k for k in prepared.values() if k.name in each_call)
    given = (k for reader in (*before, kernel) for k in (*reader.packs, *reader.before))
    packs = in_order(tuple(k for k in given if k.name not in each_call))
    launches = {symbol: launch for symbol, (_, launch) in launched.items()}
    return Lowered(kernel, packs, before, after, text, size, launches)


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


def build_artifact(
    problem: Problem, config: Config | GivenSchedule, target: Machine, instruments: Sequence[Instrument] = (),
    requirements: Requirements = FIXED,
) -> Artifact:
    """Compile ``problem`` under ``config`` for ``target``; with ``requirements``, sizes are arguments of calls."""
    _check_addresses(problem, target)
    with llvm_bind.no_collection(), one_table():
        made = plan_for(problem, config, target, requirements)
        kept = KeptPlan.of(made)
        return replace(emit(made, lower(made, instruments)), plan=kept)


def _check_addresses(problem: Problem, target: Machine) -> None:
    """Raise UnsupportedError if a tensor has more bytes than half of the target's address space."""
    most = 1 << target.address_bits - 1
    for tensor in problem.tensors:
        if tensor.nbytes >= most:
            raise UnsupportedError(
                f"{tensor.name} has {tensor.nbytes} bytes; legal are fewer than {most} on {target.name}, whose "
                f"addresses have {target.address_bits} bits",
                code="memory",
            )


def emit(plan: Plan, low: Lowered) -> Artifact:
    """Return the object code of ``low``, the kernels of ``plan``, with its manifest."""
    made = assemble(plan, low, problem_arguments(plan, low))
    return replace(
        made, problem=str(plan.problem), config=str(plan.config), requirements=plan.requirements,
        limits=_limits(plan),
    )  # fmt: skip


def _limits(plan: Plan) -> dict[str, float]:
    """Return the largest magnitude of the elements of each argument for which the kernels of `plan` are correct."""
    limits: dict[str, float] = {}
    for name, limit in plan.limits():
        limits[name] = min(limits.get(name, FINITE), FINITE if limit is None else limit)
    return limits


def assemble(plan: Plan, low: Lowered, argument: Callable[[Kernel, Buffer], Argument]) -> Artifact:
    """Return the object code of ``low`` with its entries; ``argument`` returns the argument for a parameter of a
    kernel.
    """
    machine = plan.machine
    code, notes = assemble_module(low.text, machine)

    length = low.scratch // 4
    scratch = Argument("scratch", "scratch", "f32", (length,), "a", length)

    def entry(k: Kernel, name: str = "", packing: str = "") -> Entry:
        sizes = (size_argument(v.name, machine.address_bits) for v in k.sizes)
        arguments = (*(argument(k, b) for b in k.params), *([scratch] if private_buffers(k) else []), *sizes)
        return Entry(plan.symbol(name), arguments, low.launches[plan.symbol(name)], packing)

    entries = {k.name: entry(k, k.name) for k in low.before}
    entries["main"] = entry(low.kernel)
    entries |= {k.name: entry(k, k.name) for k in low.after}
    for pack in low.packs:
        suffix = f":{pack.params[-1].name}" if len(low.packs) > 1 else ""
        entries[f"pack{suffix}"] = entry(pack, pack.name, packing=packing_identity(pack))
    return Artifact(
        code=code, target=machine.name, entries=entries, problem="", config=f"--target={machine.name}",
        needs=machine.needs, permissions=machine.permissions, address_bits=machine.address_bits,
        notes=notes,
    )  # fmt: skip


def problem_arguments(plan: Plan, low: Lowered) -> Callable[[Kernel, Buffer], Argument]:
    """Return the function from parameters to arguments of a problem's kernels.

    A kernel's parameter X is the problem's tensor X, and X_p the array that the packing kernel makes of it.
    """
    known = {tensor.name: argument_of(tensor) for tensor in plan.problem.tensors}
    operands: dict[str, str] = {}
    for pack in low.packs:
        given = pack.params[0].name
        operands |= {b.name: operands.get(given, given) for b in pack.written}
    known = {**_pointer_arguments(plan), **known}

    def argument(_: Kernel, b: Buffer) -> Argument:
        if b.name in known:
            return known[b.name]
        if b.name in operands:
            return buffer_argument(b, "packed", operands[b.name])
        return buffer_argument(b, "shared")

    return argument


def _pointer_arguments(plan: Plan) -> dict[str, Argument]:
    """Return the tables of pointers and the zero buffers, if A is read through tables."""
    found: dict[str, Argument] = {}
    for st, form, is_symbolic in plan.tables:
        p, bits = pointers(st, form), plan.machine.address_bits
        table = table_name(st.a.name) if is_symbolic else p.table.name
        found |= pointer_arguments(p, table, st.a.name, absent_points(plan.problem, st.a.name), bits)
    return found


def absent_points(problem: Problem, source: str) -> str:
    """Return the name of the zero points of a kernel's array ``source`` of ``problem``; empty if it has none."""
    stages, p, own = stages_of(problem), problem, source
    names: Mapping[str, str] = {}
    if stages is not None:
        p, names = next((p, names) for p, names in zip(stages.problems, stages.names) if names["src"] == source)
        own = "src"
    if p.quantity(ZERO_POINTS, own) is None:
        return ""
    name = p.attribute_name(ZERO_POINTS, own)
    return names.get(name, name)


def pointer_arguments(p: Pointers, name: str, of: str, points: str, bits: int = 64) -> dict[str, Argument]:
    """Return a table of pointers of ``bits`` into a tensor, called ``name``, and the argument for absent pixels: zeros,
    or the zero ``points`` of a call.
    """
    made, size = recipe(p.window, p.form), math.prod(shape_of(p.window, p.form))
    table = Argument(name, "table", POINTERS[bits].name, (size,), "a", size, of=of, recipe=made)
    return {name: table, p.zero.name: zero_argument(p.zero, of, points)}
