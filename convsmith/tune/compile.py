"""Compiles a problem to an artifact under the config that is known, or expected, to be fastest; the frontends call it.
"""

from __future__ import annotations

from convsmith.codegen.artifact import Artifact
from convsmith.compiler.service import compile_or_load, is_stored
from convsmith.diag.errors import ConfigError, ConvsmithError, UsageError
from convsmith.diag.forking import import_lock
from convsmith.diag.settings import settings
from convsmith.layout.requirements import FIXED, Requirements
from convsmith.machine.base import Machine
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.wish import Decisions, Wish
from convsmith.tune.records.recall import keeps_bits, recalled, refuse

__all__ = ["choose", "compile_problem", "default_cycles", "expected_choice", "is_ready"]

ATTEMPTS = 3
"""Maximum number of rows of the database that are tried before the model chooses the config."""


def compile_problem(
    problem: Problem, *, target: Machine, config: Decisions | None = None, threads: int = 1,
    requirements: Requirements = FIXED,
) -> Artifact:
    """Return the artifact of `problem` for `target` under `config`, by default under the config that measurements have
    chosen, or else the config that `choose` returns. For a wish, the first legal config with its values is used.

    A row of measurements with an illegal config causes a warning. With `requirements` on the sizes of calls, the kernel
    serves all sizes that satisfy them. ConfigError if the config is illegal; ToolchainError if LLVM rejects the code.
    """
    if isinstance(config, Wish):
        if config.target not in ("", target.name):
            raise UsageError(f"config is for target {config.target}; the machine's is {target.name}", code="target")
        if not config.is_empty:
            return _compile_wished(problem, target, config, threads, requirements)
        config = None
    for _ in range(ATTEMPTS if config is None and not requirements else 0):
        plain = problem.canonical()
        measured = recalled(plain, target, threads)
        if measured is None:
            break
        try:
            return compile_or_load(problem, target=target, choose=choose, config=measured, threads=threads)
        except ConvsmithError as error:
            refuse(plain, measured, error)
    try:
        return compile_or_load(
            problem, target=target, choose=choose, config=config, threads=threads, requirements=requirements
        )
    except ConvsmithError as error:
        if config is not None or not _refuses_row(problem.canonical(), target, threads, bool(requirements), error):
            raise
    return compile_or_load(
        problem, target=target, choose=choose, config=config, threads=threads, requirements=requirements
    )


def is_ready(problem: Problem, target: Machine, threads: int) -> bool:
    """Return whether the cache on disk has the artifact that `compile_problem` returns without a config."""
    measured = recalled(problem.canonical(), target, threads)
    return is_stored(problem, target=target, config=measured, threads=threads)


def _refuses_row(problem: Problem, target: Machine, threads: int, dynamic: bool, error: ConvsmithError) -> bool:
    """Return whether the default config comes from a table of measurements and is illegal; its row is then discarded,
    with a warning.
    """
    with import_lock:
        from convsmith.ir.intern import interning
        from convsmith.tune.records.shipped import refuse as refuse_row

    if not _has_table(problem, target, threads, dynamic):
        return False
    with interning():
        _, measured = _of_table(problem, target, threads)
    if measured is not None:
        refuse_row(problem.unbounded(), error)
    return measured is not None


def _compile_wished(
    problem: Problem, target: Machine, wish: Wish, threads: int, requirements: Requirements
) -> Artifact:
    """Return the artifact under the first config with the values of `wish` that makes a kernel. ConfigError if there is
    none.
    """
    with import_lock:
        from convsmith.ir.intern import interning
        from convsmith.tune.wishes import refusal, wished

    plain = problem.canonical()
    measured = None if requirements else recalled(plain, target, threads)
    with interning():
        default = measured or choose(plain, target, threads, bool(requirements))
        tries = list(wished(plain, wish, default, target, bool(requirements)))
    refused: dict[Config, ConvsmithError] = {}
    for config in tries:
        try:
            return compile_or_load(problem, target=target, choose=choose, config=config, requirements=requirements)
        except ConvsmithError as error:
            refused[config] = error
            if config == default and measured is not None:
                refuse(plain, measured, error)
            elif config != default or not _refuses_row(plain, target, threads, bool(requirements), error):
                if not isinstance(error, ConfigError):
                    raise
    raise refusal(problem, wish, target, refused)


