"""From a plan to an artifact: naive nests, rewrites, LLVM text, object code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from convsmith.codegen.artifact import FINITE, Argument, Artifact
from convsmith.codegen.debug_lines import DebugLines
from convsmith.codegen.module_text import module_text
from convsmith.compiler.arrays import check_arrays
from convsmith.compiler.cubin import assemble_module
from convsmith.compiler.entries import manifest, problem_arguments
from convsmith.compiler.facts import facts
from convsmith.compiler.memory import check_memory
from convsmith.compiler.rewritten import Lowered, rewritten
from convsmith.diag.collection import no_collection
from convsmith.diag.forking import import_lock
from convsmith.ir.buffer import Buffer
from convsmith.ir.intern import one_table
from convsmith.ir.stmt import Kernel
from convsmith.ir.text import listing
from convsmith.layout.requirements import FIXED, Requirements
from convsmith.machine.base import Machine
from convsmith.machine.device import Device
from convsmith.passes.manager import Instrument
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.given import GivenSchedule
from convsmith.schedule.plan import Plan
from convsmith.schedule.planned import KeptPlan, plan_for


def lower(plan: Plan, instruments: Sequence[Instrument] = (), *, debug: bool = False) -> Lowered:
    """Run the pipelines of ``plan``, the main one under ``instruments``, and print LLVM's text, or WGSL; with
    ``debug``, code for a CPU names the lines of the main kernel's text.
    """
    made = rewritten(plan, instruments)
    if plan.machine.device is not None:
        kernels = {symbol: k for symbol, (k, _) in made.launched.items()}
        return replace(made, text=_text_for_device(kernels, plan.machine, plan.machine.device))
    # Kernels that run before the main one write arrays that no caller passes.
    own = frozenset(b.name for k in (*made.packs, *made.before) for b in k.written)
    known = replace(facts(plan.machine), own=own)
    if debug:
        known = replace(known, debug=DebugLines(listing(made.kernel).numbers))
    scratch = {b: (start, made.scratch) for b, (start, _) in made.places.items()}
    return replace(made, text=module_text(made.launched, known, scratch))


def _text_for_device(kernels: Mapping[str, Kernel], machine: Machine, device: Device) -> str:
    """Return the module of kernels for a device; code for CPUs imports neither writer."""
    with import_lock:
        from convsmith.codegen.device_module import device_text
        from convsmith.codegen.wgsl_text import wgsl_text

    return wgsl_text(kernels, machine.rows) if device.code == "wgsl" else device_text(kernels, facts(machine))


def build_artifact(
    problem: Problem, config: Config | GivenSchedule, target: Machine, instruments: Sequence[Instrument] = (),
    requirements: Requirements = FIXED,
) -> Artifact:
    """Compile ``problem`` under ``config`` for ``target``; with ``requirements``, sizes are arguments of calls."""
    check_arrays(problem, target)
    with no_collection(), one_table():
        made = plan_for(problem, config, target, requirements)
        kept = KeptPlan.of(made)
        return replace(emit(made, lower(made, instruments)), plan=kept)


def emit(plan: Plan, low: Lowered) -> Artifact:
    """Return the object code of ``low``, the kernels of ``plan``, with its manifest. ConfigError if they need more
    memory than the problem permits.
    """
    check_memory(plan, low)
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
    code, notes = assemble_module(low.text, plan.machine)
    return replace(manifest(plan, low, argument), code=code, notes=notes)


