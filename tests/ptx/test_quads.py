"""Results of products of warp groups: quads of lanes trade words, and store whole sectors."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from convsmith.compiler.cubin import assemble_ptx
from convsmith.machine.nvidia.quads import QUAD, QUAD_TRANSPOSITIONS
from convsmith.passes.trade_lanes import neighbours
from ptx.hopper_configs import LAST, LEVEL
from ptx.rows import places_of
from ptx.sass import sass, skip_without_disassembler
from ptx.test_convolutions import check, made


def words(columns: int, dtype: str) -> str:
    """Return the config of a group of 64 pixels and `columns`."""
    terms = 32 if "8" in dtype else 16
    return (
        f"--lane=oc --fuse=mb+oh,mb_oh+ow --reduce=kh,kw,ic --register=mb_oh_ow:64,oc:{columns} --realise=hardware "
        f"--group=mb_oh_ow:64,oc:{columns},ic:64 --shared=src,wei --instruction=wgmma_m64n{columns}k{terms}_{dtype}"
    )


@pytest.mark.parametrize("row", QUAD_TRANSPOSITIONS, ids=lambda row: row.name)
def test_a_lane_has_runs_of_columns_afterwards(row: object) -> None:
    result, given = row.operands  # type: ignore[attr-defined]
    assert (neighbours(given.layout), neighbours(result.layout)) == (2, result.shape[1] // QUAD)
    for x in (result, given):
        assert sorted(places_of(x).ravel().tolist()) == list(range(x.size))


KINDS = {
    "32 columns": (f"{LAST} --dt=bf16 mb1ic64ih8oc32oh8kh1", words(32, "bf16")),
    "64 columns of f16": (f"{LAST} --dt=f16 mb1ic64ih8oc64oh8kh1", words(64, "f16")),
    "256 columns": (f"{LAST} --dt=bf16 mb1ic64ih8oc256oh8kh1", words(256, "bf16")),
    "fewer channels than columns": (f"{LAST} --dt=bf16 mb1ic64ih8oc56oh8kh1", words(64, "bf16")),
    "fewer pixels than rows, bias, residual": (
        f"--dir=FWD_B --attr-post-ops=sum+relu {LAST} --dt=bf16 mb1ic64ih6oc40oh6kh1", words(32, "bf16"),
    ),
    "bytes": (f"{LAST} --dt=u8:s8:u8 --attr-post-ops=relu mb1ic64ih8oc48oh8kh1", words(64, "u8_s8")),
    "bytes and 32 columns": (f"{LAST} --dt=s8:s8:s8 mb1ic64ih8oc32oh8kh1", words(32, "s8")),
    "96 columns": (f"{LAST} --dt=bf16 mb1ic64ih8oc96oh8kh1", words(96, "bf16")),
    "bytes and 160 columns": (f"{LAST} --dt=u8:s8:u8 mb1ic64ih8oc160oh8kh1", words(160, "u8_s8")),
    "bytes, scales": (
        f"{LAST} --dt=s8:s8:s8 --attr-scales=wei:per_oc mb1ic64ih7oc128oh7kh1", words(128, "s8"),
    ),
}  # fmt: skip
"""Problems whose results are traded, with configs."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
def test_traded_results_are_exact_and_stored_as_vectors(kind: str) -> None:
    line, config = KINDS[kind]
    check(line, config, LEVEL)
    stores = re.findall(r"st\.global\.(\S+)", made(line, config, LEVEL).notes["ptx"])
    narrow = "bytes and" in kind  # a quad stores one sector
    assert stores and set(stores) == {"v2.b32" if narrow else "v4.b32"}


@pytest.mark.parametrize("line", [
    f"{LAST} --dt=bf16 mb1ic64ih8oc20oh8kh1",  # rows of 40 bytes
    f"{LAST} --dt=bf16:bf16:f32 mb1ic64ih8oc32oh8kh1",  # a quad stores a sector as it is
])  # fmt: skip
def test_other_results_are_stored_where_they_are(line: str) -> None:
    check(line, words(32, "bf16"), LEVEL)
    assert "shfl" not in made(line, words(32, "bf16"), LEVEL).notes["ptx"]


def test_a_word_takes_one_shuffle() -> None:
    """A tile of 64 x 64 results in a warp group: 16 words of a lane, and the stores of 16 bytes that hold them."""
    skip_without_disassembler(LEVEL)
    line = f"{LAST} --dt=bf16 mb1ic64ih8oc64oh8kh1"
    (found,) = sass(assemble_ptx(made(line, words(64, "bf16"), LEVEL).notes["ptx"], LEVEL).cubin).values()
    opcodes = Counter(x.partition(".")[0] for x in found)
    assert (opcodes["SHFL"], opcodes["STG"]) == (16, 4) and opcodes["SEL"] <= 48 + 2
    assert all("128" in x for x in found if x.startswith("STG"))
