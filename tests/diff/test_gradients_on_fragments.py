"""Gradients of weights whose products are instructions on fragments: both factors are packed in each call."""

from __future__ import annotations

import re

import numpy as np
import pytest
from amx import AMX, needs_amx

import convsmith as cs
from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import lower
from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.measure.verification import verify_kernel
from convsmith.problem import parse_problem
from convsmith.problem.conv import Conv
from convsmith.schedule import copy_nest
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import candidates, default_config
from convsmith.tune.costs.expected import expected_terms

LAST, FIRST, BLOCKS = (f"--dir=BWD_W --dt=bf16 --stag={t} --dtag={t}" for t in ("axb", "abx", "aBx16b"))
FRAGMENTS = "--target=avx512_amx --lane=oc --register=ic:32,oc:32 --order=kh,kw,oc,ic --instruction=tdpbf16ps_16"


def on_fragments(line: str, threads: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], Config]:
    """Return the best candidate on fragments for each lane loop and each way to join pixel loops."""
    with interning():
        found = [c.config for c in candidates(parse_problem(line).canonical(), AMX, threads) if c.config.instruction]
    return {(config.lane, config.fuse): config for config in reversed(found)}


@needs_amx
@pytest.mark.sampled(15, "threads", wide=1, every="line")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "line",
    [
        f"{LAST} mb2ic64ih14oc64oh14kh1ph0",
        f"{LAST} --wtag=axb mb2ic40ih14oc72oh14kh3ph1",
        f"{LAST} mb3ic32ih15oc48oh8kh3sh2ph1",
        f"{LAST} mb2ic32ih20oc32oh20kh5dh1ph4",
        f"{FIRST} mb2ic32ih14oc48oh14kh3ph1",
        f"{FIRST} mb1ic24ih28oc32oh28kh5ph2",
        f"{FIRST} mb2ic32ih29oc32oh15kh3sh2ph1",
        f"{FIRST} --wtag=axb g2mb2ic64iw200oc64ow200kw7pw3",
        f"{FIRST} mb1ic32id6oc32od6kd3pd1",
        f"{BLOCKS} mb2ic40ih14oc40oh14kh3ph1",
        f"{LAST} --wtag=axb mb2ic48ih10oc32oh5kh3sh2ph1",
        f"{LAST} --wtag=axb mb2ic3ih21oc40oh11kh5sh2ph2",
        "--dir=BWD_WB --dt=bf16 --stag=axb --dtag=axb mb2ic32ih14oc48oh14kh3ph1",
        "--dir=BWD_W --dt=bf16:f32:bf16 --stag=axb --dtag=axb mb2ic32ih14oc48oh14kh3ph1",
        "--deconv --dir=BWD_W --dt=bf16 --stag=axb --dtag=axb mb2ic32ih7oc32oh14kh4sh2ph1",
    ],
)  # fmt: skip
def test_gradients_are_exact(line: str, threads: int) -> None:
    configs = on_fragments(line, threads)
    assert configs
    for config in configs.values():
        verdict = verify_kernel(cs.compile(line, target="avx512_amx", config=str(config)))
        assert verdict.ok, f"{config}: {verdict.detail}"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{LAST} mb4ic256ih14oc256oh14kh1ph0", "--instruction=tdpbf16ps_16 --k_step=mb_oh_ow:32 --cache=mb_oh_ow:256"),
        (f"{LAST} mb4ic256ih28oc256oh28kh3ph1", "--instruction=tdpbf16ps_16 --k_step=ow:32 --realise=pad_copy"),
        (f"{LAST} mb4ic256ih14oc256oh14kh3ph1", "--k_step=mb_oh_ow:32 --pack=src,diff_dst --unfold=src"),
        (f"{FIRST} mb4ic256ih28oc256oh10kh3sh3ph1", "--k_step=mb_oh_ow:32 --pack=src,diff_dst --unfold=src,diff_dst"),
    ],
)
def test_terms_are_pixels_of_a_row_or_of_joined_rows(line: str, words: str) -> None:
    """Short rows with borders, or with strides between their pixels, are unfolded, so that they fill instructions."""
    assert words in str(default_config(parse_problem(line), AMX))


@pytest.mark.parametrize(
    ("line", "lane"),
    [
        (f"{LAST} --wtag=axb mb1ic256ih14oc256oh14kh3ph1", "ic"),
        (f"{FIRST} mb1ic256ih14oc256oh14kh1ph0", "ic"),
        (f"{BLOCKS} --wtag=ABcd16b16a mb1ic256ih14oc256oh14kh3ph1", "oc"),
    ],
)
def test_lanes_are_adjacent_in_the_result(line: str, lane: str) -> None:
    """Either factor may have the columns of a fragment."""
    assert default_config(parse_problem(line), AMX).lane == lane


