"""The choice of a chain on several threads: pixels of its own for each, and stages fused where meetings cost more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convsmith.machine.base import Machine
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.problem.fusion import Stages, stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.tune.candidates import default_config
from convsmith.tune.chains import Joint, chain_config, joints
from convsmith.tune.costs.thread_parts import division, share
from convsmith.tune.stage_configs import StageConfigs

LEVEL = next(level for level in LEVELS if level.name == "avx512")
SMALL = "--stag=axb mb1ic32ih28oc192kh1 -> g192mb1ic192ih28oc192kh3sh2ph1 -> --dtag=axb mb1ic192ih14oc64kh1"
"""A block whose results fit the second-level cache."""


def stages(line: str) -> Stages:
    found = stages_of(parse_problem(line).canonical())
    assert found is not None
    return found


def chosen(line: str, threads: int, **costs: float) -> list[Joint]:
    machine = replace(LEVEL, costs=replace(LEVEL.costs, **costs))
    return joints(stages(line), StageConfigs(machine), threads)


def test_threads_fuse_stages_whose_meeting_costs_more() -> None:
    assert [joint.fused for joint in chosen(SMALL, 1)] == [False, False]
    assert [joint.fused for joint in chosen(SMALL, 2)] == [True, True]
    assert [joint.fused for joint in chosen(SMALL, 2, meeting=0, between_cores=1e9)] == [False, False]
    assert str(chain_config(parse_problem(SMALL).canonical(), LEVEL, 2)).count("--compute_at=") == 2


def test_the_reason_names_what_threads_save() -> None:
    small = chosen(SMALL, 2)
    assert all(joint.why.startswith("2 threads meet once less and exchange fewer lines: 0.") for joint in small)
    wide = "--stag=axb mb1ic96ih10oc576kh1 -> g576mb1ic576ih10oc576kh3ph1 -> --dtag=axb mb1ic576ih10oc96kh1"
    for joint in chosen(wide, 2):
        assert not joint.fused
        assert "it fits L2 of 1024 KiB; 2 threads would take 1." in joint.why


def test_stages_without_rows_stay_apart_on_threads() -> None:
    (product,) = chosen("--matmul 64x32:32x99 -> --matmul 64x99:99x5", 2, meeting=1e9)
    assert not product.fused
    (long,) = chosen("mb1ic8ih4iw9000oc64oh4ow9000kh1kw1 -> mb1ic64ih4iw9000oc8oh4ow9000kh3kw3ph1pw1", 2, meeting=1e9)
    assert not long.fused
    assert long.why.startswith("rows of")


@pytest.mark.parametrize(
    ("line", "tile"),
    [
        ("--stag=axb --dtag=axb mb1ic32ih28oc192kh1", ("mb_oh_ow", 392)),  # channels are outermost on one thread
        ("--stag=axb --dtag=axb g192mb1ic192ih28oc192kh3ph1", ("oh", 14)),
        ("--stag=axb --dtag=axb g32mb1ic32ih112oc32kh3ph1", ("oh", 56)),  # the weights of all channels are held
    ],
)
def test_each_thread_computes_pixels_of_its_own(line: str, tile: tuple[str, int]) -> None:
    problem = parse_problem(line).canonical()
    config = default_config(problem, LEVEL, 2)
    assert config.tiles_at("cache") == (tile,)
    assert not division(problem, config.changed(cache=()), LEVEL).own_pixels
    assert division(problem, config, LEVEL) == (True, 0.5)


def test_threads_share_channels_where_weights_are_large() -> None:
    problem = parse_problem("--stag=axb --dtag=axb mb1ic512ih7oc512kh3ph1").without_transforms().canonical()
    config = default_config(problem, LEVEL, 2)
    assert not config.tiles_at("cache")
    planes = parse_problem("--stag=abx --dtag=abx g192mb1ic192ih28oc192kh3ph1").canonical()
    assert not default_config(planes, LEVEL, 2).tiles_at("cache")  # channels of a thread are neighbours in memory


def test_the_largest_part_counts_whole_tiles() -> None:
    problem = parse_problem("--stag=axb --dtag=axb g16mb1ic16ih55oc16kh3ph1").canonical()
    config = default_config(problem, LEVEL, 2)
    assert config.staged("resident")
    rows = share(55, config.size("oh"), 2)
    assert config.tiles_at("cache") == (("oh", rows),)
    assert division(problem, config, LEVEL).largest == rows / 55
    assert division(problem, config.changed(cache=()), LEVEL).largest == 1  # one block of channels


def test_spellings_of_a_layout_share_a_choice() -> None:
    asked = list[str]()

    def counted(problem: Problem, machine: Machine, threads: int) -> Config:
        asked.append(str(problem))
        return default_config(problem, machine, threads)

    configs = StageConfigs(LEVEL, counted)
    found = [
        configs.whole(parse_problem(f"--stag={tag} --dtag={tag} mb1ic16ih14oc32kh1"), 1) for tag in ("axb", "acdb")
    ]
    assert found[0] == found[1] and len(asked) == 1
    configs.whole(parse_problem("--stag=abx --dtag=axb mb1ic16ih14oc32kh1"), 1)
    assert len(asked) == 2
