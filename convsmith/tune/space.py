"""The space of configs of a problem of one statement: the model's candidates, and steps along dimensions from them.

A dimension (`tune/dimensions.py`) is a name with a function from a config to the changes that replace this one
decision. Every point of the space is reached from the candidates by steps along dimensions. A step may lead to an
illegal config, whose refusal the space returns as a code.
"""

from __future__ import annotations

from collections.abc import Iterable

from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.tune.candidates import candidates
from convsmith.tune.config_space import Changes, ConfigSpace
from convsmith.tune.dimensions import DIMENSIONS
from convsmith.tune.steps import ConfigSteps

__all__ = ["Space"]


class Space(ConfigSpace):
    """The configs of ``problem``, one statement, on ``target``, a CPU, for a number of threads."""

    def __init__(self, problem: Problem, target: Machine, threads: int) -> None:
        super().__init__(problem, target)
        self._steps = ConfigSteps(problem, target, self.refused)
        self.seeds = list(dict.fromkeys(c.config for c in candidates(problem, target, threads)))

    @property
    def dimensions(self) -> tuple[str, ...]:
        return tuple(DIMENSIONS)

    def changes(self, config: Config, dimension: str) -> Iterable[Changes]:
        return self._steps.changes(config, dimension)

    def cycles(self, config: Config) -> float:
        return self._steps.cycles(config)

    def fits(self, config: Config) -> bool:
        is_fit = self._steps.fits(config)
        if not is_fit and config not in self._reasons:
            self._reasons[config] = "registers"
            self.refused["registers"] += 1
        return is_fit
