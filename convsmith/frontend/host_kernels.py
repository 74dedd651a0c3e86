"""The runtime's kernel of an artifact, with the kernels that take its place where weights are beyond its limits, or
come anew in each call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from convsmith.codegen.artifact import Artifact
from convsmith.diag.forking import import_lock
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.runtime.host_kernel import HostKernel
from convsmith.runtime.loading import LoadedCode
from convsmith.schedule.config import Config
from convsmith.schedule.given import GivenSchedule
from convsmith.tune.compile import compile_problem

__all__ = ["Load", "host_kernel", "without_limits"]

Load = Callable[[Artifact], LoadedCode]
"""Returns the functions of an artifact's entries."""


def host_kernel(
    problem: Problem, target: Machine, config: Config | GivenSchedule, artifact: Artifact, load: Load
) -> HostKernel:
    """Return the runtime's kernel of the artifact of a problem under `config`."""
    # A bound method would keep its kernel, which holds this one, until the garbage collector finds the cycle.
    fallback = partial(_fallback, problem, target, config, load)
    return HostKernel(artifact, fallback, load(artifact), partial(_for_plain_weights, problem, target, config, load))


def without_limits(problem: Problem, target: Machine, config: Config | GivenSchedule) -> tuple[Problem, Config]:
    """Return the problem and the config of the kernel for weights beyond the limits of a kernel with this config."""
    problem = problem.without_transforms()
    if config.has_transform or not isinstance(config, Config):
        config = Config.parse(compile_problem(problem, target=target, threads=config.threads).config)
    with import_lock:
        from convsmith.schedule import planned

    return problem, planned.without_limits(config, target)


def _fallback(problem: Problem, target: Machine, config: Config | GivenSchedule, load: Load) -> HostKernel:
    problem, other = without_limits(problem, target, config)
    artifact = compile_problem(problem, target=target, config=other, threads=other.threads)
    return host_kernel(problem, target, other, artifact, load)


def _for_plain_weights(
    problem: Problem, target: Machine, config: Config | GivenSchedule, load: Load
) -> HostKernel | None:  # fmt: skip
    """Return the kernel for calls that bring weights of their own; None if it would be about as fast."""
    if not isinstance(config, Config):
        return None
    with import_lock:
        from convsmith.ir.intern import interning
        from convsmith.tune.plain_weights import config_of_plain_weights

    with interning():
        other = config_of_plain_weights(problem.canonical(), config, target)
    if other is None:
        return None
    artifact = compile_problem(problem, target=target, config=other, threads=other.threads)
    return HostKernel(artifact, library=load(artifact))