def test_rows_are_channels_of_the_result_if_lanes_are_channels_of_the_source() -> None:
    problem = parse_problem(f"{LAST} mb1ic32ih32oc32oh32kh3ph1")
    words = "--lane=ic --k_step=ow:32 --pack=src,diff_dst --realise=pad_copy --instruction=tdpbf16ps_16"
    with interning():
        for tile in ("ic:32", "ic:32,kh:3"):
            with pytest.raises(ConfigError, match=r"its rows are channels along oc: legal is a register tile of that"):
                plan(problem, Config.parse(f"--target=avx512_amx {words} --register={tile}"), AMX)


def test_single_channels_fill_no_fragment() -> None:
    assert not default_config(parse_problem(f"{LAST} g64mb1ic64ih28oc64oh28kh3ph1"), AMX).instruction


@pytest.mark.parametrize("line", [f"{FIRST} mb1ic3ih224oc64oh112kh7sh2ph3", f"{LAST} mb1ic8ih64oc32oh64kh11ph5"])
def test_few_channels_fill_fragments_with_the_taps_of_a_row(line: str) -> None:
    config = default_config(parse_problem(line), AMX)
    assert config.instruction and config.fuse == (("kw", "ic"),)


def test_taps_along_columns_share_packed_rows() -> None:
    """A packed element is there for each tap of a row, but not for each tap of a column."""
    line = f"{LAST} mb1ic32ih32oc32oh32kh3ph1"
    config = f"{FRAGMENTS} --reduce=mb,oh,ow --k_step=ow:32 --pack=src,diff_dst --realise=pad_copy"
    with interning():
        made = plan(parse_problem(line), Config.parse(config), AMX)
        (packed,) = (b for b in made.main.buffers if b.name == "src_p")
        (pack,) = (k for k in lower(made).packs if k.name.endswith("src"))
    assert packed.elements == 3 * (32 + 2) * 32 * 32 == pack.params[-1].size


@pytest.mark.parametrize("height", [8, 16, 32])
def test_taps_share_rows_in_blocks_of_rows(height: int) -> None:
    """Blocks of rows change neither the rows that taps share nor how many rows are packed."""
    line = f"{LAST} mb1ic32ih32oc32oh32kh3ph1"
    words = "--reduce=mb,oh,ow --k_step=ow:32 --pack=src,diff_dst --realise=pad_copy"
    with interning():
        made = plan(parse_problem(line), Config.parse(f"{FRAGMENTS} {words} --cache=oh:{height}"), AMX)
        (packed,) = (b for b in made.main.buffers if b.name == "src_p")
        (pack,) = (k for k in lower(made).packs if k.name.endswith("src"))
    assert packed.elements == 3 * (32 + 2) * 32 * 32 == pack.params[-1].size


def test_blocks_of_unequal_size_share_no_rows() -> None:
    words = "--reduce=mb,oh,ow --k_step=ow:32 --pack=src,diff_dst --realise=pad_copy --cache=oh:12"
    with interning():
        made = plan(parse_problem(f"{LAST} mb1ic32ih32oc32oh32kh3ph1"), Config.parse(f"{FRAGMENTS} {words}"), AMX)
        (packed,) = (b for b in made.main.buffers if b.name == "src_p")
    assert packed.elements == 3 * 3 * 3 * 12 * 32 * 32


