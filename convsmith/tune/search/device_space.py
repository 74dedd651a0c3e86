"""The space of configs of a problem on a device: tiles by level, steps, copies, and parts of the reduction."""

from __future__ import annotations

from collections.abc import Iterable

from convsmith.compiler.memory import flaw_within
from convsmith.machine.base import Machine
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.statement.naive import naive
from convsmith.statement.views import statement
from convsmith.tune.devices.device import device_candidates, expected_cycles
from convsmith.tune.search.config_space import Changes, ConfigSpace
from convsmith.tune.search.device_dimensions import DEVICE_DIMENSIONS, THREADS_ALONE, DevicePoint, device_point
from convsmith.tune.search.space import Space
from convsmith.tune.search.stages_space import StagesSpace

__all__ = ["DeviceSpace", "space_of"]


class DeviceSpace(ConfigSpace):
    """The configs of ``problem`` on a device."""

    def __init__(self, problem: Problem, target: Machine) -> None:
        super().__init__(problem, target)
        self._statement = None if stages_of(problem) is not None else statement(problem, target)
        if self._statement is not None:
            naive(problem, self._statement)  # UnsupportedError where a post-op does not exist in the type of the sums
        self._expected = device_candidates(problem, target)
        self._candidates = list(self._expected)
        self._points: dict[Config, DevicePoint | None] = {}

    @property
    def seeds(self) -> list[Config]:
        return self._candidates

    @property
    def dimensions(self) -> tuple[str, ...]:
        return tuple(DEVICE_DIMENSIONS)

    def changes(self, config: Config, dimension: str) -> Iterable[Changes]:
        if self._statement is None or (config.realise == "hardware" and dimension in THREADS_ALONE):
            return ()
        if config not in self._points:
            legal = flaw_within(self.problem, config, self.target) is None
            self._points[config] = device_point(self.problem, self._statement, config, self.target) if legal else None
        at = self._points[config]
        return () if at is None else DEVICE_DIMENSIONS[dimension](at)

    def cycles(self, config: Config) -> float:
        if config not in self._expected:
            self._expected[config] = expected_cycles(self.problem, config, self.target)
        return self._expected[config]


def space_of(problem: Problem, target: Machine, threads: int) -> ConfigSpace:
    """Return the space of configs of ``problem`` on ``target``, for a number of threads of a CPU."""
    if target.device is not None:
        return DeviceSpace(problem, target)
    return (Space if stages_of(problem) is None else StagesSpace)(problem, target, threads)
