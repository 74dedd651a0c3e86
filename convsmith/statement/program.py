"""A program: the statements of a problem, in the order in which they run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from convsmith.ir.stmt import Kernel
from convsmith.problem.problem import Problem
from convsmith.statement.bias import bias_gradient
from convsmith.statement.fused import Pair
from convsmith.statement.naive import naive
from convsmith.statement.offsets import sums_of
from convsmith.statement.parts import sum_of_parts
from convsmith.statement.statement import Statement
from convsmith.statement.winograd import Winograd


@dataclass(frozen=True)
class Program:
    """The statements of ``problem``: ``main`` computes the products, the others prepare its operands or finish it.

    The statements of a fused problem are those of a ``pair``; the first runs at a loop of the main one, the second.
    The main statement of a ``winograd`` program is the product of a block; transforms stand around it.
    """

    problem: Problem
    statements: tuple[Statement, ...]
    pair: Pair | None = None
    winograd: Winograd | None = None

    @property
    def main(self) -> Statement:
        """The statement that computes the products."""
        (main,) = self.of("main")
        return main

    def of(self, *when: str) -> tuple[Statement, ...]:
        """Return the statements that run at these times, in order."""
        return tuple(st for st in self.statements if st.when in when)

    def naive(self) -> Kernel:
        """Return the naive nest of the main statement, with those of the statements that prepare its operands."""
        if self.winograd is not None:
            return self.winograd.naive()
        problem = self.problem if self.pair is None else self.pair.fused.first
        before = [naive(problem, st) for st in self.of("packing", "before")]
        return naive(problem, self.main, before) if self.pair is None else self.pair.naive(before)


def program(problem: Problem, main: Statement) -> Program:
    """Return the program around ``main``, the statement of the products of ``problem`` as a config has it scheduled."""
    after = [sum_of_parts(main)] if main.whole is not main else []
    bias = bias_gradient(problem)
    after += [bias] if bias is not None else []
    return Program(problem, (*sums_of(problem, main.whole), main, *after))


def fused_program(problem: Problem, pair: Pair) -> Program:
    """Return the program of the two statements of a fused ``problem``."""
    first = replace(pair.first, when="loop", name="first")
    inner = (*sums_of(pair.fused.first, first), first) if pair.is_read else ()
    return Program(problem, (*inner, pair.renamed()), pair)
