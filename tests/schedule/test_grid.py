"""The grid of a kernel: dims of a launch, and blocks of tiles that groups compute one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from ptx.hopper_configs import LAST, compiled, forward
from ptx.test_hopper_convolutions import check

from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import one_table
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.grid import launched_sizes
from convsmith.schedule.planned import plan_for
from convsmith.tune.devices.device import device_config
from convsmith.tune.devices.l2_blocks import lines_at_once

MOST = ((1 << 31) - 1, 65535, 65535)


@pytest.mark.parametrize(("loops", "sizes"), [
    ((), ()), ((7,), (7,)), ((2, 3, 4), (2, 3, 4)), ((2, 3, 4, 5), (2, 3, 20)), ((2, 65536, 4), (2, 65536 * 4)),
    ((2, 65535, 100000), (2, 65535, 100000)), ((65536, 2, 4), (65536 * 8,)), ((65536, 4), (65536 * 4,)),
])  # fmt: skip
def test_long_loops_are_the_innermost_dim_of_a_launch(loops: Sequence[int], sizes: Sequence[int]) -> None:
    assert launched_sizes(loops, MOST) == sizes


@pytest.mark.sampled(2)
@pytest.mark.parametrize("residing", [1, 100])
def test_a_grid_beyond_a_dim_is_exact(residing: int) -> None:
    """A grid of 5 x 3 tiles on a device with at most 4 groups along the outer dims, persistent or not."""
    machine = target("sm_90a")
    assert machine.device is not None
    units = replace(machine.device.units, count=residing, shared=1)
    small = replace(machine, device=replace(machine.device, grid=(1 << 10, 4, 4), units=units))
    line = f"{LAST} --dt=bf16 mb5ic64ih8oc40oh8kh1"
    artifact = compiled(line, forward(), small)
    assert artifact.entries["main"].launch.grid == (min(residing, 15), 1, 1)
    check(artifact, line, 0)


def test_more_tiles_than_a_dim_has_groups_are_no_flaw() -> None:
    line = f"{LAST} --dt=bf16 mb32ic64ih1120oc64oh1120kh1"
    with one_table():
        config = device_config(parse_problem(line), target("sm_90a"))
    assert config.realise == "hardware"


BLOCKS = {
    "rows": "--l2=mb_oh_ow:128 --order=oc,mb_oh_ow", "columns": "--l2=oc:32", "both": "--l2=mb_oh_ow:192,oc:32",
    "rows beyond the end": "--l2=mb_oh_ow:256",
}  # fmt: skip


@pytest.mark.sampled(4, "count")
@pytest.mark.parametrize("count", [2, 1000])
@pytest.mark.parametrize("words", BLOCKS.values(), ids=BLOCKS)
def test_blocks_of_tiles_are_exact(words: str, count: int) -> None:
    machine = target("sm_90a")
    assert machine.device is not None
    units = replace(machine.device.units, count=count, shared=1)
    line = f"{LAST} --dt=bf16 mb5ic64ih8oc40oh8kh1"
    artifact = compiled(line, f"{forward()} {words}", replace(machine, device=replace(machine.device, units=units)))
    check(artifact, line, 1)


def test_groups_take_the_tiles_of_a_block_first() -> None:
    """Tiles of 128 rows in blocks of two; the columns of a block are outside of its rows."""
    with one_table():
        config = Config.parse(
            f"--target=sm_90a --pack= --realise=hardware {forward()} --l2=mb_oh_ow:128 --order=oc,mb_oh_ow"
        )
        nest = plan_for(parse_problem(f"{LAST} --dt=bf16 mb5ic64ih8oc40oh8kh1"), config, target("sm_90a")).main.nest
    assert [(x.of, x.extent, x.tile) for x in nest.grid] == [("mb_oh_ow", 3, 128), ("oc", 3, 16), ("mb_oh_ow", 2, 64)]


def test_threads_have_blocks_too() -> None:
    words = "--target=sm_80 --lane=ow --register=oc:4 --realise=mask --pack= --group=oc:8,ow:32,ic:8 --shared=src,wei"
    with one_table():
        plan = plan_for(parse_problem("--stag=abx mb1ic8iw256oc32ow256kw3pw1"), Config.parse(f"{words} --l2=ow:64"),
                        target("sm_80"))  # fmt: skip
    first = plan.main.nest.grid[0]
    assert (first.of, first.extent, first.tile) == ("ow", 4, 64)


@pytest.mark.parametrize(("words", "text"), [
    ("--l2=mb_oh_ow:96", "a block of tiles is a multiple of the tile of a group, --group=mb_oh_ow:64"),
    ("--l2=ic:64", "--l2=ic: loops over groups are oc, mb_oh_ow"), ("--l2=oh:2", "--l2=oh: loops over groups"),
])  # fmt: skip
def test_other_blocks_are_refused(words: str, text: str) -> None:
    with one_table(), pytest.raises(ConfigError) as raised:
        config = Config.parse(f"--target=sm_90a --pack= --realise=hardware {forward()} {words}")
        plan_for(parse_problem(f"{LAST} --dt=bf16 mb5ic64ih8oc40oh8kh1"), config, target("sm_90a"))
    assert text in str(raised.value)


# -- the first choice
@pytest.mark.parametrize(("line", "blocks"), [
    ("--matmul --dt=bf16 8192x8192:8192x8192", {"m": 2048}),
    ("--matmul --dt=bf16 2048x2048:2048x2048", {}),  # an operand stays in the cache
    (f"{LAST} --dt=bf16 mb256ic256ih56oc256oh56kh3ph1", {}),
])  # fmt: skip
def test_products_beyond_the_last_cache_have_blocks(line: str, blocks: dict[str, int]) -> None:
    with one_table():
        config = device_config(parse_problem(line), target("sm_90a"))
    assert dict(config.tiles_at("l2")) == blocks


def test_blocks_read_fewer_lines_at_once() -> None:
    """132 groups in a result of 64 x 32 tiles: 5 rows of 32 tiles, or 16 rows of 9."""
    assert lines_at_once(132, 32, (128, 256)) == 5 * 128 + 32 * 256
    assert lines_at_once(132, 32, (128, 256), 16) == 16 * 128 + 9 * 256
