"""Configs within the memory that a problem permits, for devices and for several stages."""

from __future__ import annotations

from collections.abc import Iterator

from convsmith.ir.intern import one_table
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.tune.devices.device import device_candidates, device_config
from convsmith.tune.search.stages_space import StagesSpace
from convsmith.tune.within import MemoryBound, with_changes

__all__ = ["bounded_config"]


def bounded_config(problem: Problem, target: Machine, threads: int) -> Config:
    """Return the first config for a device, or for several stages, that needs no more memory than ``problem`` permits.
    ConfigError if there is none.
    """
    bound, free = MemoryBound(problem, target), problem.unbounded()
    with one_table():
        tries = _of_device(free, target) if target.device is not None else _of_stages(free, target, threads)
        found = bound.first(tries, lambda config: config, 1)
        if not found:
            raise bound.refusal()
        return found[0]


def _of_device(problem: Problem, target: Machine) -> Iterator[Config]:
    """Yield the configs that the model expects to be fastest, then one that packs no operand."""
    yield device_config(problem, target)
    yield from device_candidates(problem, target)
    yield device_config(problem, target, packs=False)


def _of_stages(problem: Problem, target: Machine, threads: int) -> Iterator[Config]:
    """Yield the default choice and other choices of fused stages, with transforms and without; then each with less
    memory in all its stages, and on one thread.
    """
    seeds: dict[Config, None] = {}
    for version in (problem, problem.without_transforms()):
        space = StagesSpace(version, target, threads)
        seeds |= dict.fromkeys(space.seeds)
        seeds |= dict.fromkeys(other for config in space.seeds for other in space.neighbours(config, "rows"))
    yield from seeds
    yield from with_changes([config for config in seeds if not config.has_transform])
