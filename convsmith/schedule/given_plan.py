"""The plan of a schedule that is given as a function: the record of its rewrites of the naive nest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from convsmith.diag.errors import ConfigError, UnsupportedError
from convsmith.diag.forking import cached_property
from convsmith.ir.index import is_true
from convsmith.ir.stages import UNROLLED, violations
from convsmith.ir.stmt import Block, For, Invoke, Kernel, Let, Stmt
from convsmith.ir.walk import loops_of, statements_of
from convsmith.layout.requirements import FIXED, Requirements
from convsmith.machine.base import Machine
from convsmith.passes.contracts import LOOPS
from convsmith.passes.derive_packing import derive_packing
from convsmith.passes.indirect import indirect
from convsmith.passes.manager import Step
from convsmith.passes.stage import stage
from convsmith.passes.tensor_copies import tensor_copies
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.custom import KernelSchedule
from convsmith.schedule.given import GivenSchedule
from convsmith.schedule.kernel import kernel_plan
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.library.finish import finish
from convsmith.schedule.pipelines import SYMBOL
from convsmith.schedule.sums import config_of_sums
from convsmith.statement.fused import FusedStatements
from convsmith.statement.naive import naive
from convsmith.statement.offsets import of_fewer_bits
from convsmith.statement.program import Program, fused_program, program
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement


@dataclass(frozen=True)
class GivenPlan:
    """The plan of ``problem`` whose main kernel a user's schedule, ``config``, makes by the rewrites ``pipeline``.

    ``kernels`` are the plans of the statements around it. ``lowered`` is the main kernel after all rewrites; it reads
    the source of a statement through one of the ``tables``, by their forms.
    """

    problem: Problem
    config: GivenSchedule
    machine: Machine
    program: Program
    pipeline: tuple[Step, ...]
    kernels: tuple[KernelPlan, ...]
    lowered: Kernel
    tables: Mapping[str, Statement]
    requirements: Requirements = FIXED

    @property
    def preparing(self) -> Mapping[str, Sequence[Step]]:
        """The rewrites of the kernels that run before the main one, by name; packing kernels have the usual ones."""
        return {k.statement.name: k.pipeline for k in self.kernels if k.statement.when in ("packing", "before")}

    @property
    def each_call(self) -> frozenset[str]:
        """The names of the preparing kernels that run in each call."""
        return frozenset(st.name for st in self.program.of("before"))

    def naive(self) -> Kernel:
        """Return the naive nest of the main kernel, with the nests of the kernels before it."""
        return self.program.naive()

    def finishing(self) -> Sequence[tuple[Kernel, Sequence[Step]]]:
        """Return the naive nests of the kernels that run after the main one, with their rewrites."""
        after = (k for k in self.kernels if k.statement.when == "after")
        return [(naive(self.problem, k.statement), k.pipeline) for k in after]

    def symbol(self, kernel: str = "") -> str:
        """Return the symbol of the main kernel, or of a kernel around it."""
        return f"{SYMBOL}_{kernel}" if kernel else SYMBOL

    def threads(self, kernel: str = "") -> int:
        """Return the number of threads that share the main kernel, if it has anything to share; the thread that calls
        runs those around it.
        """
        is_shared = not kernel and any(x.kind == "parallel" for x in loops_of(self.lowered.body))
        return self.config.threads if is_shared else 1

    @cached_property
    def text(self) -> str:
        """The rewrites as text: equal texts make equal kernels of a problem, for a machine and a number of threads."""
        return "\n".join([*map(str, self.pipeline), f"threads {self.threads()}"])

    @property
    def weights(self) -> tuple[str, ...]:
        """The names of the operands that are multiplied by the source, in all statements of the main kernel."""
        return tuple(view.name for st in self.main for view in st.factors[1:])

    @property
    def stores_zeros(self) -> bool:
        """Whether copies hold zeros for absent elements, which weights multiply."""
        is_masked = any(not is_true(st.a.mask) for st in self.main)
        return is_masked and any(step.run in (stage, derive_packing, indirect, tensor_copies) for step in self.pipeline)

    @property
    def row_limits(self) -> tuple[int, ...]:
        """The largest magnitudes of weights for which the instructions of the main kernel are right, where there are
        such.
        """
        bodies = (self.lowered.body, *(f.body for f in self.lowered.functions))
        used = {x.instruction for body in bodies for x in statements_of(body) if isinstance(x, Invoke)}
        return tuple(row.limit for name, row in self.machine.rows.items() if name in used and row.limit)

    @property
    def main(self) -> tuple[Statement, ...]:
        """The statements that the main kernel computes."""
        return self.program.of("main", "loop")

    def __str__(self) -> str:
        lines = [str(self.problem), str(self.config), *(f"  {n:3} {step}" for n, step in enumerate(self.pipeline, 1))]
        return "\n".join(lines)


def given_plan(
    problem: Problem, config: GivenSchedule, machine: Machine, requirements: Requirements = FIXED
) -> GivenPlan:
    """Return the plan that the function of ``config`` makes of the naive nest of ``problem``; what it leaves open,
    `finish` does. ConfigError where it ends with a kernel from which no code can be made.
    """
    if requirements:
        raise UnsupportedError(
            "schedule=: kernels that a function schedules have fixed sizes; available is a kernel for each size",
            code="dynamic",
        )
    made, statements = _program(problem, machine)
    kernels = tuple(
        kernel_plan(st, config_of_sums(st, machine, 1, frozenset()), machine)
        for st in made.statements if st.when not in ("main", "loop")
    )  # fmt: skip
    s = KernelSchedule(problem, machine, made.naive(), statements)
    config.function(s)
    if s.reached in LOOPS:
        finish(s)
    left = next(violations(s.kernel, UNROLLED), None)
    if left is not None:
        raise ConfigError(
            "schedule", f"{config}: the schedule ends with a kernel that is no code: {left}; legal is to call "
            "finish(s) last, or not to flatten",
        )  # fmt: skip
    if inner := [x for x in loops_of(s.kernel.body) if x.kind == "parallel" and x not in _shared(s.kernel.body)]:
        raise ConfigError(
            "loop-kind", f"{config}: loop {inner[0].var} is parallel within other statements or memory; legal is a "
            "parallel loop around everything that the kernel computes",
        )  # fmt: skip
    return GivenPlan(problem, config, machine, made, tuple(s.steps), kernels, s.kernel, s.tables)


def _shared(s: Stmt) -> Iterator[For]:
    """Yield the loops whose iterations threads share: those that nothing but names stands around."""
    if isinstance(s, For):
        yield s
    elif isinstance(s, Let):
        yield from (x for part in (s.body.stmts if isinstance(s.body, Block) else (s.body,)) for x in _shared(part))


def _program(problem: Problem, machine: Machine) -> tuple[Program, tuple[Statement, ...]]:
    """Return the program of ``problem``, with the statements of its main kernel."""
    stages = stages_of(problem)
    if stages is not None:
        own = tuple(statement(p, machine) for p in stages.problems)
        joint = FusedStatements(stages, 0, own)
        return fused_program(problem, (joint,)), tuple(map(joint.renamed, joint.numbers))
    st = statement(problem, machine)
    if of_fewer_bits(st):
        raise UnsupportedError(
            f"schedule=: {problem} has entries of fewer bits, which are made while packing; available are 8 bits",
            code="bits",
        )
    return program(problem, st), (st,)
