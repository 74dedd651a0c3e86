"""Parallel compilation of the kernels of several problems in forked processes, one per CPU.

A child inherits all modules and LLVM's targets, and stores the kernels that it compiles in the cache on disk. On two
CPUs, two processes take 0.56 of the time of one, and two threads 0.84: the interpreter's lock is free only while LLVM
works, and llvmlite lets one thread at a time into LLVM.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import suppress

from convsmith.codegen.child import in_children
from convsmith.compiler.cache import disk_cache
from convsmith.diag.errors import ConvsmithError
from convsmith.frontend.numpy_api import watched
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.runtime.threads import available_cpus
from convsmith.tune.compile import is_ready
from convsmith.tune.vector_width import machine_of

__all__ = ["called_side_by_side", "not_cached"]


MachineFor = Callable[[Problem], Machine]
"""Returns the machine that the kernel of a problem is compiled for."""


def not_cached(problems: Iterable[Problem], threads: int, machine_for: MachineFor = machine_of) -> list[Problem]:
    """Return the problems whose kernels the cache on disk lacks; [] if there is none, or each compilation is watched.
    """
    if disk_cache() is None or watched():
        return []
    return [problem for problem in dict.fromkeys(problems) if not is_ready(problem, machine_for(problem), threads)]


def called_side_by_side(compile_one: Callable[[int], object], count: int) -> Generator[None, None, None]:
    """Call ``compile_one`` with each number below ``count``, in as many processes as there are CPUs, or in this one if
    that is one; yield after each call. The caller meets the errors again, and reports them.
    """
    if (processes := min(available_cpus(), count)) > 1:
        yield from in_children(compile_one, count, processes)
        return
    for n in range(count):
        with suppress(ConvsmithError):
            compile_one(n)
        yield
