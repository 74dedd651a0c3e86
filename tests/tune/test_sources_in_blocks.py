"""Default kernels read the terms that an instruction adds up from blocks of channels, if they are adjacent there."""

from __future__ import annotations

import pytest

import convsmith as cs
from convsmith.diag.errors import UnsupportedError
from convsmith.ir.intern import interning
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.candidates import default_config

LEVEL = {t.name: t for t in LEVELS}
BYTES, BF16 = "--dt=u8:s8:s32", "--accuracy=strict --dt=bf16"


def chosen(line: str, level: str) -> Config:
    with interning():
        return default_config(parse_problem(line).canonical(), LEVEL[level])


@pytest.mark.parametrize("block", [4, 8, 16])
@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        (BYTES, "mb1ic64ih14oc64oh14kh3ph1"),
        (BYTES, "mb1ic37ih14oc64oh14kh1ph0"),  # the last group of four is not full
        (BYTES, "g4mb1ic32ih14oc64oh14kh3ph1"),  # groups begin within blocks
        (BF16, "mb1ic64ih14oc64oh14kh3ph1"),
        (f"{BF16} --dir=BWD_D", "mb1ic64ih14oc64oh7kh3sh2ph1"),
        (f"{BF16} --deconv", "mb1ic64ih7oc64oh14kh2sh2ph0"),
    ],
)
def test_blocks_are_read_as_they_lie(options: str, sizes: str, block: int) -> None:
    config = chosen(f"{options} --stag=aBx{block}b --dtag=aBx{block}b {sizes}", "avx512_bf16")
    assert config.instruction
    assert config.realise == "peel" and not {"src", "diff_dst"} & {*config.staged("pack")}


@pytest.mark.parametrize(
    ("options", "layout", "sizes"),
    [
        (BYTES, "aBx2b", "mb1ic64ih14oc64oh14kh3ph1"),  # a block is shorter than the terms
        (BYTES, "aBx16b", "g2mb1ic36ih14oc64oh14kh3ph1"),  # the second group begins in the middle of four
        (BYTES, "abx", "mb1ic64ih14oc64oh14kh3ph1"),
        (BF16, "aBx16b", "g3mb1ic27ih14oc48oh14kh3ph1"),
    ],
)
def test_terms_that_lie_apart_are_copied(options: str, layout: str, sizes: str) -> None:
    config = chosen(f"{options} --stag={layout} --dtag={layout} {sizes}", "avx512_bf16")
    assert not config.instruction or config.realise == "pad_copy"


@pytest.mark.sampled(7, "line")
@pytest.mark.parametrize("level", ["avx512_bf16", "avx512_vnni", "avx512", "avx2_vnni", "avx2"])
@pytest.mark.parametrize(
    "line",
    [
        f"{BYTES} --stag=aBx16b --dtag=aBx16b mb2ic18ih7oc20oh7kh3ph1",
        f"{BYTES} --stag=aBx8b --dtag=axb g2mb2ic24ih7oc20oh7kh3ph1",
        f"{BYTES} --attr-zero-points=src:common:3 --stag=aBx16b --dtag=aBx16b mb2ic3ih9oc20oh5kh3sh2ph1",
        f"{BF16} --stag=aBx16b --dtag=aBx16b mb2ic17ih7oc20oh7kh3ph1",
        f"{BF16} --dir=BWD_D --stag=aBx16b --dtag=aBx16b mb2ic20ih9oc18oh5kh3sh2ph1",
    ],
)
def test_the_last_terms_of_a_block_are_absent(line: str, level: str) -> None:
    try:
        verdict = cs.compile(line, target=level, threads=1).verify()
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert verdict.ok, verdict.detail


@pytest.mark.parametrize(
    ("line", "lane"),
    [
        ("--stag=aBx16b --dtag=aBx16b mb1ic64ih28oc2oh28kh5ph2", "ic"),
        ("--dir=BWD_D --stag=aBx16b --dtag=aBx16b mb1ic1ih41oc32oh19kh5sh2ph0", "oc"),
        ("--stag=aBx4b --dtag=aBx4b mb1ic64ih28oc2oh28kh5ph2", "oc"),  # a block is shorter than a vector
    ],
)
def test_few_results_have_vectors_along_terms(line: str, lane: str) -> None:
    config = chosen(f"--accuracy=strict {line}", "avx2")
    assert config.lane == lane and not {"src", "diff_dst"} & {*config.staged("pack")}


@pytest.mark.parametrize(("channels", "parts"), [(32313, 1), (32256, 2)])
def test_parts_of_sums_end_with_blocks(channels: int, parts: int) -> None:
    """Vectors along the terms of a part that begins within a block would cross blocks."""
    config = chosen(f"--stag=aBx16b --dtag=aBx16b mb2ic{channels}iw4oc3ow4kw1pw0", "avx2")
    assert config.lane == "ic"
    split = dict(config.tiles_at("split")).get("ic", 1)
    assert split >= parts and not (split > 1 and channels % (16 * split))


@pytest.mark.parametrize("level", ["avx512", "avx2"])
@pytest.mark.parametrize("options", ["", "--dir=BWD_D ", "--deconv "])
def test_groups_in_blocks_stay_while_pixels_pass(options: str, level: str) -> None:
    """The next block lies an image apart, also where a vector is a part of a block."""
    config = chosen(f"{options}--stag=aBx16b --dtag=aBx16b g96mb1ic96ih56oc96oh56kh3ph1", level)
    assert config.lane == "g"
    assert config.order.index("g") < min(config.order.index(n) for n in config.order if n in ("oh", "ih"))
