"""Configs of a problem in the order in which a wish tries them.

Candidates that have the wished values come first, best expected first. Other candidates, whose values must be replaced,
follow by the number of values that they lack. So a value that the model gives to some config is found if that config
makes a kernel, and a value that it gives to no config replaces the value of the best config that permits it. Configs of
each lane without tiles and orders come last, because tiles and orders may name loops that the wished values change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from convsmith.compiler.memory import flaw_within
from convsmith.diag.errors import ConfigError, ConvsmithError
from convsmith.machine.base import Machine
from convsmith.problem.chain import Chain
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import DEFAULTS
from convsmith.schedule.loops import fused_dims
from convsmith.schedule.wish import Wish
from convsmith.tune.candidates import candidates
from convsmith.tune.devices.device import device_candidates
from convsmith.tune.search.stages_space import StagesSpace
from convsmith.tune.stage_configs import unfused

__all__ = ["refusal", "wished"]


def wished(problem: Problem, wish: Wish, default: Config, target: Machine, dynamic: bool = False) -> Iterator[Config]:
    """Yield configs of ``problem`` with the values of ``wish``, for the threads of ``default``, in the order in which
    they should be tried; a plan or a pass may reject any of them. The ``default`` comes first if it has all values.

    ConfigError if no config can hold the values.
    """
    found: dict[Config, None] = {}
    refused: dict[Config, ConvsmithError] = {}
    for config in _ranked(problem, wish, default, target, dynamic):
        try:
            changed = wish.applied(config)
        except ConfigError as error:
            refused[config] = error
            continue
        if changed not in found:
            found[changed] = None
            yield changed
    if not found:
        raise refusal(problem, wish, target, refused)


def refusal(problem: Problem, wish: Wish, target: Machine, refused: Mapping[Config, ConvsmithError]) -> ConfigError:
    """Return the error for a ``wish`` that no config can have, with the shortest reason for which a config was
    ``refused``.
    """
    why = refused[min(refused, key=lambda config: len(str(config)))]
    return ConfigError(why.code, f"no config of {problem} for {target.name} can have {wish}: {why}")


def _ranked(problem: Problem, wish: Wish, default: Config, target: Machine, dynamic: bool) -> Iterator[Config]:
    """Yield the configs that may get the values of ``wish``."""
    if not wish.missing(default):
        yield default
    every = [default, *(() if dynamic else _candidates(problem, target, default.threads))]
    yield from sorted(every, key=wish.missing)
    if isinstance(problem, Chain) and not dynamic and not wish.is_of_joints:
        yield from _of_stages(problem, wish, default, target)
    if default.consumer is None and target.device is None:
        yield from _plain(every, default.realise if dynamic else DEFAULTS["realise"])


def _plain(every: Sequence[Config], realise: str) -> Iterator[Config]:
    """Yield, for each lane of sums of products, the config of its best candidate without tiles and orders, then, for
    each, a config that only decides how the source is read.
    """
    of_lane: dict[str, Config] = {}
    for config in every:
        if not config.tiles_at("winograd"):
            of_lane.setdefault(config.lane, config)
    for config in of_lane.values():
        yield config.changed(register=(), order=(), reduce=(), cache=(), split=(), pack_at=(), stream=(), resident=())
    for config in of_lane.values():
        lane = fused_dims(config, config.lane)[-1]
        yield Config(config.target, lane, realise=realise, pack=(), threads=config.threads)


def _candidates(problem: Problem, target: Machine, threads: int) -> Sequence[Config]:
    """Return the configs of ``problem`` that the model ranks, best first."""
    if target.device is not None:
        return list(device_candidates(problem, target))
    if stages_of(problem) is not None:
        return StagesSpace(problem, target, threads).seeds
    return [choice.config for choice in candidates(problem, target, threads)]


def _of_stages(problem: Chain, wish: Wish, default: Config, target: Machine) -> Iterator[Config]:
    """Yield the config of a chain without fused stages, in which each stage has the values as if it were alone."""
    stages = stages_of(problem)
    assert stages is not None
    whole: Config | None = None
    target = target.with_own_vectors
    for n, own in reversed(list(enumerate(stages.problems))):
        tries = wished(own, wish.of_statement(n), _candidates(own, target, default.threads)[0], target)
        try:
            best = next(config for config in tries if flaw_within(own, config, target) is None)
        except (ConfigError, StopIteration):
            return
        whole = unfused(own, best, target, n > 0).changed(consumer=whole)
    assert whole is not None
    yield whole
