"""The taps of a tile run within its channels where their lines clash in the sets of the first-level cache."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.tune.candidates import default_config

(AVX2,) = (level for level in LEVELS if level.name == "avx2")


def _reduction(line: str) -> tuple[str, ...]:
    return default_config(parse_problem(f"--stag=abx --dtag=abx {line}"), AVX2).reduce


@pytest.mark.parametrize(
    "line",
    ["mb1ic3ih1024oc24oh256kh7sh4ph3", "mb1ic3ih512oc32oh256kh7sh2ph3", "mb1ic8ih1024oc16oh512kh3sh2ph1"],
    ids=["7 rows of 3 channels", "two rows in a way", "3 rows of 8 channels"],
)
def test_rows_that_share_sets_are_read_channel_by_channel(line: str) -> None:
    assert _reduction(line)[0] == "ic"


@pytest.mark.parametrize(
    "line",
    ["mb1ic3ih1000oc24oh250kh7sh4ph3", "mb1ic3ih1024oc16oh512kh3sh2ph1", "mb1ic3ih224oc64oh112kh7sh2ph3"],
    ids=["rows in different sets", "one line too many", "rows of a part of a way"],
)
def test_other_rows_are_read_for_all_channels(line: str) -> None:
    assert _reduction(line)[0] == "kh"


def test_columns_of_taps_are_read_channel_by_channel_where_steps_wait_for_lines() -> None:
    line = parse_problem("--stag=abx --dtag=abx --accuracy=strict mb1ic32ih202iw202oc32oh202ow202kh7kw1ph3pw0")
    waiting = replace(AVX2, costs=replace(AVX2.costs, channel_line=13.0))
    assert [default_config(line, level).reduce[0] for level in (AVX2, waiting)] == ["kh", "ic"]
