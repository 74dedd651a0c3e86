"""A plan: every decision of a config worked out for a machine, once, as a value that prints.

All later code reads it: the driver runs its pipelines, `explain` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from convsmith.diag.errors import ConfigError
from convsmith.diag.forking import import_lock
from convsmith.machine.base import Machine
from convsmith.passes.manager import Step
from convsmith.plan.buffers import BufferPlan, buffers
from convsmith.plan.config import Config
from convsmith.plan.dynamic import check_dynamic, symbolic_sizes
from convsmith.plan.loops import Loops, SymbolicSizes, loops_after_fusing
from convsmith.plan.lower import lower_steps
from convsmith.plan.order import Nest, nest_of, order_steps
from convsmith.plan.pointers import indirect, indirect_step
from convsmith.plan.read import read_steps
from convsmith.plan.registers import Registers, check_config, registers
from convsmith.plan.sums import config_of_sums
from convsmith.plan.unit import Unit
from convsmith.problem.problem import Problem
from convsmith.statement.offsets import MOST, of_fewer_bits, summed
from convsmith.statement.parts import parted
from convsmith.statement.phases import phased
from convsmith.statement.program import Program, program
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement


@dataclass(frozen=True)
class KernelPlan:
    """The plan of one statement: its loops, the nest, registers and buffers that ``config`` gives it, its pipeline."""

    statement: Statement
    config: Config
    loops: Loops
    nest: Nest
    registers: Registers
    buffers: tuple[BufferPlan, ...]
    pipeline: tuple[Step, ...]


@dataclass(frozen=True)
class Plan:
    """The plans of all statements of the program of ``problem``, in the order in which they run."""

    problem: Problem
    config: Config
    machine: Machine
    program: Program
    kernels: tuple[KernelPlan, ...]

    @property
    def main(self) -> KernelPlan:
        """The plan of the statement that computes the products."""
        return next(k for k in self.kernels if k.statement.when == "main")

    def __str__(self) -> str:
        with import_lock:
            from convsmith.plan.text import plan_text

        return plan_text(self)


def plan(problem: Problem, config: Config, machine: Machine, dynamic: bool = False) -> Plan:
    """Return the plan of ``problem`` under ``config``; ConfigError where no kernel can be made from it.

    The sizes of a ``dynamic`` plan are arguments of each call; those of ``problem`` are placeholders.
    """
    made = program(problem, scheduled(problem, config, machine))
    kernels = []
    for st in made.statements:
        # Parts are added up, and sums made while packing, on the thread that calls.
        threads = config.threads if st.when in ("main", "before") else 1
        own = config if st.when == "main" else config_of_sums(st, machine, threads)
        sizes = symbolic_sizes(check_dynamic(problem), st, own) if dynamic and st.when == "main" else None
        kernels.append(kernel_plan(st, own, machine, sizes))
    return Plan(problem, config, machine, made, tuple(kernels))


def kernel_plan(st: Statement, config: Config, machine: Machine, sizes: SymbolicSizes | None = None) -> KernelPlan:
    """Return the plan of ``st`` under its own ``config``, with symbolic ``sizes`` where these are given."""
    unit = Unit.of(st, machine, config)
    loops = loops_after_fusing(st, config)
    if sizes is not None:
        loops = replace(loops, symbolic=sizes.loops)
    check_config(st, loops, config, machine, unit)
    nest = nest_of(st, loops, config, unit)
    steps: list[Step] = list(sizes.steps) if sizes is not None else []
    if indirect(st, config) and sizes is None:
        if config.phases:
            raise ConfigError("phases", f"--phases={','.join(config.phases)}: --realise=indirection has none")
        steps.append(indirect_step(st, config.table))
    steps += order_steps(st, config, nest)
    columns = phased(st, config.phases)
    steps += [*read_steps(columns, loops, config, nest), *lower_steps(columns, config, machine, nest)]
    needed = registers(loops, config, machine, unit, nest.filled)
    return KernelPlan(st, config, loops, nest, needed, buffers(columns, config, nest), tuple(steps))


def scheduled(problem: Problem, config: Config, machine: Machine) -> Statement:
    """Return the statement that ``config`` schedules: its offsets taken off the sums, its reduction in parts."""
    st = statement(problem, machine)
    if of_fewer_bits(st):
        need = [view.name for view in st.factors if view.fewer is not None or view is st.b]
        if config.offsets != "sums" or not set(need) <= set(config.pack):
            raise ConfigError(
                "bits", f"entries of fewer bits are made while packing: legal are --offsets=sums and "
                f"--pack={','.join(need)}",
            )  # fmt: skip
    if config.offsets == "sums":
        found = summed(problem, st, config.flip, config.pack, config.realise == "indirection")
        if found is None:
            words = "--offsets=sums" + (f" --flip={','.join(config.flip)}" if config.flip else "")
            raise ConfigError(
                "offsets",
                f"{words}: legal where source or weights have zero points or are "
                "flipped (s8 sources and u8 weights can be), the zero point of the source is common to its channels, "
                f"and at most {MOST} sums of weights are needed; else --offsets=each",
            )
        if st.b.name not in config.pack:
            raise ConfigError("offsets", f"--offsets=sums: needs --pack={st.b.name}, beside which the sums are packed")
        st = found
    return parted(st, config.split)
