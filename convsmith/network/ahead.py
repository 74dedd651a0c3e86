"""Kernels of a network, compiled side by side on all CPUs, before they are taken from the cache on disk."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

from convsmith.codegen.child import in_children
from convsmith.compiler.operator import is_operator_ready, operator_artifact
from convsmith.frontend.side_by_side import MachineFor, not_cached
from convsmith.machine.base import Machine
from convsmith.network.graph import Work
from convsmith.problem.problem import Problem
from convsmith.runtime.threads import available_cpus
from convsmith.statement.operator import Operator
from convsmith.tune.compile import compile_problem

__all__ = ["Compiling", "compile_works", "silent"]

Compiling: TypeAlias = Callable[[int], AbstractContextManager[Callable[[], None]]]
"""Returns a context for the compilation of a number of kernels, with a function that counts one more of them."""


@contextmanager
def silent(_: int) -> Iterator[Callable[[], None]]:
    """Report nothing."""
    yield lambda: None


def compile_works(
    works: Iterable[Work], threads: int, machine_for: MachineFor, target: Machine, compiling: Compiling
) -> None:  # fmt: skip
    """Compile the kernels of `works` that the cache on disk lacks: problems for the machines that `machine_for`
    returns, operators for `target`. A kernel that cannot be compiled is left to the caller, who reports the reason.
    """
    every = [*dict.fromkeys(works)]
    missing: list[Work] = [*not_cached([x for x in every if isinstance(x, Problem)], threads, machine_for)]
    operators = [x for x in every if isinstance(x, Operator)]
    missing += [x for x in operators if is_operator_ready(x, target, threads) is False]
    if not missing:
        return
    with compiling(len(missing)) as advance:
        for _ in _each(missing, threads, machine_for, target):
            advance()


def _each(
    works: Sequence[Work], threads: int, machine_for: MachineFor, target: Machine
) -> Generator[None, None, None]:  # fmt: skip
    """Compile `works`, in children if there are several CPUs, and yield after each."""

    def compile_one(n: int) -> None:
        work = works[n]
        if isinstance(work, Operator):
            operator_artifact(work, target, threads)
        else:
            compile_problem(work, target=machine_for(work), threads=threads)

    processes = min(available_cpus(), len(works))
    if processes > 1:
        yield from in_children(compile_one, len(works), processes)
