"""Gradients of weights whose products are instructions that add up several terms: both factors are packed in each call,
and the terms are pixels.
"""

from __future__ import annotations

import numpy as np
import pytest

import convsmith as cs
from convsmith.diag.errors import ConfigError, UnsupportedError
from convsmith.ir.intern import interning
from convsmith.machine.registry import known_targets
from convsmith.machine.registry import target as known_target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.candidates import candidates, default_config

LAST, FIRST, BLOCKS = (f"--dir=BWD_W --dt=bf16 --stag={t} --dtag={t}" for t in ("axb", "abx", "aBx16b"))
TARGETS = ("avx512_bf16", "aarch64+bf16")


def by_dots(line: str, target: str, threads: int) -> list[Config]:
    """Return the best candidate with an instruction for each way to join pixels, and for each loop along the lanes."""
    with interning():
        every = candidates(parse_problem(line).canonical(), known_target(target), threads)
    found = {(c.config.fuse, c.config.lane): c.config for c in reversed(every) if c.config.instruction}
    return list(found.values())


@pytest.mark.sampled(22, "threads")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "line",
    [
        f"{LAST} mb2ic24ih7oc20oh7kh1ph0",
        f"{LAST} --wtag=axb mb2ic20ih9oc24oh9kh3ph1",
        f"{LAST} mb3ic16ih9oc24oh5kh3sh2ph1",
        f"{LAST} mb2ic16ih12oc16oh12kh5dh1ph4",
        f"{FIRST} mb2ic16ih8oc24oh8kh3ph1",
        f"{FIRST} --wtag=axb g2mb2ic32iw30oc32ow30kw7pw3",
        f"{FIRST} mb1ic16id4oc16od4kd3pd1",
        f"{BLOCKS} mb2ic20ih8oc20oh8kh3ph1",
        "--dir=BWD_WB --dt=bf16 --stag=axb --dtag=axb mb2ic16ih7oc24oh7kh3ph1",
        "--dir=BWD_W --dt=bf16:f32:bf16 --stag=axb --dtag=axb mb2ic16ih7oc24oh7kh3ph1",
        "--deconv --dir=BWD_W --dt=bf16 --stag=axb --dtag=axb mb2ic16ih4oc16oh8kh4sh2ph1",
    ],
)  # fmt: skip
def test_gradients_are_exact(line: str, threads: int, target: str) -> None:
    configs = by_dots(line, target, threads)
    assert configs
    for config in configs:
        try:
            verdict = cs.compile(line, target=target, config=str(config)).verify()
        except UnsupportedError as error:
            pytest.skip(str(error))
        assert verdict.ok, f"{config}: {verdict.detail}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{LAST} --wtag=axb mb4ic256ih16oc64kh1", "--lane=ic --fuse=mb+oh,mb_oh+ow"),
        (f"{LAST} mb1ic384ih28oc192oh28kh1ph0", "--instruction=vdpbf16ps_512 --k_step=mb_oh_ow:2"),
        (f"{FIRST} mb1ic128ih52oc128oh52kh3ph1", "--realise=pad_copy --pack= --pack_at=src+oh,diff_dst+oh"),
        (f"{LAST} mb1ic64ih56oc128oh28kh3sh2ph1", "--pack=src,diff_dst"),
        (f"{FIRST} mb16ic512ih7oc512oh7kh1ph0", "--k_step=oh_ow:2"),  # images lie apart
        (f"{LAST} mb1ic64ih64oc16oh64kh1ph0", "--k_step=mb_oh_ow:2 --pack=diff_dst"),
        (f"{LAST} mb32ic64ih64oc16oh64kh1ph0", "--pack= --pack_at=diff_dst+mb_oh_ow --stream=diff_dst --fetch=src"),
        (f"{LAST} mb32ic16ih64oc64oh64kh1ph0", "--pack= --pack_at=src+mb_oh_ow --stream=src --fetch=diff_dst"),
        (f"{LAST} mb32ic64ih64oc60oh64kh1ph0", "--pack_at=src+mb_oh_ow,diff_dst+mb_oh_ow"),
    ],
)
def test_they_are_chosen(line: str, words: str) -> None:
    """On Zen 4, which adds up two products as fast as it multiplies and adds one."""
    (machine,) = (t for t in known_targets("znver4") if t.name == "avx512_bf16")
    with interning():
        assert words in str(default_config(parse_problem(line), machine))


@pytest.mark.parametrize("line", [f"{LAST} g64mb1ic64ih28oc64oh28kh3ph1", f"{LAST} g32mb1ic256ih28oc256oh28kh3ph1"])
def test_groups_of_few_channels_are_multiplied_one_by_one(line: str) -> None:
    """Their pairs would be packed element by element."""
    assert not default_config(parse_problem(line), known_target("avx512_bf16")).instruction


def test_factors_that_are_not_packed_are_refused() -> None:
    config = "--target=avx512_bf16 --lane=oc --register=ic:4,oc:16 --instruction=vdpbf16ps_512 --k_step=ow:2"
    line = f"{LAST} mb1ic16ih8oc16kh1"
    with pytest.raises(ConfigError, match="diff_dst changes in each call; legal is to pack both factors: --pack=src,d"):
        cs.compile(line, config=f"{config} --pack=diff_dst --order=oc,ic,kh,kw --reduce=mb,oh,ow")


