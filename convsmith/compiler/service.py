"""From a problem to an artifact, through the cache on disk.

    compile_or_load(problem, target=target("avx2"), choose=choose, threads=1) -> Artifact

`CONVSMITH_DUMP` and `CONVSMITH_CHECK` require every pass to run, so they bypass the cache. A fault of convsmith becomes
an InternalError with the command that reproduces it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from convsmith.codegen.artifact import Artifact
from convsmith.compiler.cache import DiskCache, cache_key, disk_cache
from convsmith.diag import trace
from convsmith.diag.collection import no_collection
from convsmith.diag.errors import ConfigError, ConvsmithError, InternalError, UsageError
from convsmith.diag.forking import import_lock
from convsmith.diag.settings import settings
from convsmith.layout.requirements import FIXED, Requirements
from convsmith.layout.tags import ANY
from convsmith.machine.base import Machine
from convsmith.machine.micro_architectures import preferred
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.given import GivenSchedule

if TYPE_CHECKING:
    from convsmith.schedule.plan import Plan

__all__ = ["Chooser", "compile_or_load", "faults", "is_stored", "line_words", "repro"]


Chooser = Callable[[Problem, Machine, int, bool], Config]
"""Returns the default config for (problem, target, threads, whether the sizes are known only at the call)."""


def compile_or_load(
    problem: Problem, *, target: Machine, choose: Chooser, config: Config | GivenSchedule | None = None,
    threads: int = 1, requirements: Requirements = FIXED,
) -> Artifact:  # fmt: skip
    """Return the artifact of a problem for a target, from the cache, or compiled and stored there.

    `config` makes every decision, including the number of threads; a schedule function runs here, and its rewrites
    identify the artifact in the cache. Without `config`, `choose` returns the default for `threads`, and the artifact's
    `config` records it. With `requirements` on the sizes of calls, the kernel serves all sizes that satisfy them.
    ConfigError if the config makes no kernel; ToolchainError if LLVM refuses the code.
    """
    if config is not None and config.target != target.name:
        raise UsageError(f"config is for target {config.target}; the machine's is {target.name}", code="target")
    plain = _general(problem) if requirements else problem.canonical()
    with _scheduled(plain, config, target, requirements) as plan:
        return _compile_or_load(problem, plain, target, choose, config, threads, requirements, plan)


@contextmanager
def _scheduled(
    problem: Problem, config: Config | GivenSchedule | None, target: Machine, requirements: Requirements
) -> Iterator[Plan | None]:
    """Run the `with` block in its own intern table, with the plan that a given schedule builds; None for other configs.
    """
    if not isinstance(config, GivenSchedule):
        yield None
        return
    with import_lock:
        from convsmith.ir.intern import interning
        from convsmith.schedule.planned import plan_for

    with interning():
        yield plan_for(problem, config, target, requirements)


def _compile_or_load(
    problem: Problem, plain: Problem, target: Machine, choose: Chooser, config: Config | GivenSchedule | None,
    threads: int, requirements: Requirements, plan: Plan | None,
) -> Artifact:  # fmt: skip
    """Return the artifact of a problem; `plain` is the problem without details that affect no kernel, `plan` a
    schedule's plan.
    """
    start = perf_counter()
    cache = disk_cache()
    line = str(plain)
    decided = plan.rewrites if plan is not None else str(config) if config is not None else None
    key = _key(line, decided, threads, target, requirements)
    watched = settings.dump is not None or settings.check != "off"
    stored = _stored(cache, key, line, config, threads, target, requirements) if cache and not watched else None
    if stored is not None:
        artifact, status = stored if plan is None else _with_plan(stored, plan), "cached"
    else:
        with import_lock:
            from convsmith.compiler.arrays import check_arrays
            from convsmith.ir.intern import one_table
        with no_collection(), one_table():
            if config is None:
                check_arrays(plain, target)
                with faults(trace.command("verify", *line_words(plain), target=target.name, threads=threads)):
                    config = choose(plain, target, threads, bool(requirements))
            with faults(repro("verify", problem, str(config), requirements)):
                artifact, status = _compile(plain, config, target, requirements), "compiled"
        if cache is not None:
            cache.put(key, artifact.to_bytes())
    for event in ("create", "cache") if settings.verbose else ():
        if trace.enabled(event) and (event == "create" or cache is not None):
            trace.emit(
                event, status=status if event == "create" else ("hit" if stored is not None else "miss"),
                target=target.name, threads=artifact.entries["main"].launch.threads,
                time_ms=(perf_counter() - start) * 1e3, config=artifact.config,
                detail=f"code_bytes={len(artifact.code)} key={key[:16]}",
                repro=repro("verify", problem, artifact.config, requirements),
            )  # fmt: skip
    return artifact


def is_stored(problem: Problem, *, target: Machine, config: Config | None = None, threads: int = 1) -> bool:
    """Return whether the cache on disk has the artifact that `compile_or_load` would return for fixed sizes."""
    cache = disk_cache()
    key = _key(str(problem.canonical()), None if config is None else str(config), threads, target, FIXED)
    return cache is not None and cache.get(key) is not None


def _with_plan(stored: Artifact, plan: Plan) -> Artifact:
    """Return an artifact that the cache stores under the rewrites of `plan`, which another function may have made."""
    with import_lock:
        from convsmith.schedule.planned import KeptPlan

    return replace(stored, config=str(plan.config), plan=KeptPlan.of(plan))


def _key(line: str, decided: str | None, threads: int, target: Machine, requirements: Requirements) -> str:
    """Return the key of an artifact in the cache.

    `decided` is the text of a complete config, or None for the default config, which the rest of the key determines,
    and which takes longer to find than an artifact takes to load.
    """
    source = "model" if settings.database == "off" else f"{preferred().name} table"
    wanted = decided if decided is not None else f"default of {source} --threads={threads}"
    return cache_key(line, wanted, str(requirements), target.key)


def _stored(
    cache: DiskCache, key: str, problem: str, config: Config | GivenSchedule | None, threads: int, target: Machine,
    requirements: Requirements,
) -> Artifact | None:
    """Return the artifact stored under `key`; if the entry belongs to another kernel, remove it and return None."""
    content = cache.get(key)
    if content is None:
        return None
    try:
        artifact = Artifact.from_bytes(content)
        stored_config = config or Config.parse(artifact.config)
    except (UsageError, ConfigError) as error:
        cache.discard(key, f"is damaged: {error}")
        return None
    is_given = isinstance(config, GivenSchedule)  # the rewrites of the plan are part of the key
    wanted = {
        "problem": (artifact.problem, problem),
        "config": (artifact.config, artifact.config if config is None or is_given else str(config)),
        "instruction set": (artifact.target, target.name),
        "instruction set of the config": (stored_config.target, target.name),
        "needed CPU features": (tuple(x for x in target.needs if x in artifact.needs), target.needs),
        "requirements": (artifact.requirements, requirements),
        "threads": (artifact.entries["main"].launch.threads, stored_config.threads) if not is_given else (0, 0),
        "most threads": (min(stored_config.threads, threads), stored_config.threads) if config is None else (0, 0),
    }
    for name, (actual, asked) in wanted.items():
        if actual != asked:
            cache.discard(key, f"is another kernel's: its {name} is {actual}, not {asked}")
            return None
    return artifact


def _general(problem: Problem) -> Problem:
    with import_lock:
        from convsmith.schedule.dynamic import check_dynamic, general

    return general(check_dynamic(problem)).canonical()


def repro(verb: str, problem: Problem, config: str, requirements: Requirements = FIXED) -> str:
    """Return the command that runs `verb` on this problem under this config; with requirements, one that compiles it.
    """
    if requirements:
        dims = ",".join(requirements.free)
        call = f"convsmith.compile({str(problem)!r}, dynamic={dims!r}, config={config!r})"
        return shlex.join(["python", "-c", f"import convsmith; {call}"])
    return trace.command(verb, *line_words(problem), config=config)


def line_words(problem: Problem) -> tuple[str, ...]:
    """Return the words of a command line that describe the problem, with layouts that commands would otherwise choose.
    """
    leaves_open = isinstance(problem, Conv | Chain) and ANY in (problem.stag, problem.dtag)
    layout = (f"--layout={ANY}",) if leaves_open else ()
    return (*layout, *problem.options(), replace(problem, name=None).descriptor())


@contextmanager
def faults(command: str) -> Iterator[None]:
    """Inside the block, turn exceptions that only a fault of convsmith can raise into InternalError with `command`."""
    try:
        yield
    except InternalError as error:
        error.repro = error.repro or command
        raise
    except (ConvsmithError, MemoryError):
        raise
    except Exception as error:
        raise InternalError(f"{type(error).__name__}: {error}", repro=command) from error


def _compile(problem: Problem, config: Config | GivenSchedule, target: Machine, requirements: Requirements) -> Artifact:
    with import_lock:
        from convsmith.compiler.driver import build_artifact, emit, lower
        from convsmith.ir.intern import one_table
        from convsmith.schedule.planned import KeptPlan, plan_for

    if settings.dump is None and settings.check == "off":
        return build_artifact(problem, config, target, requirements=requirements)
    with import_lock:
        from convsmith.compiler.instruments import Dump, Interpret, Verify, dump_directory, texts_of_code

    dump = None if settings.dump is None else Dump(dump_directory(settings.dump, problem, str(config)))
    with no_collection(), one_table():
        verify = [] if settings.check == "off" else [Verify()]
        wanted = settings.check == "interpret" and not requirements and Interpret.suits(problem, config)
        interpret = [Interpret(problem, target)] if wanted else []
        made = plan_for(problem, config, target, requirements)
        kept = KeptPlan.of(made)
        low = lower(made, [*([dump] if dump else []), *verify, *interpret])
        if dump:
            dump.finish(texts_of_code(low.text, target))
        return replace(emit(made, low), plan=kept)
