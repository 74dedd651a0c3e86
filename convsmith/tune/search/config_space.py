"""A space of configs as a search sees it, on any machine: candidates of the model, and steps along dimensions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from convsmith.compiler.memory import flaw_within
from convsmith.diag.errors import ConfigError
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config

__all__ = ["Changes", "ConfigSpace"]

Changes: TypeAlias = dict[str, Any]
"""Fields of a config with other values."""


class ConfigSpace(ABC):
    """The configs of ``problem`` on ``target``. Use it within one `interning` block.

    ``seeds`` are the model's candidates, best expected first. ``refused`` counts the configs that made no kernel, by
    the code of their error.
    """

    def __init__(self, problem: Problem, target: Machine, refused: Counter[str] | None = None) -> None:
        self.problem = problem
        self.target = target
        self.refused: Counter[str] = Counter() if refused is None else refused
        self._reasons: dict[Config, str] = {}

    @property
    @abstractmethod
    def seeds(self) -> list[Config]:
        """The model's candidates."""

    @property
    @abstractmethod
    def dimensions(self) -> tuple[str, ...]:
        """The names of the dimensions, ordered by their expected effect on the time."""

    @abstractmethod
    def changes(self, config: Config, dimension: str) -> Iterable[Changes]:
        """Return the changes of ``config`` along a dimension."""

    @abstractmethod
    def cycles(self, config: Config) -> float:
        """Return the cycles that the model expects: 0 without an estimate, infinite for an illegal config."""

    def fits(self, config: Config) -> bool:
        """Return False if a quick test before `refusal` finds ``config`` illegal."""
        return True

    def refusal(self, config: Config) -> str:
        """Return the code of the error for which ``config`` makes no kernel; empty if it makes one."""
        if config not in self._reasons:
            error = flaw_within(self.problem, config, self.target)
            self._reasons[config] = "" if error is None else error.code
            if error is not None:
                self.refused[error.code] += 1
        return self._reasons[config]

    def neighbours(self, config: Config, dimension: str) -> Iterator[Config]:
        """Yield the configs, legal or not, that differ from ``config`` only in ``dimension``."""
        near = (self._changed(config, change) for change in self.changes(config, dimension))
        yield from (c for c in dict.fromkeys(near) if c is not None and c != config)

    def census(self, config: Config) -> dict[str, tuple[list[Config], Counter[str]]]:
        """Return, for each dimension, the configs one step from ``config`` that make kernels, and the number of refused
        ones by code. Configs that were refused before do not count.
        """
        found: dict[str, tuple[list[Config], Counter[str]]] = {}
        for dimension in self.dimensions:
            before = self.refused.copy()
            legal = [c for c in self.neighbours(config, dimension) if not self.refusal(c)]
            found[dimension] = legal, self.refused - before
        return found

    def _changed(self, config: Config, change: Changes) -> Config | None:
        """Return ``config`` with ``change``; None if the result is not a config."""
        try:
            return config.changed(**change)
        except ConfigError as error:
            self.refused[error.code] += 1
            return None
