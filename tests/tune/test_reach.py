"""The configs that an exhaustive search measures: along some dimensions, and within a ratio of the expected time."""

from __future__ import annotations

import pytest

from convsmith.diag.errors import UsageError
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.search.device_space import space_of
from convsmith.tune.search.reach import Reach, configs_in_reach

STEM = "--stag=aBx4b --dtag=aBx4b --dt=f16 mb2ic4ih56oc64oh28kh7sh2ph3"
TILES = ("register", "group", "step")


def found(line: str, level: str, reach: Reach) -> list[Config]:
    """Return the configs in reach, of which no two are the same and each makes a kernel."""
    with interning():
        space = space_of(parse_problem(line).canonical(), target(level), 1)
        made = list(configs_in_reach(space, reach, (), lambda config: not space.refusal(config)))
        least = min(map(space.cycles, space.seeds))
        assert all(space.cycles(c) <= reach.ratio * least for c in made)
    assert len({*made}) == len(made)
    return made


def test_a_larger_ratio_reaches_more_tiles_of_the_stem() -> None:
    """Every step of the tiles is there, and no other decision changes."""
    near, far = (found(STEM, "sm_70", Reach(ratio, TILES)) for ratio in (1.0, 1.1))
    assert len(near) < len(far) and {*near} < {*far}
    assert len({(c.lane, c.order, c.realise, c.staged("shared"), c.tiles_at("vectors")) for c in far}) <= len({
        (c.lane, c.order, c.realise, c.staged("shared"), c.tiles_at("vectors")) for c in near
    })  # fmt: skip


def test_steps_go_along_the_named_dimensions() -> None:
    every, codes = (found("--matmul 2x2:2x2", "avx2", Reach(along=along)) for along in ((), ("code",)))
    assert {*codes} < {*every}


def test_dimensions_that_a_space_lacks_are_named() -> None:
    with pytest.raises(UsageError, match="--along=tiles,x: the dimensions of this space are transform, tile"):
        found("--matmul 2x2:2x2", "avx2", Reach(along=("tiles", "order", "x")))