IN_BLOCKS = [
    (f"{LAST} mb2ic40ih9oc72oh9kh1ph0", "mb+oh,mb_oh+ow", "mb_oh_ow", 64),
    (f"{LAST} mb3ic32ih12oc48oh12kh1ph0", "mb+oh,mb_oh+ow", "mb_oh_ow", 96),
    (f"{FIRST} mb1ic33ih17oc20oh17kh1ph0", "mb+oh,mb_oh+ow", "mb_oh_ow", 128),
    (f"{FIRST} mb3ic32ih8oc64oh8kh1ph0", "oh+ow", "oh_ow", 32),
    (f"{FIRST} --wtag=axb mb4ic24ih10oc40oh10kh1ph0", "oh+ow", "mb", 1),
    (f"{BLOCKS} mb2ic40ih9oc24oh9kh1ph0", "oh+ow", "oh_ow", 32),
    (f"{LAST} g2mb2ic64ih9oc64oh9kh1ph0", "mb+oh,mb_oh+ow", "mb_oh_ow", 64),
    (f"{LAST} mb1ic64ih10oc48oh10kh1ph0", "mb+oh,mb_oh+ow", "mb_oh_ow", 64),
    (f"{LAST} mb2ic32ih10oc32oh8kh3ph0", "", "oh", 4),
    (f"{LAST} --wtag=axb mb2ic40ih14oc72oh14kh3ph1", "", "oh", 7),
    (f"{FIRST} mb2ic32ih12oc48oh12kh3ph1", "", "oh", 4),
    (f"{FIRST} mb2ic24ih12oc32oh12kh5ph2", "", "mb", 1),
    (f"{LAST} mb3ic32ih16oc48oh8kh3sh2ph1", "", "oh", 4),
    (f"{LAST} mb1ic32ih12oc32oh12kh5dh1ph4", "", "oh", 3),
    ("--deconv --dir=BWD_W --dt=bf16 --stag=axb --dtag=axb mb2ic32ih8oc48oh16kh4sh2ph1", "", "ih", 4),
]
"""Problems with the fused loops, and with the loop whose blocks pack what they read, in iterations."""


def in_blocks(lane: str, fuse: str, loop: str, size: int) -> str:
    """Return a config that packs both factors in each block of ``size`` iterations of ``loop``."""
    rows = ("mb", "ih", "iw") if loop == "ih" else ("mb", "oh", "ow")
    pixels = {"": rows, "oh+ow": ("mb", "oh_ow")}.get(fuse, ("mb_oh_ow",))
    other = "ic" if lane == "oc" else "oc"
    words = f"--lane={lane} --register={other}:32,{lane}:32 --instruction=tdpbf16ps_16 --k_step={pixels[-1]}:32"
    fused = f" --fuse={fuse}" if fuse else ""
    near = f"--cache={loop}:{size} --pack= --pack_at=src+{loop},diff_dst+{loop}"
    return f"--target=avx512_amx {words}{fused} --reduce={','.join(pixels)} {near}"


