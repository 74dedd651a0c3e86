"""A program: the statements of a problem, in the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convsmith.diag.record import record
from convsmith.ir.stmt import Kernel
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.problem.problem import Problem
from convsmith.statement.bias import bias_gradient
from convsmith.statement.fused import FusedStatements
from convsmith.statement.micro_kernel import micro_statement, naive_micro_kernel
from convsmith.statement.naive import naive
from convsmith.statement.offsets import sums_of
from convsmith.statement.operator import Operator
from convsmith.statement.parts import sum_of_parts
from convsmith.statement.statement import Statement, When
from convsmith.statement.winograd import Winograd


@record(frozen=True)
class Program:
    """The statements of ``problem``: ``main`` computes the products; the other statements prepare its operands or
    finish its result.

    A problem of several stages has ``kernels``, in the order in which they run. All statements of a kernel but the last
    run at a loop of a later one. Where a problem of one stage is computed by a ``transform``, the main statement is the
    product of a block. A micro-kernel and an operator have a naive ``nest`` of their own.
    """

    problem: Problem | MicroKernel | Operator
    statements: tuple[Statement, ...]
    kernels: tuple[FusedStatements, ...] = ()
    transform: Winograd | None = None
    nest: Kernel | None = None

    @property
    def main(self) -> Statement:
        """The statement that computes the products."""
        (main,) = self.of("main")
        return main

    @property
    def transforms(self) -> tuple[Winograd, ...]:
        """The transforms of the problem, or of the kernels."""
        every = (self.transform, *(kernel.winograd for kernel in self.kernels))
        return tuple(made for made in every if made is not None)

    def of(self, *when: When) -> tuple[Statement, ...]:
        """Return the statements that run at these times, in order."""
        return tuple(st for st in self.statements if st.when in when)

    def naive(self) -> Kernel:
        """Return the naive nest of the main statement, preceded by the nests of the statements that prepare its
        operands.
        """
        if self.kernels:
            *others, last = self.kernels
            return last.naive([kernel.naive() for kernel in others])
        if self.transform is not None:
            return self.transform.naive()
        if self.nest is not None:
            return self.nest
        return self._nest(self.main, [self._nest(st) for st in self.of("packing", "before")])

    def _nest(self, st: Statement, before: Sequence[Kernel] = ()) -> Kernel:
        """Return the naive nest of a statement of a problem."""
        assert isinstance(self.problem, Problem)
        return naive(self.problem, st, before)

    def nests(self) -> tuple[Kernel, ...]:
        """Return the naive nests of all statements, in the order in which they run."""
        main = self.naive()
        return (*main.before, replace(main, before=()), *(self._nest(st) for st in self.of("after")))


def program(problem: Problem, main: Statement) -> Program:
    """Return the program around ``main``, the statement of the products of ``problem`` as a config has it scheduled."""
    after = [sum_of_parts(main)] if main.whole is not main else []
    bias = bias_gradient(problem)
    after += [bias] if bias is not None else []
    return Program(problem, (*sums_of(problem, main.whole), main, *after))


def transformed_program(problem: Problem, transform: Winograd) -> Program:
    """Return the program of a ``problem`` of one stage that is computed by a ``transform``."""
    return Program(problem, (transform.product,), transform=transform)


def fused_program(problem: Problem, kernels: tuple[FusedStatements, ...]) -> Program:
    """Return the program of a ``problem`` whose stages are statements of ``kernels``."""
    return Program(problem, tuple(st for kernel in kernels for st in kernel.statements), kernels)


def micro_program(m: MicroKernel, address_bits: int) -> Program:
    """Return the program of the micro-kernel ``m`` on a machine with addresses of ``address_bits``."""
    return Program(m, (micro_statement(m),), nest=naive_micro_kernel(m, address_bits))
