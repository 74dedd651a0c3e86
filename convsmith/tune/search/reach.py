"""Every config that steps reach: what an exhaustive search measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from convsmith.diag.errors import UsageError
from convsmith.schedule.config import Config
from convsmith.tune.search.config_space import ConfigSpace

__all__ = ["MAX_PREDICTED_RATIO", "Reach", "configs_in_reach"]

MAX_PREDICTED_RATIO = 1.8
"""Ratio of the expected cycles to those of the best so far above which a config is not tried."""


class Reach(NamedTuple):
    """The configs that steps ``along`` some dimensions, by default all, reach from the model's candidates, through
    configs that the model expects to take at most ``ratio`` of the least time that it expects of a candidate.
    """

    ratio: float = MAX_PREDICTED_RATIO
    along: tuple[str, ...] = ()


def configs_in_reach(
    space: ConfigSpace, reach: Reach, first: Sequence[Config], is_legal: Callable[[Config], bool]
) -> Iterator[Config]:
    """Yield the configs in ``reach``, best expected first, from the candidates of ``space`` and from ``first`` through
    legal ones. UsageError if the space has none of the dimensions that it names.
    """
    if unknown := [x for x in reach.along if x not in space.dimensions]:
        legal = ", ".join(space.dimensions)
        raise UsageError(f"--along={','.join(unknown)}: the dimensions of this space are {legal}", code="bad-option")
    queue: list[tuple[float, int, Config]] = []
    met: set[Config] = set()
    least = min(space.cycles(c) for c in space.seeds)

    def meet(config: Config) -> None:
        if config not in met and space.fits(config):
            met.add(config)
            cycles = space.cycles(config)
            if cycles <= reach.ratio * least:
                heappush(queue, (cycles, len(met), config))

    for config in (*space.seeds, *first):
        meet(config)
    while queue:
        _, _, config = heappop(queue)
        if not is_legal(config):
            continue
        yield config
        for dimension in reach.along or space.dimensions:
            for near in space.neighbours(config, dimension):
                meet(near)
