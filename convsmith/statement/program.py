"""A program: the statements of a problem, in the order in which they run."""

from __future__ import annotations

from dataclasses import dataclass

from convsmith.ir.stmt import Kernel
from convsmith.problem.problem import Problem
from convsmith.statement.bias import bias_gradient
from convsmith.statement.naive import naive
from convsmith.statement.offsets import sums_of
from convsmith.statement.parts import sum_of_parts
from convsmith.statement.statement import Statement


@dataclass(frozen=True)
class Program:
    """The statements of ``problem``: ``main`` computes the products, the others prepare its operands or finish it."""

    problem: Problem
    statements: tuple[Statement, ...]

    @property
    def main(self) -> Statement:
        """The statement that computes the products."""
        (found,) = self.of("main")
        return found

    def of(self, *when: str) -> tuple[Statement, ...]:
        """Return the statements that run at these times, in order."""
        return tuple(st for st in self.statements if st.when in when)

    def naive(self) -> Kernel:
        """Return the naive nest of the main statement, with those of the statements that prepare its operands."""
        before = [naive(self.problem, st) for st in self.of("packing", "before")]
        return naive(self.problem, self.main, before)


def program(problem: Problem, main: Statement) -> Program:
    """Return the program around ``main``, the statement of the products of ``problem`` as a config has it scheduled."""
    after = [sum_of_parts(main)] if main.whole is not main else []
    bias = bias_gradient(problem)
    after += [bias] if bias is not None else []
    return Program(problem, (*sums_of(problem, main.whole), main, *after))
