"""From an operator of a network to an artifact, through the driver of all kernels and the cache on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from convsmith.codegen.artifact import Argument, Artifact
from convsmith.compiler.arguments import argument_of
from convsmith.compiler.cache import cache_key, disk_cache
from convsmith.diag.collection import no_collection
from convsmith.diag.errors import UsageError
from convsmith.diag.forking import import_lock
from convsmith.ir.buffer import Buffer
from convsmith.ir.stmt import Kernel
from convsmith.layout.requirements import FIXED
from convsmith.machine.base import Machine
from convsmith.schedule.plan import Plan
from convsmith.statement.operator import Operator

__all__ = ["is_operator_ready", "operator_artifact", "operator_text"]


def operator_artifact(op: Operator, target: Machine, threads: int = 1) -> Artifact:
    """Return the artifact of ``op`` for ``target``, from the cache, or compiled and stored there."""
    cache, line = disk_cache(), str(op)
    key = _key(op, target, threads)
    content = None if cache is None else cache.get(key)
    if cache is not None and content is not None:
        try:
            found = Artifact.from_bytes(content)
            if (found.problem, found.needs) == (line, target.needs):
                return found
            cache.discard(key, "is another kernel's")
        except UsageError as error:
            cache.discard(key, f"is damaged: {error}")
    with import_lock:
        from convsmith.compiler.driver import assemble, lower
        from convsmith.ir.intern import one_table

    with no_collection(), one_table():
        plan = _plan(op, target, threads)
        made = replace(assemble(plan, lower(plan), _arguments(op)), problem=line, config=str(plan.config))
    if cache is not None:
        cache.put(key, made.to_bytes())
    return made


def is_operator_ready(op: Operator, target: Machine, threads: int = 1) -> bool | None:
    """Return whether the cache has the artifact of ``op`` for ``target``; None without a cache."""
    cache = disk_cache()
    return None if cache is None else cache.get(_key(op, target, threads)) is not None


def _key(op: Operator, target: Machine, threads: int) -> str:
    """Return the key of an operator's artifact in the cache."""
    return cache_key(str(op), f"operator --threads={threads}", str(FIXED), target.key)


def operator_text(op: Operator, target: Machine, threads: int = 1) -> str:
    """Return the module of the kernel of ``op`` as LLVM text."""
    with import_lock:
        from convsmith.compiler.driver import lower
        from convsmith.ir.intern import one_table

    with no_collection(), one_table():
        return lower(_plan(op, target, threads)).text


def _plan(op: Operator, target: Machine, threads: int) -> Plan:
    with import_lock:
        from convsmith.schedule.operator import operator_plan

    return operator_plan(op, target, threads)


def _arguments(op: Operator) -> Callable[[Kernel, Buffer], Argument]:
    """Return the function from parameters of the kernel to arguments, which pass the tensors of ``op``."""
    known = {t.name: argument_of(t) for t in op.tensors}
    return lambda _, b: known[b.name]
