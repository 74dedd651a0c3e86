"""Products whose rows are around the columns, where the machine streams packed weights: which, and their values."""

from __future__ import annotations

from dataclasses import replace

import pytest

import convsmith as cs
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets, known_targets
from convsmith.problem.lines import parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.candidates import default_config
from convsmith.tune.plain_weights import config_of_plain_weights

LEVEL = next(t for t in known_targets() if t.name == "avx2")
STREAMING = replace(LEVEL, costs=replace(LEVEL.costs, streamed_weights=4 << 20, images_far=8 << 20))
LAST = "--stag=axb --dtag=axb"
PRODUCTS = [
    "--matmul 200x1024:1024x1024", "--matmul 2048x479:479x1024", "--matmul --dt=f64 200x512:512x1000",
    "--matmul --bia-dt=f32 --bia-mask=2 --attr-post-ops=relu 512x1024:1024x1024",
    f"{LAST} mb1ic512ih14oc1024oh14kh1",
]  # fmt: skip
OTHERS = [
    "--matmul 32x1024:1024x1024", f"{LAST} mb1ic464ih7oc1024oh7kh1",  # the second-level cache keeps all rows
    "--matmul 200x1024:1024x4096",  # the last cache does not keep the weights
    f"{LAST} mb16ic512ih28oc256oh28kh1",  # the source comes from memory
    f"{LAST} mb1ic256ih14oc256oh14kh3ph1",  # pixels are read for several taps
    "--matmul --dt=bf16 200x1024:1024x1024",  # it is converted
    "--matmul 2100x1024:1024x1024",  # blocks of its rows are copied
]


def _config(line: str, machine: Machine, threads: int = 1) -> Config:
    with interning():
        return default_config(parse_problem(line).canonical(), machine, threads=threads)


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("line", PRODUCTS)
def test_rows_are_around_columns_where_weights_stream(line: str, threads: int) -> None:
    before, config = _config(line, LEVEL, threads), _config(line, STREAMING, threads)
    (lane, row), fetched = before.order, config.staged("fetch")
    assert config.order == (row, lane) and lane == config.lane and "src" not in fetched
    assert config == before.changed(order=config.order, fetch=fetched)


@pytest.mark.parametrize("line", OTHERS)
def test_columns_stay_outermost(line: str) -> None:
    assert _config(line, LEVEL) == _config(line, STREAMING)


def test_weights_of_a_call_are_copied_where_packing_takes_longer_than_the_order_saves() -> None:
    found = []
    for rows in (32, 512):
        problem = parse_problem(f"--matmul {rows}x1024:1024x1024").canonical()
        with interning():
            found.append(config_of_plain_weights(problem, default_config(problem, STREAMING), STREAMING))
    assert found[0] is not None and found[0].order[0] == found[0].lane
    assert found[1] is None


@pytest.mark.parametrize("line", PRODUCTS)
def test_the_values_are_those_of_the_other_order(line: str) -> None:
    if "avx2" not in [t.name for t in host_targets()]:
        pytest.skip("this machine lacks AVX2")
    assert cs.compile(line, config=str(_config(line, STREAMING))).verify().ok
