"""Kernels of a network, compiled side by side on all CPUs, before they are taken from the cache on disk.

Most works are known before it is known which convolutions become chains. Other CPUs compile them meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeAlias

from convsmith.codegen.child import Children
from convsmith.compiler.operator import is_operator_ready, operator_artifact
from convsmith.frontend.side_by_side import MachineFor, called_side_by_side, not_cached
from convsmith.machine.base import Machine
from convsmith.network.graph import Work
from convsmith.problem.problem import Problem
from convsmith.runtime.threads import available_cpus
from convsmith.statement.operator import Operator
from convsmith.tune.compile import compile_problem

__all__ = ["Compiling", "compile_works", "compiling_ahead", "silent"]

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
    if missing := _missing(works, threads, machine_for, target):
        with compiling(len(missing)) as advance:
            _compile(missing, _compiler_of(missing, threads, machine_for, target), advance)


def _compile(works: Sequence[Work], one: Callable[[int], None], advance: Callable[[], None]) -> None:
    """Compile `works` side by side by `one`, which gets the number of a work."""
    for _ in called_side_by_side(one, len(works)):
        advance()


@contextmanager
def compiling_ahead(
    works: Iterable[Work], threads: int, machine_for: MachineFor, target: Machine, compiling: Compiling
) -> Iterator[Callable[[Iterable[Work]], None]]:  # fmt: skip
    """Compile `works` as `compile_works` does, on all CPUs but one while the block runs. The block gets a function
    that compiles the works of which it is known that they are needed, and reports them; other works are then given up.

    The last works are compiled first: the block chooses configs from the first work on, and finds those of the others
    in the cache.
    """
    every = {*works}
    missing = _missing(works, threads, machine_for, target)[::-1]
    helpers = min(available_cpus(), len(missing)) - 1
    with ExitStack() as stack:
        if helpers > 0:
            children = Children(_compiler_of(missing, threads, machine_for, target), len(missing))
            stack.callback(children.close)
            children.start(helpers)

        def finish(needed: Iterable[Work]) -> None:
            left = [*needed]
            if helpers < 1 or not every <= {*left}:
                stack.close()
                compile_works(left, threads, machine_for, target, compiling)
                return
            rest = _missing([x for x in left if x not in every], threads, machine_for, target)
            with compiling(len(missing) + len(rest)) as advance:
                children.start(1)
                for _ in children.done():
                    advance()
                stack.close()
                _compile(rest, _compiler_of(rest, threads, machine_for, target), advance)

        yield finish


def _missing(works: Iterable[Work], threads: int, machine_for: MachineFor, target: Machine) -> list[Work]:
    """Return the works whose kernels the cache on disk lacks; none without a cache."""
    every = [*dict.fromkeys(works)]
    problems = not_cached([x for x in every if isinstance(x, Problem)], threads, machine_for)
    operators = [x for x in every if isinstance(x, Operator)]
    return [*problems, *(x for x in operators if is_operator_ready(x, target, threads) is False)]


def _compiler_of(
    works: Sequence[Work], threads: int, machine_for: MachineFor, target: Machine
) -> Callable[[int], None]:  # fmt: skip
    """Return the function that compiles the work of a number."""

    def compile_one(n: int) -> None:
        work = works[n]
        if isinstance(work, Operator):
            operator_artifact(work, target, threads)
        else:
            compile_problem(work, target=machine_for(work), threads=threads)

    return compile_one