@pytest.mark.sampled(10)
@needs_amx
@pytest.mark.parametrize("lane", ["oc", "ic"])
@pytest.mark.parametrize(("line", "fuse", "loop", "size"), IN_BLOCKS)
def test_blocks_that_pack_what_they_read_are_exact(
    line: str, fuse: str, loop: str, size: int, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tiles that instructions transpose, with vectors of adjacent pixels, and with single elements."""
    monkeypatch.setattr(copy_nest, "SHORT_COPY", 0)
    config = in_blocks(lane, fuse, loop, size) + ("" if "ph0" in line else " --realise=pad_copy")
    verdict = verify_kernel(cs.compile(line, target="avx512_amx", config=config))
    assert verdict.ok, verdict.detail


@pytest.mark.sampled(4)
@pytest.mark.parametrize("lane", ["oc", "ic"])
@pytest.mark.parametrize("tag", ["axb", "abx"])
def test_blocks_are_packed_by_transpositions_or_as_vectors(tag: str, lane: str) -> None:
    """No element of a block is moved alone, except at its end."""
    adjacent = "xba" if lane == "oc" else "xab"
    line = f"--dir=BWD_W --dt=bf16 --stag={tag} --wtag={adjacent} --dtag={tag} mb1ic64ih32oc64oh32kh1ph0"
    with interning():
        config = Config.parse(in_blocks(lane, "mb+oh,mb_oh+ow", "mb_oh_ow", 256))
        made = plan(parse_problem(line), config, AMX)
        text = llvm_bind.assembly(lower(made).text, AMX.triple, AMX.cpu, AMX.features)
    mnemonics = re.findall(r"^\t([a-z]\w*)", text, re.MULTILINE)
    assert "tdpbf16ps" in mnemonics and not [m for m in mnemonics if re.match("v?p(insr|extr)|movzw|movw", m)], text


def test_long_sums_are_split_into_blocks() -> None:
    """A block fills a part of the second-level cache; short sums, and those that threads share, are not split."""
    long, short = (f"{LAST} mb1ic64ih{n}oc64oh{n}kh1ph0" for n in (64, 14))
    config = default_config(parse_problem(long), AMX)
    assert config.staged_at("pack_at") == (("src", "mb_oh_ow"), ("diff_dst", "mb_oh_ow"))
    ((loop, size),) = config.tiles_at("cache")
    assert loop == "mb_oh_ow" and 2 * 128 * size * 8 <= AMX.l2.bytes
    assert not default_config(parse_problem(short), AMX).staged_at("pack_at")
    with interning():
        assert not candidates(parse_problem(long), AMX, 2, 1)[0].config.staged_at("pack_at")


def test_rows_that_taps_share_are_repeated_less_often_by_larger_blocks() -> None:
    """A row of 147 pixels fills the wanted part of the cache; three of them need five rows of the source, not nine."""
    config = default_config(parse_problem(f"{FIRST} mb1ic16ih147oc32oh147kh3ph1"), AMX)
    assert config.tiles_at("cache") == (("oh", 3),)
    assert config.staged_at("pack_at") == (("src", "oh"), ("diff_dst", "oh"))


@needs_amx
@pytest.mark.parametrize(
    ("tag", "size"), [("abx", 14), ("axb", 9), ("abx", 60)], ids=["channels first", "channels last", "in blocks"]
)
def test_each_group_packs_its_own_channels(tag: str, size: int) -> None:
    """All pixels of a group, or a block of them."""
    line = f"--dir=BWD_W --dt=bf16 --stag={tag} --wtag={tag} --dtag={tag} g3mb1ic96ih{size}oc144oh{size}kh1ph0"
    config = default_config(parse_problem(line), AMX)
    assert config.staged_at("pack_at") == (("src", "g"), ("diff_dst", "g"))
    assert bool(config.tiles_at("cache")) == (size == 60)
    verdict = verify_kernel(cs.compile(line, target="avx512_amx", config=str(config)))
    assert verdict.ok, verdict.detail


def test_zeros_of_a_tile_without_elements_are_vectors() -> None:
    """The last four pixels are two of sixteen pairs of rows of a fragment; the others are zeros."""
    line = "--dir=BWD_W --dt=bf16 --stag=axb --wtag=axb --dtag=axb mb1ic64ih10oc64oh10kh1ph0"
    words = "--lane=ic --register=oc:32,ic:32 --instruction=tdpbf16ps_16 --k_step=mb_oh_ow:32 --reduce=mb_oh_ow"
    config = f"--target=avx512_amx --fuse=mb+oh,mb_oh+ow {words} --pack= --pack_at=src+kw,diff_dst+kw"
    with interning():
        text = lower(plan(parse_problem(line), Config.parse(config), AMX)).text
    assert re.findall(r"store <(\d+) x i16> splat \(i16 0\)", text) == ["32"]


@needs_amx
@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize(
    "words",
    ["--reduce=mb,oh,ow --k_step=ow:32 --realise=pad_copy",
     "--fuse=oh+ow --reduce=mb,oh_ow --k_step=oh_ow:32 --unfold=src"],
)  # fmt: skip
def test_zeros_of_the_borders_never_meet_what_is_not_finite(words: str, bad: float) -> None:
    line = f"{LAST} mb1ic32ih8oc32oh8kh3ph1"
    config = f"{FRAGMENTS} --pack=src,diff_dst {words}"
    kernel = cs.compile(line, target="avx512_amx", config=config)
    p = Conv.parse(line)
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-2, 3, shape).astype("bfloat16") for shape in (p.src_shape, p.dst_shape))
    y[0, 5, 0, 0] = bad
    x, y = (cs.reorder(array, "abcd", "acdb") for array in (x, y))
    found = kernel.run(src=x, diff_dst=y)["diff_wei"]
    assert np.isfinite(found[5, :, 0, 0].astype(np.float32)).all(), "the first tap reads no pixel beside the first one"
    assert not np.isfinite(found[5, :, 1, 1].astype(np.float32)).any()


def test_factors_that_change_are_packed_both() -> None:
    problem = parse_problem(f"{FIRST} mb1ic32ih32oc32oh32kh1ph0")
    config = Config.parse(f"{FRAGMENTS} --reduce=mb,oh,ow --k_step=ow:32 --pack=diff_dst")
    with pytest.raises(ConfigError, match=r"diff_dst changes in each call.*--pack=src,diff_dst"), interning():
        plan(problem, config, AMX)


@pytest.mark.parametrize(
    ("line", "unfolded"),
    [
        (f"{LAST} mb1ic32ih32oc32oh32kh1ph0", "wei"),
        (f"{FIRST} g2mb1ic64ih32oc64oh32kh3ph1", "src"),  # seven loops index the source
    ],
)
def test_operands_that_cannot_be_unfolded(line: str, unfolded: str) -> None:
    words = f"--fuse=oh+ow --reduce=mb,oh_ow --k_step=oh_ow:32 --pack=src,diff_dst --unfold={unfolded}"
    with pytest.raises(ConfigError, match=rf"--unfold={unfolded}: legal are packed operands that change"), interning():
        plan(parse_problem(line), Config.parse(f"{FRAGMENTS} {words}"), AMX)


def test_vectors_of_channels_are_unfolded_as_they_are() -> None:
    words = "--fuse=oh+ow --reduce=mb,oh_ow --k_step=oh_ow:32 --pack=src,diff_dst --unfold=src"
    with interning():
        made = plan(parse_problem(f"{LAST} mb1ic64ih28oc64oh14kh1sh2ph0"), Config.parse(f"{FRAGMENTS} {words}"), AMX)
        text = llvm_bind.assembly(lower(made).text, AMX.triple, AMX.cpu, AMX.features)
    body = text.partition("convsmith_conv_pack_src_chunk:")[2].partition(".Lfunc_end")[0]
    assert "zmm" in body and not re.search("movzw|movw|pextrw", body), body


@pytest.mark.parametrize(
    "line", [f"{LAST} mb1ic64ih28oc64oh28kh5ph2", f"{FIRST} mb1ic64ih56oc64oh56kh3ph1",
             f"{FIRST} mb1ic64ih28oc64oh28kh5ph2"]
)  # fmt: skip
def test_elements_beside_borders_are_packed_as_vectors(line: str) -> None:
    """Rows of which each tap misses other pixels are transposed, or copied as vectors, and no element goes alone."""
    words = "--reduce=mb,oh,ow --k_step=ow:32 --pack=src,diff_dst --realise=pad_copy"
    with interning():
        made = plan(parse_problem(line), Config.parse(f"{FRAGMENTS} {words}"), AMX)
        text = llvm_bind.assembly(lower(made).text, AMX.triple, AMX.cpu, AMX.features)
    body = text.partition("convsmith_conv_pack_src_chunk:")[2].partition(".Lfunc_end")[0]
    mnemonics = re.findall(r"^\t([a-z]\w*)", body, re.MULTILINE)
    assert mnemonics and not [m for m in mnemonics if re.match("v?p(insr|extr)|movzw|movw", m)], body


def test_long_rows_with_a_stride_are_unfolded_as_vectors() -> None:
    words = "--fuse=oh+ow --reduce=mb,oh_ow --k_step=oh_ow:32 --pack=src,diff_dst --unfold=src"
    with interning():
        made = plan(parse_problem(f"{FIRST} mb1ic64ih75oc64oh38kh3sh2ph1"), Config.parse(f"{FRAGMENTS} {words}"), AMX)
        text = lower(made).text
    body = text.partition("@convsmith_conv_pack_src_chunk(")[2].partition("\n}")[0]
    assert "store <32 x i16>" in body, body


@needs_amx
@pytest.mark.parametrize("line", [f"{FIRST} mb1ic32ih75oc32oh38kh3sh2ph1", f"{FIRST} mb2ic32ih80oc32oh40kh2sh2ph0",
                                  f"{FIRST} mb1ic32ih150iw9oc32oh75ow5kh3kw3sh2sw2ph1pw1"])  # fmt: skip
def test_unfolded_strides_are_exact(line: str) -> None:
    words = "--fuse=oh+ow --reduce=mb,oh_ow --k_step=oh_ow:32 --pack=src,diff_dst --unfold=src"
    assert verify_kernel(cs.compile(line, config=f"{FRAGMENTS} {words}")).ok


def test_rows_with_a_stride_are_packed_before_the_call_and_lanes_at_a_loop() -> None:
    """Blocks of a reduction copy the terms of rows one by one if they are not adjacent, those of lanes in tiles."""
    problem = parse_problem(f"{FIRST} mb1ic64ih200oc64oh100kh3sh2ph1").canonical()
    words = "--order=kw,oc,ic,kh --reduce=mb,oh,ow --instruction=tdpbf16ps_16 --k_step=ow:32 --realise=pad_copy"
    near = "--cache=oh:10 --pack= --pack_at=src+oh,diff_dst+oh"
    rows, lanes = (
        f"--target=avx512_amx --lane={lane} --register=ic:32,oc:32 {words} {near}" for lane in ("oc", "ic")
    )
    with interning():
        taken = [expected_terms(problem, Config.parse(x), AMX)["packing"] for x in (rows, lanes)]
        whole = Config.parse(f"--target=avx512_amx --lane=oc --register=ic:32,oc:32 {words} --pack=src,diff_dst")
        before = expected_terms(problem, whole, AMX)["packing"]
    assert taken[0] > 3 * taken[1] and before < taken[0]
