"""A plan: every decision of a config worked out for a machine, once, as a value that prints.

All later code reads it: the driver runs its pipelines, `explain` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass

from convsmith.diag.errors import ConfigError
from convsmith.diag.forking import import_lock
from convsmith.ir.stmt import Kernel
from convsmith.layout.requirements import FIXED, Requirements
from convsmith.machine.base import Machine
from convsmith.passes.derive_packing import derive_packing, packing_name
from convsmith.passes.fuse import fuse
from convsmith.passes.manager import Step, run_steps
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import check_dynamic, symbolic_dims, symbolic_sizes
from convsmith.schedule.fused import links, merge_pipelines, scheduled_stages, stage_plans
from convsmith.schedule.kernel import kernel_plan, scheduled
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.pipelines import SYMBOL
from convsmith.schedule.sums import config_of_sums
from convsmith.schedule.winograd import block_steps, product_config, weights_steps, winograd_of
from convsmith.statement.fused import FusedStatements
from convsmith.statement.naive import naive
from convsmith.statement.program import Program, program, transformed_program
from convsmith.statement.winograd import WEIGHTS


@dataclass(frozen=True)
class Plan:
    """The plans of all statements of the program of ``problem``, in the order in which they run.

    ``requirements`` constrain the sizes of a call; they are empty if all sizes are known.
    """

    problem: Problem
    config: Config
    machine: Machine
    program: Program
    kernels: tuple[KernelPlan, ...]
    requirements: Requirements = FIXED

    @property
    def main(self) -> KernelPlan:
        """The plan of the statement that writes the problem's result."""
        return next(k for k in self.kernels if k.statement.when == "main")

    @property
    def pipeline(self) -> tuple[Step, ...]:
        """The rewrites of the main kernel, including the nests that are computed at its loops."""
        if self.program.transform is not None:
            return block_steps(self.program.transform, self.main, self.config, self.machine)
        return self._merged_pipelines(self.program.kernels[-1]) if self.program.kernels else self.main.pipeline

    @property
    def preparing(self) -> dict[str, tuple[Step, ...]]:
        """The rewrites of the kernels that run before the main one, by name."""
        found = {k.statement.name: k.pipeline for k in self.kernels if k.statement.when in ("packing", "before")}
        if self.program.transform is not None:
            found[WEIGHTS] = weights_steps(self.program.transform)
        for kernel in self.program.kernels:
            if kernel.winograd is not None:
                found[kernel.name(kernel.start, WEIGHTS)] = weights_steps(kernel.winograd)
        fused = self.program.kernels[:-1]
        return found | {kernel.renamed(kernel.last).name: self._merged_pipelines(kernel) for kernel in fused}

    def _merged_pipelines(self, kernel: FusedStatements) -> tuple[Step, ...]:
        """Return the rewrites of a ``kernel`` of several statements."""
        plans = self.plans_of(kernel)
        if kernel.winograd is not None:
            return block_steps(kernel.winograd, plans[0], self.config.stages[kernel.start], self.machine)
        return merge_pipelines(kernel, self.config, plans)

    def plans_of(self, kernel: FusedStatements) -> list[KernelPlan]:
        """Return the plans of the stages that ``kernel`` computes."""
        plans = {k.statement.name: k for k in self.kernels}
        return [plans[kernel.renamed(n).name] for n in kernel.numbers]

    @property
    def each_call(self) -> frozenset[str]:
        """The names of the preparing kernels that run in each call."""
        return frozenset(st.name for st in self.program.of("before"))

    def naive(self) -> Kernel:
        """Return the naive nest of the main kernel, with the nests of the kernels before it."""
        return self.program.naive()

    def finishing(self) -> list[tuple[Kernel, tuple[Step, ...]]]:
        """Return the naive nests of the kernels that run after the main one, with their rewrites."""
        after = (k for k in self.kernels if k.statement.when == "after")
        return [(naive(self.problem, k.statement), k.pipeline) for k in after]

    def symbol(self, kernel: str = "") -> str:
        """Return the symbol of the main kernel, or of a kernel around it."""
        return f"{SYMBOL}_{kernel}" if kernel else SYMBOL

    def threads(self, kernel: str = "") -> int:
        """Return the number of threads that share the main kernel, or a kernel around it.

        Operands with the same contents in all calls are packed by one thread.
        """
        own = {k.statement.name: k.config.threads for k in self.kernels}
        for k in self.kernels:
            changing = (view for view in k.statement.factors if not view.constant)
            own |= {packing_name(k.statement.name, (view.name,)): k.config.threads for view in changing}
        for stages in self.program.kernels:
            own[stages.renamed(stages.last).name] = self.config.stages[stages.last].threads
        return own.get(kernel, 1) if kernel else self.config.threads

    def __str__(self) -> str:
        with import_lock:
            from convsmith.schedule.text import plan_text

        return plan_text(self)


