"""Pixels of kernels for any sizes whose channels lie apart in memory, at distances that are known only at the call."""

from __future__ import annotations

import pytest

from convsmith.machine.micro_architectures import named
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import general
from convsmith.tune.dynamic import dynamic_config

COPY = (("src", "ow"),)


def _config(line: str, level: str = "avx512", threads: int = 1) -> Config:
    problem = general(parse_problem(f"--stag=abx --dtag=abx {line}")).canonical()
    return dynamic_config(problem, named("intel-server").of(target(level)), threads)


@pytest.mark.sampled(2, "line", "level", "threads")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("level", ["avx512", "avx2"])
@pytest.mark.parametrize("line", ["mb1ic480ih32oc112oh32kh1ph0", "mb1ic160id4ih4iw4oc672od4oh4ow4kd1kh1kw1"])
def test_tiles_copy_the_pixels_that_many_channels_read(line: str, level: str, threads: int) -> None:
    """Of 32 x 32 pixels, lines of all channels have one place in the first cache."""
    config = _config(line, level, threads)
    assert (config.lane, config.staged_at("pack_at"), config.staged("stream")) == ("ow", COPY, ())
    assert config.order[-2:] == ("ow", "oc")


@pytest.mark.parametrize("line", ["mb1ic64ih56oc8oh56kh1ph0", "mb1ic64ih56oc64oh56kh3ph1", "mb1ic1ih56oc64oh56kh1ph0"])
def test_pixels_that_are_read_once_or_in_windows_are_not_copied(line: str) -> None:
    assert not _config(line).staged_at("pack_at")


def test_vectors_of_all_channels_do_not_read_many_far_lines_in_place() -> None:
    """Vectors of 48 channels would read each pixel once, but a part of a line of each of 512 channels in a tile."""
    config = _config("mb1ic512ih38oc48oh38kh1ph0")
    assert (config.lane, config.staged_at("pack_at")) == ("ow", COPY)


def test_the_last_part_of_a_vector_takes_the_time_of_a_whole_one() -> None:
    """49 pixels are 48 and the last vector again, in tiles of 64 pixels 32, 16 and the last vector."""
    assert _config("mb8ic128ih28oc512oh28kh1ph0").size("ow") == 48


def test_loads_of_large_weights_prefetch_lines() -> None:
    large, small = (_config(f"mb1ic{n}ih7oc{n}oh7kh3ph1") for n in (512, 64))
    assert (large.staged("stream"), small.staged("stream")) == (("wei",), ())
