"""The space of configs of a problem on a device: tiles by level, steps, copies, and parts of the reduction."""

from __future__ import annotations

from collections.abc import Iterable

from convsmith.diag.errors import ConfigError
from convsmith.machine.base import Machine
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import loops_after_fusing
from convsmith.statement.naive import naive
from convsmith.statement.views import statement
from convsmith.tune.config_space import Changes, ConfigSpace
from convsmith.tune.device import device_candidates, expected_cycles
from convsmith.tune.device_dimensions import DEVICE_DIMENSIONS, DevicePoint
from convsmith.tune.hardware_dimensions import HARDWARE_DIMENSIONS, hardware_point
from convsmith.tune.space import Space
from convsmith.tune.stages_space import StagesSpace

__all__ = ["DeviceSpace", "space_of"]


class DeviceSpace(ConfigSpace):
    """The configs of ``problem`` on a device."""

    def __init__(self, problem: Problem, target: Machine) -> None:
        super().__init__(problem, target)
        self._statement = None if stages_of(problem) is not None else statement(problem, target)
        if self._statement is not None:
            naive(problem, self._statement)  # UnsupportedError where a post-op does not exist in the type of the sums
        self._expected = device_candidates(problem, target)
        self.seeds = list(self._expected)

    @property
    def dimensions(self) -> tuple[str, ...]:
        return tuple(DEVICE_DIMENSIONS)

    def changes(self, config: Config, dimension: str) -> Iterable[Changes]:
        try:
            return self._changes(config, dimension)
        except ConfigError:  # loops or an instruction that are illegal
            return ()

    def _changes(self, config: Config, dimension: str) -> Iterable[Changes]:
        if self._statement is None:
            return ()
        is_by_engine = config.realise == "hardware"
        if is_by_engine and dimension in HARDWARE_DIMENSIONS:
            return HARDWARE_DIMENSIONS[dimension](hardware_point(self.problem, config, self.target))
        if is_by_engine and dimension != "parts":
            return ()
        loops = loops_after_fusing(self._statement, config)
        point = DevicePoint(config, self._statement, loops, self.target, self.problem)
        return DEVICE_DIMENSIONS[dimension](point)

    def cycles(self, config: Config) -> float:
        if config not in self._expected:
            self._expected[config] = expected_cycles(self.problem, config, self.target)
        return self._expected[config]


def space_of(problem: Problem, target: Machine, threads: int) -> ConfigSpace:
    """Return the space of configs of ``problem`` on ``target``, for a number of threads of a CPU."""
    if target.device is not None:
        return DeviceSpace(problem, target)
    return (Space if stages_of(problem) is None else StagesSpace)(problem, target, threads)
