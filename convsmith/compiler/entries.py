"""The entries of an artifact: the arguments of the rewritten kernels of a plan, by role."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from convsmith.codegen.artifact import Argument, Artifact, Entry, size_argument
from convsmith.codegen.barriers import needed_by
from convsmith.compiler.arguments import argument_of, buffer_argument, zero_argument
from convsmith.compiler.packing_identity import packing_identity
from convsmith.compiler.rewritten import Lowered, private_buffers
from convsmith.ir.buffer import Buffer
from convsmith.ir.stmt import Kernel
from convsmith.ir.types import POINTERS
from convsmith.layout.indirection import recipe, shape_of
from convsmith.problem.attributes import ZERO_POINTS
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.dynamic_table import table_name
from convsmith.schedule.plan import Plan
from convsmith.schedule.pointers import Pointers, pointers

__all__ = ["absent_points", "manifest", "pointer_arguments", "problem_arguments"]


def manifest(plan: Plan, low: Lowered, argument: Callable[[Kernel, Buffer], Argument]) -> Artifact:
    """Return the entries of ``low`` as an artifact without object code."""
    machine = plan.machine

    def entry(k: Kernel, name: str = "", packing: str = "") -> Entry:
        made, launch = low.launched[plan.symbol(name)]
        private = private_buffers(made)
        # The memories of several threads are `low.scratch` bytes apart.
        end = low.scratch if launch.threads > 1 else max((low.places[b][1] for b in private), default=0)
        scratch = Argument("scratch", "scratch", "f32", (end // 4,), "a", end // 4)
        sizes = (size_argument(v.name, machine.address_bits) for v in k.sizes)
        arguments = (*(argument(k, b) for b in k.params), *([scratch] if private else []), *sizes)
        return Entry(plan.symbol(name), arguments, launch, packing)

    entries = {k.name: entry(k, k.name) for k in low.before}
    entries["main"] = entry(low.kernel)
    entries |= {k.name: entry(k, k.name) for k in low.after}
    for pack in low.packs:
        suffix = f":{pack.params[-1].name}" if len(low.packs) > 1 else ""
        entries[f"pack{suffix}"] = entry(pack, pack.name, packing=packing_identity(pack))
    of_barriers: tuple[str, ...] = ()
    if machine.device is not None:
        of_barriers = needed_by((k for k, _ in low.launched.values()), machine.device.dialect)
    return Artifact(
        code=b"", target=machine.name, entries=entries, problem="", config=f"--target={machine.name}",
        needs=(*machine.needs, *of_barriers), permissions=machine.permissions, address_bits=machine.address_bits,
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
