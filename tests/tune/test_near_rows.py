"""Tiles along rows of pixels read blocks of channels whose rows the second-level cache keeps for the next tiles."""

from __future__ import annotations

import pytest

import convsmith as cs
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.micro_architectures import named
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.tune.candidates import default_config

TILE = "--lane=ow --register=oc:4,oh:3,ow:8,kh:3 --order=mb,oh,ow,oc --reduce=kw,ic,kh"


def zen3() -> Machine:
    return named("znver3").of(target("avx2"))


@pytest.mark.parametrize(
    ("line", "channels"),
    [
        # 5 rows of 66 pixels of 320 channels are 413 KiB: more than a second-level cache that counts as 256 KiB.
        ("mb1ic320ih66oc4oh66kh3ph1", 320),
        ("--deconv mb1ic320ih66oc4oh66kh3ph1", 320),
        ("--dir=BWD_D mb1ic4ih66oc320oh66kh3ph1", 320),
        # The cache keeps the rows of all channels.
        ("mb1ic64ih66oc4oh66kh3ph1", 0),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_of_channels_have_rows_that_a_cache_keeps(line: str, channels: int, threads: int) -> None:
    with interning():
        problem = parse_problem(f"--stag=abx --dtag=abx {line}").canonical()
        config = default_config(problem, zen3(), threads)
    assert config.lane in ("ow", "iw")
    reduced = [size for name, size in config.tiles_at("cache") if name in ("ic", "oc")]
    if not channels:
        assert not reduced
        return
    (depth,) = reduced
    row = (max(config.size("oh"), config.size("ih")) + 2) * 66 * 4
    assert depth * row <= zen3().l2.kept < zen3().l2.bytes < channels * row


@pytest.mark.parametrize(
    ("pixels", "channels", "depth"),
    [
        # Channels are 14,400 bytes apart, and the cache keeps the rows of 320 of them.
        (60, 320, 0),
        # Channels are 16 KiB apart, a part of a way, so that they share an eighth of the sets.
        (64, 320, 16),
    ],
)
def test_blocks_of_channels_are_those_whose_sets_a_cache_shares(pixels: int, channels: int, depth: int) -> None:
    """Blocks of 16 of 320 channels take 0.69 of the time of no blocks on an Intel server, and prefetches 1.2 of it."""
    intel = named("intel-server").of(target("avx512"))
    with interning():
        line = f"--stag=abx --dtag=abx mb1ic{channels}ih{pixels}oc4oh{pixels}kh3ph1"
        config = default_config(parse_problem(line).canonical(), intel, 1)
    assert config.lane == "ow" and config.realise == "peel"
    assert config.tiles_at("cache") == ((("ic", depth),) if depth else ())
    assert not (depth and config.staged("stream"))


@pytest.mark.parametrize("line", ["mb1ic19ih13oc4oh13kh3ph1", "--deconv mb1ic19ih13oc4oh13kh3ph1"])
@pytest.mark.parametrize("words", ["--cache=ic:8 --stream=src", "--cache=ic:8 --realise=pad_copy"])
def test_sums_of_blocks_of_channels_are_exact(line: str, words: str) -> None:
    problem = parse_problem(f"--stag=abx --dtag=abx {line}")
    kernel = cs.compile(problem, config=f"--target=avx2 {TILE} {words}")
    assert kernel.verify().ok