@pytest.mark.parametrize(
    ("line", "lane", "rows", "packed"),
    [
        (f"{LAST} mb1ic24ih12oc10oh12kh1ph0", "ic", "oc", "diff_dst"),
        (f"{LAST} mb1ic40ih12oc10oh6kh1sh2ph0", "ic", "oc", "diff_dst"),
        (f"{LAST} mb2ic10ih14oc24oh14kh3ph1", "oc", "ic", "src"),
        (f"{LAST} g2mb2ic32ih14oc48oh14kh1ph0", "ic", "oc", "diff_dst"),
    ],
    ids=["short-vector", "strides", "borders", "groups"],
)
def test_rows_are_interleaved_where_one_factor_is_packed(line: str, lane: str, rows: str, packed: str) -> None:
    """The last vector of channels may be short, and the packed factor may have borders."""
    config = f"--target=avx512_bf16 --lane={lane} --register={rows}:5,{lane}:16 --instruction=vdpbf16ps_512"
    realise = "--realise=pad_copy" if "ph1" in line else ""
    words = f"{config} --reduce=mb,oh,ow --k_step=ow:2 --pack={packed} {realise}"
    try:
        verdict = cs.compile(line, config=words).verify()
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert verdict.ok, verdict.detail


@pytest.mark.parametrize(
    ("line", "lane", "rows", "packed"),
    [
        (f"{FIRST} mb1ic24ih12oc10oh12kh1ph0", "ic", "oc", "src"),
        (f"{FIRST} mb2ic10ih14oc24oh14kh3ph1", "ic", "oc", "src"),
        (f"{FIRST} g2mb2ic32ih14oc48oh14kh1ph0", "oc", "ic", "diff_dst"),
    ],
    ids=["short-vector", "borders", "groups"],
)
def test_adjacent_terms_of_all_lanes_are_read_where_they_lie(line: str, lane: str, rows: str, packed: str) -> None:
    config = f"--target=avx512_bf16 --lane={lane} --register={rows}:5,{lane}:16 --instruction=vdpbf16ps_512"
    realise = "--realise=pad_copy" if "ph1" in line else ""
    words = f"{config} --reduce=mb,oh,ow --k_step=ow:2 --pack={packed} {realise}"
    try:
        verdict = cs.compile(line, config=words).verify()
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert verdict.ok, verdict.detail


@pytest.mark.parametrize(
    ("sizes", "packed"),
    [
        ("mb1ic64ih32iw64oc256oh32ow64kh1kw1ph0pw0", {"src"}),  # 0.79 of the time of packing both factors
        ("mb1ic64ih80iw136oc16oh80ow136kh1kw1ph0pw0", {"diff_dst"}),  # 0.52
        ("mb1ic256ih14oc256oh14kh3ph1", {"src", "diff_dst"}),  # several taps
    ],
)
def test_one_factor_of_pointwise_weights_is_packed(sizes: str, packed: set[str]) -> None:
    (machine,) = (t for t in known_targets("znver4") if t.name == "avx512_bf16")
    with interning():
        assert default_config(parse_problem(f"{FIRST} {sizes}"), machine).packed == packed


@pytest.mark.parametrize(("pixels", "many"), [(64, False), (60, True)])
def test_rows_that_share_sets_of_a_cache_are_as_many_as_it_keeps(pixels: int, many: bool) -> None:
    """A tile of 14 rows reads lines that are 8 KiB apart, of which the first-level cache keeps as many as it has ways.
    """
    (machine,) = (t for t in known_targets("znver4") if t.name == "avx512_bf16")
    problem = parse_problem(f"{FIRST} mb1ic256ih{pixels}oc256oh{pixels}kh1ph0")
    with interning():
        configs = [c.config for c in candidates(problem, machine, 1, 200)]
    rows = {c.size("oc") for c in configs if c.instruction and c.lane == "ic" and c.packed == {"src"}}
    assert rows and (max(rows) > machine.l1.ways) == many


def test_an_odd_row_of_terms_is_packed() -> None:
    """The last pair of a row has one pixel, beside which a packed factor has a zero."""
    config = "--target=avx512_bf16 --lane=oc --register=ic:4,oc:16 --instruction=vdpbf16ps_512 --k_step=ow:2 --pack=src"
    with pytest.raises(ConfigError, match="diff_dst changes in each call"):
        cs.compile(f"{LAST} mb1ic16ih9oc16kh1", config=f"{config} --order=oc,ic,kh,kw --reduce=mb,oh,ow")


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_zeros_of_the_borders_never_meet_what_is_not_finite(bad: float) -> None:
    """A kernel without packed terms computes such gradients; others differ from it in no element."""
    line = f"{FIRST} mb1ic16ih8oc16oh8kh3ph1"
    p = parse_problem(line)
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.integers(-2, 3, shape).astype("bfloat16")
        for name, shape in (("src", p.src_shape), ("diff_dst", p.dst_shape))
    }
    arrays["diff_dst"][0, 5, 0, 0] = bad
    (config, *_) = by_dots(line, "avx512_bf16", 1)
    try:
        found = cs.compile(line, target="avx512_bf16", config=str(config)).run(**arrays)["diff_wei"]
    except UnsupportedError as error:
        pytest.skip(str(error))
    wanted = cs.compile(line, target="generic").run(**arrays)["diff_wei"]
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))