def plan(problem: Problem, config: Config, machine: Machine, requirements: Requirements = FIXED) -> Plan:
    """Return the plan of ``problem`` under ``config``; ConfigError if ``config`` makes no kernel.

    With ``requirements`` on the sizes of calls, these sizes are arguments of each call, and the sizes of ``problem``
    are placeholders.
    """
    dynamic = bool(requirements)
    unknown = frozenset(symbolic_dims(check_dynamic(problem))) if dynamic else frozenset()
    stages = stages_of(problem)
    if stages is not None:
        made = scheduled_stages(problem, stages, config, machine, dynamic)
    elif config.then is not None:
        raise ConfigError("then", f"--at={config.at}: {problem} has one statement; legal is the config of one")
    elif config.tiles_at("winograd"):
        made = transformed_program(problem, winograd_of(problem, config, machine, dynamic))
    else:
        made = program(problem, scheduled(problem, config, machine, dynamic))
    kernels = [plan for kernel in made.kernels for plan in stage_plans(kernel, config, machine, dynamic)]
    for st in () if made.kernels else made.statements:
        if st.when == "main":
            own = config if made.transform is None else product_config(config)
            sizes = symbolic_sizes(problem, st, own) if dynamic else None
            kernels.append(kernel_plan(st, own, machine, sizes))
        else:
            # Parts are added up, and sums made while packing, on the thread that calls.
            threads = config.threads if st.when == "before" else 1
            own = config_of_sums(st, machine, threads, unknown)
            sizes = symbolic_sizes(problem, st, own) if any(d.name in unknown for d in st.dims) else None
            kernels.append(kernel_plan(st, own, machine, sizes))
    for kernel in kernels:
        if not made.kernels and kernel.statement.residues and kernel.statement.a.name in kernel.config.staged("pack"):
            _check_packed(problem, kernel)
    found = Plan(problem, config, machine, made, tuple(kernels), requirements)
    places = tuple(links(config))
    for joint in made.kernels:
        if any(places[n].at and config.stages[n].fuse for n in joint.numbers):
            _check_fused(joint, found)
    return found


def _check_fused(joint: FusedStatements, of: Plan) -> None:
    """Raise ConfigError if loops of a stage that is computed at a loop of another stage cannot be fused. The rewrites
    run up to this point, because the reads of the other stage determine how many rows are computed.
    """
    steps = of._merged_pipelines(joint)
    *_, last = (n for n, step in enumerate(steps) if step.run is fuse)
    run_steps(joint.naive(), steps[: last + 1])


def _check_packed(problem: Problem, kernel: KernelPlan) -> None:
    """Raise ConfigError if an operand of ``kernel``, which has residue classes, cannot be packed in reading order. The
    rewrites run up to this point, because only the nest has the ends of its loops.
    """
    packs = [n for n, step in enumerate(kernel.pipeline) if step.run is derive_packing]
    if packs:
        run_steps(naive(problem, kernel.statement), kernel.pipeline[: packs[-1] + 1])
