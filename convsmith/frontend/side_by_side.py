"""Parallel compilation of the kernels of several problems in forked processes, one per CPU.

A child inherits all modules and LLVM's targets, and stores the kernels that it compiles in the cache on disk. On two
CPUs, two processes take 0.56 of the time of one, and two threads 0.84: the interpreter's lock is free only while LLVM
works, and llvmlite lets one thread at a time into LLVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from convsmith.codegen.child import in_children
from convsmith.compiler.cache import disk_cache
from convsmith.diag.errors import ConvsmithError
from convsmith.diag.settings import settings
from convsmith.frontend.numpy_api import compile, watched
from convsmith.machine import registry
from convsmith.problem.problem import Problem
from convsmith.runtime.threads import available_cpus
from convsmith.tune.compile import compile_problem, is_ready

__all__ = ["compile_ahead"]


def compile_ahead(problems: Iterable[Problem], threads: int, started: Callable[[int], Callable[[], object]]) -> None:
    """Compile the `problems` that the cache on disk lacks, so that `compile` with the same `threads` finds them.

    `started` receives the number of kernels to compile, and returns a function to call after each. A problem without a
    legal kernel is left to `compile`, which reports the reason; without a cache, all problems are.
    """
    if disk_cache() is None or watched():
        return
    levels = {problem: registry.target(settings.target, problem.types) for problem in problems}
    missing = [problem for problem, level in levels.items() if not is_ready(problem, level, threads)]
    if not missing:
        return
    done = started(len(missing))
    processes = min(available_cpus(), len(missing))
    if processes > 1:

        def compile_one(n: int) -> None:
            compile_problem(missing[n], target=levels[missing[n]], threads=threads)

        in_children(compile_one, len(missing), processes, done)
        return
    for problem in missing:
        with suppress(ConvsmithError):
            compile(problem, threads=threads)
        done()
