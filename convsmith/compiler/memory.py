"""The memory that a kernel needs beside its tensors, and whether a problem permits it.

The arguments of a kernel's entries say what it needs (`codegen/memory.py`); they follow from the rewritten kernels of
a plan, without LLVM.
"""

from __future__ import annotations

from convsmith.codegen.memory import KernelMemory
from convsmith.compiler.entries import manifest, problem_arguments
from convsmith.compiler.rewritten import Lowered, rewritten
from convsmith.diag.errors import ConfigError
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.buffers import BufferPlan
from convsmith.schedule.config import Config
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.plan import Plan, flaw
from convsmith.schedule.planned import plan_for, without_limits

__all__ = ["bytes_needed", "check_memory", "flaw_within", "least_bytes", "memory_of"]


def memory_of(plan: Plan, low: Lowered | None = None) -> KernelMemory:
    """Return the memory of the kernels of ``plan``, which ``low`` are if they are rewritten already."""
    made = rewritten(plan) if low is None else low
    return KernelMemory.of(manifest(plan, made, problem_arguments(plan, made)))


def bytes_needed(plan: Plan, low: Lowered | None = None) -> int:
    """Return the bytes beside its tensors that a problem needs: of its kernel, or of the one for weights beyond the
    kernel's limits, whichever needs more.

    The latter has the same config with wider products or without copies; a transform's is a direct kernel, which
    packs fewer bytes.
    """
    most, config = memory_of(plan, low).whole, plan.config
    if isinstance(config, Config) and not config.has_transform and any(True for _ in plan.limits()):
        other = without_limits(config, plan.machine)
        if other != config:
            most = max(most, memory_of(plan_for(plan.problem, other, plan.machine)).whole)
    return most


def least_bytes(plan: Plan) -> int:
    """Return bytes that the kernels of ``plan``, which needs no rewrites, need at least: those of the packed operands
    whose sizes the plan knows, and of the arrays of a transform.
    """
    packed = sum(_packed_bytes(k, b) for k in plan.kernels for b in k.buffers if b.scope == "global")
    transforms = [plan.program.transform, *(kernel.winograd for kernel in plan.program.kernels)]
    arrays = [made.array_bytes for made in transforms if made is not None]
    return packed + max(arrays, default=0)


def _packed_bytes(kernel: KernelPlan, b: BufferPlan) -> int:
    """Return the bytes of a packed operand whose elements keep their type if that is narrower: the plan does not know
    whether packing converts bytes.
    """
    own = (v.dtype for v in kernel.statement.factors if v.name == b.operand)
    return min(dtype(t).bytes_of(b.elements) for t in (b.dtype, *own))


def check_memory(plan: Plan, low: Lowered | None = None) -> None:
    """Raise ConfigError if the kernels of ``plan`` need more bytes than its problem permits."""
    bound = plan.problem.workspace
    if bound is not None and (needed := bytes_needed(plan, low)) > bound:
        raise ConfigError(
            "workspace", f"--workspace={bound}: {plan.config} needs {needed} bytes beside the tensors: "
            f"{memory_of(plan, low)}; legal is --workspace={needed}",
        )  # fmt: skip


def flaw_within(problem: Problem, config: Config, machine: Machine) -> ConfigError | None:
    """Return the error for which ``config`` makes no kernel of ``problem`` within the memory that it permits; None if
    it makes one.
    """
    if problem.workspace is None:
        return flaw(problem, config, machine)
    try:
        check_memory(plan_for(problem, config, machine))
    except ConfigError as error:
        return error
    return None
