"""The choice of a chain on one thread: stages are fused unless computing row by row costs more than moving a result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convsmith.machine.micro_architectures import named
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import Conv, parse_problem
from convsmith.problem.fusion import stages_of
from convsmith.tune.chains import Joint, chain_config, joints
from convsmith.tune.stage_configs import StageConfigs

FIRST, LAST = "--stag=abx --dtag=abx", "--stag=axb --dtag=axb"
LEVEL = next(level for level in LEVELS if level.name == "avx512")


def chosen(line: str, **costs: float) -> Joint:
    stages = stages_of(parse_problem(line).canonical())
    assert stages is not None
    machine = replace(LEVEL, costs=replace(LEVEL.costs, **costs))
    (joint,) = joints(stages, StageConfigs(machine))
    return joint


@pytest.mark.parametrize(
    ("line", "fused"),
    [
        (f"{LAST} mb2ic24ih129oc144kh1 -> {LAST} g144mb2ic144ih129oc144kh3ph1", True),
        (f"{FIRST} g256mb1ic256ih43oc256oh39kh5ph0 -> {FIRST} g256mb1ic256ih39oc256kh3ph1", False),  # one row each
        (f"{LAST} mb1ic512ih585iw1oc512kh1kw1 -> {LAST} mb1ic512ih585iw1oc512kh1kw1", False),  # rows of one pixel
    ],
)
def test_stages_are_fused_unless_rows_cost_more_than_moving_the_result(line: str, fused: bool) -> None:
    joint = chosen(line)
    assert joint.held and joint.fused is fused
    assert joint.why.startswith("it is larger" if fused else "computing it row by row would take ")
    assert ("--compute_at=" in str(chain_config(parse_problem(line).canonical(), LEVEL, 1))) is fused


def test_a_result_that_no_cache_keeps_is_dearer_to_move() -> None:
    line = f"{FIRST} mb1ic64ih56oc256kh1 -> {FIRST} g256mb1ic256ih56oc256kh3ph1"
    assert not chosen(line).fused
    assert chosen(line, images_far=1 << 20, streamed=40).fused


def test_rows_of_planes_in_memory_wait_for_pages() -> None:
    line = f"{LAST} mb2ic192id32ih28iw28oc16kd1kh1kw1 -> {LAST} mb2ic16id32ih28iw28oc16kd1kh1kw1"
    assert chosen(line, beyond=4).fused
    assert not chosen(line, beyond=4, memory_page=800).fused
    flat = line.replace("id32ih28iw28", "ih896iw28").replace("kd1kh1kw1", "kh1kw1")
    assert chosen(flat, memory_page=800).fused  # the rows of a plane follow each other


def test_rows_of_channels_in_memory_wait_for_the_lines_of_the_whole_source() -> None:
    """A part of a source that the second-level cache holds would have none."""
    line = f"{FIRST} mb2ic192id32ih28iw28oc16kd1kh1kw1 -> {FIRST} g16mb2ic16id32ih28iw28oc16kd3kh3kw3pd1ph1pw1"
    stages, machine = stages_of(parse_problem(line).canonical()), named("intel-server").of(LEVEL)
    assert stages is not None
    configs = StageConfigs(machine)
    (joint,) = joints(stages, configs)
    assert not joint.fused
    one, _ = stages.problems
    assert isinstance(one, Conv)
    events = {event for x in configs.features_by_rows(one, False, 1) for _, found in x.causes for event, _ in found}
    part = {event for x in configs.features_by_rows(one, True, 1) for _, found in x.causes for event, _ in found}
    assert "arriving_line" in events and "arriving_line" not in part


def test_a_fused_stage_fetches_the_pixels_that_it_reads_from_memory() -> None:
    line = f"{LAST} mb1ic256ih208iw336oc32kh1kw1 -> {LAST} mb1ic32ih208iw336oc32kh1kw1"
    machine = replace(LEVEL, costs=replace(LEVEL.costs, fetched_pixels=2 << 20))
    first, second = StageConfigs(machine), StageConfigs(LEVEL)
    stages = stages_of(parse_problem(line).canonical())
    assert stages is not None
    one, two = stages.problems
    assert first.by_rows(one, False).staged("fetch") == ("src",)
    assert not first.by_rows(two, True).staged("fetch") and not second.by_rows(one, False).staged("fetch")


def test_a_stage_that_reads_rows_of_another_one_fetches_none() -> None:
    window = parse_problem(f"{LAST} g144mb1ic144ih129oc144kh3ph1").canonical()
    machine = replace(LEVEL, costs=replace(LEVEL.costs, fetched_pixels=2 << 20))
    assert not StageConfigs(machine).by_rows(window, True, 3).staged("fetch")
