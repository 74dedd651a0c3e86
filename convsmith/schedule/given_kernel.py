"""The main kernel of a schedule that is given as a function: the record of its rewrites of the naive nest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from convsmith.diag.errors import ConfigError, UnsupportedError
from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.ir.index import is_true
from convsmith.ir.stages import UNROLLED, violations
from convsmith.ir.stmt import Block, For, Invoke, Kernel, Let, Stmt
from convsmith.ir.walk import loops_of, statements_of
from convsmith.machine.base import Machine
from convsmith.passes.contracts import LOOPS
from convsmith.passes.derive_packing import derive_packing
from convsmith.passes.indirect import indirect
from convsmith.passes.manager import Step
from convsmith.passes.ordered_copy import OrderedCopy
from convsmith.passes.stage import stage
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.custom import KernelSchedule
from convsmith.schedule.fill import main_nest
from convsmith.schedule.given import GivenSchedule
from convsmith.schedule.library.finish import finish
from convsmith.statement.fused import FusedStatements
from convsmith.statement.offsets import of_fewer_bits
from convsmith.statement.program import Program, fused_program, program
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement


@record(frozen=True)
class GivenKernel:
    """The main kernel that a user's schedule makes for ``machine`` by the rewrites ``pipeline``, ``lowered`` by all of
    them. It computes ``statements``, and reads the source of some through the ``tables`` of a form.
    """

    machine: Machine
    statements: tuple[Statement, ...]
    pipeline: tuple[Step, ...]
    lowered: Kernel
    tables: Mapping[str, Statement]

    @cached_property
    def is_shared(self) -> bool:
        """Whether host threads share iterations of the kernel."""
        return any(x.kind == "parallel" for x in loops_of(self.lowered.body))

    def limits(self) -> Iterator[tuple[str, float | None]]:
        """Yield, for each statement, the name of the weights with each limit of their magnitude, as a plan does."""
        for name in (view.name for st in self.statements for view in st.factors[1:]):
            yield from ((name, float(limit)) for limit in self._row_limits)
            if self._stores_zeros:
                yield name, None

    @property
    def _stores_zeros(self) -> bool:
        """Whether copies hold zeros for absent elements, which weights multiply."""
        is_masked = any(not is_true(st.a.mask) for st in self.statements)
        return is_masked and any(
            step.run in (derive_packing, indirect)
            or (step.run is stage and not isinstance(step.args[2], OrderedCopy))
            for step in self.pipeline
        )

    @property
    def _row_limits(self) -> tuple[int, ...]:
        """The largest magnitudes of weights for which the instructions of the kernel are correct, for instructions with
        a limit.
        """
        bodies = (self.lowered.body, *(f.body for f in self.lowered.functions))
        used = {x.instruction for body in bodies for x in statements_of(body) if isinstance(x, Invoke)}
        return tuple(row.limit for name, row in self.machine.rows.items() if name in used and row.limit)


def given_kernel(problem: Problem, config: GivenSchedule, machine: Machine) -> tuple[Program, GivenKernel]:
    """Return the program of ``problem``, and the main kernel that the function of ``config`` makes from its naive nest;
    `finish` completes it. ConfigError if no code can be generated for the resulting kernel.
    """
    made = program_of(problem, machine)
    statements = _main_statements(made)
    s = KernelSchedule(problem, machine, main_nest(made.naive(), machine), statements)
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
    return made, GivenKernel(machine, statements, tuple(s.steps), s.kernel, s.tables)


def _shared(s: Stmt) -> Iterator[For]:
    """Yield the loops whose iterations threads share: loops enclosed only by names."""
    if isinstance(s, For):
        yield s
    elif isinstance(s, Let):
        yield from (x for part in (s.body.stmts if isinstance(s.body, Block) else (s.body,)) for x in _shared(part))


def program_of(problem: Problem, machine: Machine) -> Program:
    """Return the program of ``problem`` before any decision: one main kernel computes all stages."""
    stages = stages_of(problem)
    if stages is not None:
        own = tuple(statement(p, machine) for p in stages.problems)
        return fused_program(problem, (FusedStatements(stages, 0, own),))
    return program(problem, statement(problem, machine))


def _main_statements(made: Program) -> tuple[Statement, ...]:
    """Return the statements of the main kernel. UnsupportedError if packing makes their entries."""
    if made.kernels:
        (joint,) = made.kernels
        return tuple(map(joint.renamed, joint.numbers))
    if of_fewer_bits(made.main):
        raise UnsupportedError(
            f"schedule=: {made.problem} has entries of fewer bits, which are made while packing; available are 8 bits",
            code="bits",
        )
    return (made.main,)
