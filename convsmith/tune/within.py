"""Choices of configs within the memory that a problem permits, its ``workspace``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from math import inf
from typing import Any, TypeVar

from convsmith.compiler.memory import bytes_needed, least_bytes
from convsmith.diag.errors import ConfigError
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import fused_dims
from convsmith.schedule.plan import decided
from convsmith.schedule.planned import plan_for

__all__ = ["MemoryBound", "smaller", "with_changes"]

T = TypeVar("T")

_LESS: tuple[dict[str, Any], ...] = (
    {"realise": "peel", "pack_at": ()},
    {"pack": (), "stream": ()},
    {"pack": (), "stream": (), "realise": "peel", "pack_at": (), "resident": (), "split": ()},
)
_CHANGES = (*_LESS, {"threads": 1}, *({**change, "threads": 1} for change in _LESS))
"""Changes of a config after which its kernel needs less memory, or as much."""


class MemoryBound:
    """The bound of ``problem``, and the bytes that configs need: exactly, or at least where that exceeds the bound."""

    def __init__(self, problem: Problem, machine: Machine) -> None:
        self._problem, self._machine = problem, machine
        self._needed: dict[Config, float] = {}
        self._least: dict[Config, int] = {}

    def permits(self, config: Config) -> bool:
        """Return whether ``config`` makes a kernel within the bound; True without a bound."""
        bound = self._problem.workspace
        if bound is None:
            return True
        if config not in self._needed and config not in self._least:
            made = decided(self._problem, config, self._machine)
            least = inf if isinstance(made, ConfigError) else least_bytes(made)
            if bound < least < inf:
                self._least[config] = int(least)
            else:
                self._needed[config] = inf if least == inf else self._bytes(config)
        return self._needed.get(config, inf) <= bound

    def _bytes(self, config: Config) -> int:
        return bytes_needed(plan_for(self._problem, config, self._machine))

    def first(self, choices: Iterable[T], config_of: Callable[[T], Config], count: int) -> list[T]:
        """Return the first ``count`` of ``choices`` whose configs are within the bound."""
        return list(islice((x for x in choices if self.permits(config_of(x))), count))

    def refusal(self) -> ConfigError:
        """Return the error if no config is within the bound: it names the least that one of them needs."""
        problem = self._problem
        config = min(self._needed, key=self._needed.__getitem__, default=None)
        found = inf if config is None else self._needed[config]
        for other, least in sorted(self._least.items(), key=lambda x: x[1]):
            if least >= found:
                break
            if (needed := self._bytes(other)) < found:
                found, config = needed, other
        if found == inf:
            return ConfigError("no-config", f"no config makes a kernel of {problem} for {self._machine.name}")
        return ConfigError(
            "workspace",
            f"--workspace={problem.workspace}: no kernel of {problem.unbounded()} for {self._machine.name} needs so "
            f"little beside the tensors; the least is {found} bytes, by {config}; legal is --workspace={found}",
        )


def smaller(configs: Iterable[Config]) -> Iterator[Config]:
    """Yield variants of ``configs`` that need less memory: without copies of the source, without packed operands,
    without either, and these on one thread. The best config of each lane is varied.
    """
    of_lane: dict[str, Config] = {}
    for config in configs:
        if not config.tiles_at("winograd"):
            of_lane.setdefault(config.lane, config)
    yield from with_changes(of_lane.values())
    for config in of_lane.values():
        yield Config(config.target, fused_dims(config, config.lane)[-1], pack=(), threads=config.threads)
        yield Config(config.target, fused_dims(config, config.lane)[-1], pack=())


def with_changes(configs: Collection[Config]) -> Iterator[Config]:
    """Yield ``configs`` with each of the changes in all their statements."""
    for change in _CHANGES:
        for config in configs:
            try:
                yield config.of_each(**change)
            except ConfigError:  # the change contradicts another word
                continue
