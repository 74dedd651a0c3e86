"""The space of configs of several stages, a chain or a convolution with a fused depthwise one, as data.

Its first dimensions concern the stages together: which neighbours are fused, how many rows a kernel computes at once,
whether rows that two steps read are kept, and the tiles of channels. The other dimensions are those of one statement,
for each stage in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product

from convsmith.diag.errors import ConfigError
from convsmith.diag.forking import cached_property
from convsmith.machine.base import Machine
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import CONFIG_ROWS
from convsmith.tune.chains import are_fusible, computes_near, config_of, stages_config
from convsmith.tune.channel_tiles import in_channel_tiles
from convsmith.tune.fused import fused_config
from convsmith.tune.search.config_space import Changes, ConfigSpace
from convsmith.tune.search.dimensions import DIMENSIONS
from convsmith.tune.search.space import Space
from convsmith.tune.stage_configs import StageConfigs

__all__ = ["MAX_JOINTS", "StagesSpace"]

MAX_JOINTS = 6
"""Maximum number of joints for which every combination of fused joints is a seed; the number of combinations doubles
with each joint.
"""


class StagesSpace(ConfigSpace):
    """The configs of ``problem``, several stages, on ``target``, a CPU, for a number of threads.

    The seeds are the combinations of fused neighbours, the default choice first; with more than `MAX_JOINTS` joints,
    they fuse all joints, a single one, or none. A step of a stage changes only its config; a step along ``joint`` or
    ``rows`` replaces the configs of the stages that it fuses or separates by default ones.
    """

    def __init__(self, problem: Problem, target: Machine, threads: int) -> None:
        super().__init__(problem, target)
        stages = stages_of(problem)
        assert stages is not None
        self._stages, self._threads, self._configs = stages, threads, StageConfigs(target)
        self._is_near = isinstance(problem, Conv) and computes_near(problem)
        self._spaces = [Space(own, target.with_own_vectors, threads, self.refused) for own in stages.problems]
        self._together: dict[str, Callable[[Config], Iterator[Config]]] = {
            "joint": self._joints, "rows": self._rows, "halo": self._halos, "channels": self._channels,
        }  # fmt: skip

    @cached_property
    def seeds(self) -> list[Config]:
        first = stages_config(self.problem, self.target, self._threads)
        return list(dict.fromkeys((first, *self._every_choice())))

    @property
    def dimensions(self) -> tuple[str, ...]:
        return (*self._together, *DIMENSIONS)

    def changes(self, config: Config, dimension: str) -> Iterable[Changes]:
        """Yield changes of the whole config. A stage without a dimension has no steps along it."""
        if dimension in self._together:
            found = self._together[dimension](config)
        else:
            found = self._of_stages(config, dimension)
        return (other.values() for other in found)

    def cycles(self, config: Config) -> float:
        """Return the sum of the cycles of the stages, each modelled separately."""
        own = config.stages
        return sum(space.cycles(c) for space, c in zip(self._spaces, own)) if len(own) == len(self._spaces) else 0.0

    def _every_choice(self) -> Iterator[Config]:
        """Yield the default configs of the stages for every combination of fused neighbours."""
        if self._is_near:
            yield from (self._by_rows(way) for way in (True, False))
            return
        for ways in self._ways_of_seeds():
            if are_fusible(self._stages, ways):
                yield from self._default(ways)

    def _ways_of_seeds(self) -> Iterator[Sequence[bool]]:
        """Yield, for each seed, whether each stage is fused with the next one: all combinations, or some of them."""
        joints = range(len(self._stages) - 1)
        if len(joints) <= MAX_JOINTS:
            yield from product((True, False), repeat=len(joints))
        else:
            yield [True for _ in joints]
            yield from ([n == fused for n in joints] for fused in joints)
            yield [False for _ in joints]

    def _by_rows(self, by_rows: bool) -> Config:
        assert isinstance(self.problem, Conv)
        return fused_config(self.problem, self.target, self._threads, by_rows)

    def _joints(self, config: Config) -> Iterator[Config]:
        """Yield configs with one more pair of neighbours fused, or one fewer.

        A convolution with a fused depthwise one is computed by images or by rows.
        """
        if self._is_near:
            yield from (near for near in map(self._by_rows, (True, False)) if near.compute_at != config.compute_at)
            return
        ways = _ways(config)
        for n in range(len(ways)):
            others = [fused != (n == k) for k, fused in enumerate(ways)]
            if are_fusible(self._stages, others):
                for other in self._default(others):
                    yield _with_kept(config, other)

    def _rows(self, config: Config) -> Iterator[Config]:
        """Yield configs of a chain in which fused stages compute another number of rows at once: powers of two."""
        if self._is_near:
            return
        ways, tiles = _ways(config), [link.place[1] for link in config.links]
        ends = (n for n, fused in enumerate(ways) if fused and not any(ways[n + 1 : n + 2]))
        lasts = {n + 1: tiles[n] or 1 for n in ends}
        for last in lasts:
            rows, most = 1, self._stages.problems[last].dims["oh"]
            while rows < most:
                for other in self._default(ways, {**lasts, last: rows}):
                    yield _with_kept(config, other)
                rows *= 2

    def _default(self, ways: Sequence[bool], rows: Mapping[int, int] | None = None) -> Iterator[Config]:
        """Yield the default configs of the stages of a chain that are fused in these ``ways``; empty if stages cannot
        be fused, which counts as refused.
        """
        try:
            yield config_of(self._stages, self._configs, self._threads, ways, rows)
        except ConfigError as error:
            self.refused[error.code] += 1

    def _halos(self, config: Config) -> Iterator[Config]:
        """Yield configs in which the rows of one fused stage are kept, or recomputed."""
        places = _places(config)
        for n, (at, kept) in enumerate(places):
            if at:
                halo = next(h for h in CONFIG_ROWS["halo"].legal if h != kept)
                yield _chain(config.stages, [*places[:n], (at, halo), *places[n + 1 :]])

    def _channels(self, config: Config) -> Iterator[Config]:
        """Yield configs of a chain with tiles of channels around tiles of rows in two fused stages."""
        stages, places, ways = config.stages, _places(config), (False, *_ways(config), False)
        rows = [link.place[1] or 1 for link in config.links]
        for n, (one, two) in enumerate(pairwise(self._stages.problems)):
            if ways[n : n + 3] != (False, True, False) or not (isinstance(one, Conv) and isinstance(two, Conv)):
                continue
            for changes in in_channel_tiles(stages[n], stages[n + 1], one, two, rows[n]):
                pair = [self._changed(*x) for x in zip(stages[n : n + 2], changes)]
                made = [own for own in pair if own is not None]
                if len(made) == 2:
                    yield _chain([*stages[:n], *made, *stages[n + 2 :]], places)

    def _of_stages(self, config: Config, dimension: str) -> Iterator[Config]:
        """Yield configs in which one stage is a step along ``dimension`` away."""
        stages = config.stages
        for n, (space, own) in enumerate(zip(self._spaces, stages)):
            for changes in space.changes(own, dimension):
                near = self._changed(own, changes)
                if near is not None:
                    yield _chain([*stages[:n], near, *stages[n + 1 :]], _places(config))


def _places(config: Config) -> list[tuple[str, str]]:
    """Return, for each stage, the loop at which its rows are computed, and whether rows that two steps read are kept.
    """
    return [(link.compute_at, link.halo) for link in config.links]


def _ways(config: Config) -> list[bool]:
    """Return, for each stage except the last, whether it is fused with the next one."""
    return [bool(at) for at, _ in _places(config)[:-1]]


def _chain(stages: Sequence[Config], places: Sequence[tuple[str, str]]) -> Config:
    """Return the config of ``stages``, each at its place."""
    config: Config | None = None
    for own, (at, halo) in reversed(list(zip(stages, places, strict=True))):
        config = own.changed(compute_at=at, halo=halo, consumer=config)
    assert config is not None
    return config


def _with_kept(config: Config, other: Config) -> Config:
    """Return ``other`` with the configs that ``config`` has for the stages that neither fuses."""
    ways = [(False, *_ways(each), False) for each in (config, other)]
    stages = [
        own if any(way[n] or way[n + 1] for way in ways) else kept
        for n, (kept, own) in enumerate(zip(config.stages, other.stages))
    ]
    return _chain(stages, _places(other))