def choose(problem: Problem, target: Machine, threads: int, dynamic: bool) -> Config:
    """Return the default config; for a `dynamic` kernel, whose sizes are known only at the call, a config that fits all
    sizes.

    A config that was measured to be faster on this micro-architecture replaces the model's choice.
    """
    with import_lock:
        from convsmith.ir.intern import interning
        from convsmith.schedule.dynamic import check_dynamic
        from convsmith.schedule.planned import check_sizes
        from convsmith.tune.bounded import bounded_config
        from convsmith.tune.candidates import default_config
        from convsmith.tune.chains import stages_config
        from convsmith.tune.devices.device import device_config
        from convsmith.tune.dynamic import dynamic_config

    if target.device is not None:
        check_sizes(target, dynamic)
        return device_config(problem, target) if problem.workspace is None else bounded_config(problem, target, 1)
    if dynamic:
        with interning():
            return dynamic_config(check_dynamic(problem), target, threads)
    if stages_of(problem) is not None:
        with interning():
            if problem.workspace is not None:
                return bounded_config(problem, target, threads)
            return stages_config(problem, target, threads)
    if not _has_table(problem, target, threads, dynamic):
        return default_config(problem, target, threads)
    first, measured = _of_table(problem, target, threads)
    return first if measured is None else measured


def default_cycles(problem: Problem, target: Machine, threads: int) -> float:
    """Return the cycles that the default kernel of a problem is expected to take."""
    return expected_choice(problem, target, threads)[1]


def expected_choice(problem: Problem, target: Machine, threads: int) -> tuple[Config, float]:
    """Return the default config of a problem, and the cycles that its kernel is expected to take."""
    with import_lock:
        from convsmith.ir.intern import interning
        from convsmith.tune.costs.expected import expected_terms

    with interning():
        plain = problem.canonical()
        config = choose(plain, target, threads, False)
        return config, float(sum(expected_terms(plain, config, target).values()))


def _has_table(problem: Problem, target: Machine, threads: int, dynamic: bool) -> bool:
    """Return whether a table of measurements may have a row for the problem."""
    is_listed = target.device is None and not dynamic and stages_of(problem) is None
    return is_listed and settings.database != "off" and (threads == 1 or keeps_bits(problem))


def _of_table(problem: Problem, target: Machine, threads: int) -> tuple[Config, Config | None]:
    """Return the model's choice, and the config that this micro-architecture's table has in its place; None if it has
    none, or an illegal one, which causes a warning.
    """
    with import_lock:
        from convsmith.compiler.memory import flaw_within
        from convsmith.schedule.planned import plan_for
        from convsmith.tune.candidates import default_config
        from convsmith.tune.costs.expected import expected_terms
        from convsmith.tune.costs.thread_parts import split_pixels_by_thread
        from convsmith.tune.records.shipped import faster
        from convsmith.tune.records.shipped import refuse as refuse_row

    first = default_config(problem, target, threads)
    alone = first if threads == 1 else default_config(problem, target)
    config = faster(problem.unbounded(), alone)
    if config is alone:
        return first, None
    try:
        plan_for(problem, config, target)
        cycles = sum(expected_terms(problem, config, target).values())
    except ConvsmithError as error:
        refuse_row(problem.unbounded(), error)
        return first, None
    machine = target.with_vectors(config.vector_registers)
    config = split_pixels_by_thread(problem, config.of_each(threads=threads), machine, cycles)
    is_within = problem.workspace is None or flaw_within(problem, config, target) is None
    return first, config if is_within else None
