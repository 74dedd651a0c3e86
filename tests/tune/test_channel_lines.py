"""Blocks of the channels whose cache lines the first-level cache keeps from one tile to the next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convsmith.machine.base import Machine
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.candidates import default_config

(AVX2,) = (level for level in LEVELS if level.name == "avx2")
LAYER = "--dt=f64 --stag=abx --dtag=abx mb1ic{ic}ih{ih}oc64oh{ih}kh3ph1"


def _level(channel_line: float) -> Machine:
    return replace(AVX2, costs=replace(AVX2.costs, channel_line=channel_line))


def _chosen(line: str, channel_line: float = 13.0) -> Config:
    return default_config(parse_problem(line), _level(channel_line))


@pytest.mark.parametrize(("ic", "ih", "depth"), [(256, 64, 8), (64, 112, 16)])
def test_blocks_have_as_many_channels_as_the_sets_of_a_cache_keep(ic: int, ih: int, depth: int) -> None:
    apart, way = ih * ih * 8, AVX2.l1.way
    assert depth == min(way // n for n in (way, way // 2) if apart % n == 0) * 8
    assert dict(_chosen(LAYER.format(ic=ic, ih=ih)).tiles_at("cache")) == {"ic": depth}


def test_blocks_have_as_many_channels_as_fill_a_cache_with_their_weights() -> None:
    config = _chosen(LAYER.format(ic=256, ih=62))
    depth, pixels, channels = dict(config.tiles_at("cache"))["ic"], config.size("ow"), config.size("oc")
    of_each = 3 * ((pixels + 2) * 8 + 64) + 9 * channels * 8
    assert AVX2.l1.bytes // 2 < depth * of_each <= AVX2.l1.bytes


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (LAYER.format(ic=64, ih=28), "the source is near"),
        (LAYER.format(ic=512, ih=14), "prefetchers follow channels that are so close"),
        (LAYER.replace("abx", "axb").format(ic=256, ih=64), "the channels of a pixel are adjacent"),
        (LAYER.replace("--dt=f64", "--dir=BWD_W --dt=f64").format(ic=256, ih=64), "sums of weights have no channels"),
        ("--dt=f64 --stag=abx --dtag=abx g32mb1ic1024ih56oc1024oh28kh3sh2ph1", "the source of a group is near"),
    ],
)
def test_other_kernels_are_as_if_no_line_were_waited_for(line: str, why: str) -> None:
    assert _chosen(line) == _chosen(line, channel_line=0), why


def test_no_blocks_where_loads_hide_the_lines() -> None:
    assert "ic" not in dict(_chosen(LAYER.format(ic=256, ih=64), channel_line=0).tiles_at("cache"))
