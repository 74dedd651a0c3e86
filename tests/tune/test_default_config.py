"""The default config follows from a problem's shape and from the operations after its sums."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import target as known_target
from convsmith.machine.x86.levels import LEVELS
from convsmith.passes.transpose_stores import transpose_stores
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.plan import plan
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.registers import check_config
from convsmith.schedule.winograd import scheduled_statement
from convsmith.tune.candidates import candidates, default_config

LAYER = "--accuracy=strict mb1ic8ih7oc20kh3ph1"


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("layout", ["", "--dtag=abcd", "--dtag=aBcd16b", "--dtag=aBcd8b"])
@pytest.mark.parametrize(("post_ops", "long"), [("", False), ("relu", False), ("tanh", True)])
def test_a_long_epilogue_has_a_loop_of_its_own_in_every_layout(
    isa: str, layout: str, post_ops: str, long: bool
) -> None:
    (target,) = (t for t in LEVELS if t.name == isa)
    words = (layout, f"--attr-post-ops={post_ops}" if post_ops else "", LAYER)
    assert default_config(parse_problem(" ".join(filter(None, words))), target).spill_sums is long


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("layout", "channels", "size", "inner", "held", "pairs"),
    [
        ("axb", "g192mb1ic192oc192", 28, "ow", True, True),  # near: weights stay, two lines of a pixel come at a time
        ("axb", "g192mb1ic192oc192", 112, "oc", False, None),  # far: the image is read in the order of memory
        ("axb", "g192mb8ic192oc192", 28, "ow", True, True),  # one of several images is near
        ("axb", "g16mb1ic16oc16", 8, "ow", None, False),  # one vector holds all channels
        ("aBcd16b", "g192mb1ic192oc192", 28, "ow", None, None),  # a block of channels is an image of its own
        ("aBcd16b", "g192mb1ic192oc192", 112, "ow", None, None),
    ],
)
def test_what_a_depthwise_convolution_reads_at_a_time(
    layout: str, channels: str, size: int, inner: str, held: bool | None, pairs: bool | None, stride: int
) -> None:
    (target,) = (t for t in LEVELS if t.name == "avx512")
    sizes = f"{channels}ih{size}oh{size // stride}kh3sh{stride}ph1"
    config = default_config(parse_problem(f"--stag={layout} --dtag={layout} {sizes}"), target)
    tile = dict(config.tiles_at("register"))
    assert config.order[-1] == inner and tile["kh"] == tile["kw"] == 3
    assert held is None or bool(config.staged("resident")) is held
    assert pairs is None or (tile["g"] > 16) is pairs


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_a_gradient_whose_stride_is_beyond_its_taps_has_a_config(isa: str) -> None:
    (target,) = (t for t in LEVELS if t.name == isa)
    line = "--dir=BWD_D --stag=axb --dtag=axb g16mb1ic16iw1000oc16ow200kw3sw5pw0"
    assert default_config(parse_problem(line), target).lane == "g"


@pytest.mark.sampled(20, "kind", "dt")
@pytest.mark.parametrize("target", LEVELS, ids=lambda t: t.name)
@pytest.mark.parametrize("kind", ["", "--dir=BWD_D ", "--deconv "])
@pytest.mark.parametrize("dt", ["f32", "f16", "bf16", "u8:s8:s32", "s8:s8:s32"])
def test_every_candidate_keeps_to_the_registers(dt: str, kind: str, target: Machine) -> None:
    """Few channels a group, whose groups and channels lie along the lanes as one loop, and many."""
    if kind == "--dir=BWD_D " and dt[0] in "us":
        dt = f"s32:{dt.split(':')[1]}:{dt.split(':')[0]}"
    for shape in ("g2mb1ic32iw16oc16ow16kw1", "g2mb1ic128iw64oc128ow64kw1", "g4mb2ic64iw9oc32ow9kw3pw1"):
        problem = parse_problem(f"{kind}--dt={dt} --stag=axb --dtag=axb {shape}")
        for choice in candidates(problem, target, 1):
            with interning():
                st = scheduled_statement(problem, choice.config, target)
                unit = ProductShape.of(st, target, choice.config)
                check_config(st, loops_after_fusing(st, choice.config), choice.config, target, unit)


def test_candidates_have_blocks_before_they_are_ranked() -> None:
    """The weights of a block fit in their part of the cache, in every candidate and not in the best alone."""
    (target,) = (t for t in LEVELS if t.name == "avx512")
    found = candidates(parse_problem("--matmul 512x16384:16384x4096"), target, 1)
    blocks = {c.config.size("n"): dict(c.config.tiles_at("cache")) for c in found if c.config.lane == "n"}
    assert {wide for wide, sizes in blocks.items() if not sizes} == {16}  # whose weights fit in the whole cache
    assert len(blocks) > 5 and all((b["k"] - 1) * wide * 4 < target.l2.kept for wide, b in blocks.items() if b)


@pytest.mark.parametrize(
    ("line", "blocks"),
    [
        ("mb32ic512ih38oc24oh13kh3sh3ph1", False), ("mb1ic512ih38oc24oh13kh3sh3ph1", True),
        ("mb32ic2048ih14oc512oh14kh3ph1", True), ("mb4096ic8192ih1oc32oh1kh1ph0", True),
    ],
)  # fmt: skip
def test_short_runs_of_channels_in_memory_are_no_blocks(line: str, blocks: bool) -> None:
    """Weights in memory have blocks, and so have sources whose blocks are runs of pages."""
    (target,) = (t for t in LEVELS if t.name == "avx2")
    config = default_config(parse_problem(f"--accuracy=strict --stag=axb --dtag=axb {line}"), target, 1)
    assert ("ic" in dict(config.tiles_at("cache"))) is blocks


def test_candidates_have_parts_before_they_are_ranked() -> None:
    """A gradient of few weights has a part for each of four threads, which is an image, whatever its register tile."""
    (target,) = (t for t in LEVELS if t.name == "avx512")
    problem = parse_problem("--dir=BWD_W --stag=axb --dtag=axb mb4ic3ih32oc8oh32kh1")
    found = [c.config for c in candidates(problem, target, 4)]
    assert len(found) > 3 and {(c.order[0], c.tiles_at("split")) for c in found} == {("part", (("mb", 4),))}
    assert default_config(problem, target, 4) == found[0]


@pytest.mark.parametrize(
    ("line", "target", "threads"),
    [
        ("--dt=bf16:bf16:s16 --stag=abx --dtag=abx mb1ic100id64oc8od4kd1sd16pd0", "avx2_vnni_int8", 1),  # in parts
        ("--matmul --dt=f32:f32:u8 --stag=acb --wtag=abc --dtag=acb 1x65x33:4x33x8", "avx512_fp16", 3),  # fused columns
    ],
)
def test_channels_that_lie_far_apart_beside_parts_and_fused_loops(line: str, target: str, threads: int) -> None:
    (level,) = (t for t in LEVELS if t.name == target)
    config = default_config(parse_problem(line), level, threads)
    assert config.threads <= threads


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("line", "realise"),
    [
        ("--dt=f16:f16:f32 --stag=axb --dtag=axb mb1ic256ih14oc256oh14kh1", "pad_copy"),
        ("--dt=bf16 --stag=axb --dtag=axb mb1ic512ih7oc2048oh7kh1", "pad_copy"),
        ("--dt=f16 --accuracy=strict --stag=axb --dtag=axb mb1ic256ih28oc256oh14kh3sh2ph1", "pad_copy"),
        ("--stag=axb --dtag=axb mb1ic256ih14oc256oh14kh1", "peel"),
        ("--dt=f16 --stag=axb --dtag=axb mb1ic3iw8oc24ow10kw1pw1dw1", "peel"),
    ],
)
def test_elements_are_converted_in_a_copy_where_many_products_read_each(line: str, realise: str, threads: int) -> None:
    (target,) = (t for t in LEVELS if t.name == "avx512")
    config = default_config(parse_problem(line), target, threads)
    assert config.realise == realise
    copies = [b.dtype for b in plan(parse_problem(line), config, target).kernels[-1].buffers if b.name == "src_s"]
    assert copies == (["f32"] if realise == "pad_copy" else [])


@pytest.mark.parametrize(
    "line", ["--deconv mb2ic256ih28oc64oh56kh1sh2", "--dir=BWD_D mb1ic64ih56oc128oh28kh1sh2"]
)
def test_classes_that_a_single_tap_does_not_meet_cost_no_products(line: str) -> None:
    """A padded copy would multiply the zeros of three classes of four."""
    (target,) = (t for t in LEVELS if t.name == "avx512")
    config = default_config(parse_problem(f"--stag=abx --dtag=abx {line}"), target)
    assert (config.lane, config.realise) == ("ic" if "BWD_D" in line else "oc", "peel")


def test_an_image_that_fits_no_cache_is_converted_where_it_is_read() -> None:
    """A copy of 12 MiB would be written to memory and read again for few products of each element."""
    (target,) = (t for t in LEVELS if t.name == "avx512")
    line = "--dt=f16 --stag=axb --dtag=axb mb1ic64ih224oc64oh224kh1"
    assert default_config(parse_problem(line), target).realise == "peel"


@pytest.mark.parametrize("channels", [2, 3, 4, 8])
def test_pixels_share_the_gathered_channels_of_groups(channels: int) -> None:
    """A tile has all taps, of which neighbouring pixels read the same channels."""
    (target,) = (t for t in LEVELS if t.name == "avx512")
    layer = f"--stag=axb --dtag=axb g16mb1ic{16 * channels}ih28oc{16 * channels}oh28kh3ph1"
    config = default_config(parse_problem(layer), target)
    lanes = 16 - 16 % channels
    assert dict(config.tiles_at("register")) == {"ow": 4, "g_oc": 2 * lanes, "kh": 3, "kw": 3}
    long = default_config(parse_problem(layer.replace("kh3ph1", "kh5ph2")), target)
    assert "kw" not in dict(long.tiles_at("register"))


def test_scattered_vectors_of_a_result_are_transposed() -> None:
    (target,) = (t for t in LEVELS if t.name == "avx512")
    for tag, few, transposed in (("abx", 0, True), ("axb", 0, False), ("abx", 3, False)):
        problem = parse_problem(f"--stag={tag} --dtag={tag} mb1ic64ih14oc64oh14kh1")
        config = Config.parse(f"--target=avx512 --lane=oc --register=oc:32,ow:{few or 14}")
        steps = plan(problem, config, target).pipeline
        assert any(step.run is transpose_stores for step in steps) is transposed


@pytest.mark.parametrize(
    ("cost", "size", "order"), [(6.0, 112, "oc,oh_ow"), (0.0, 112, "oh_ow,oc"), (6.0, 28, "oh_ow,oc")]
)
def test_channels_on_pages_of_their_own_are_written_one_after_the_other(cost: float, size: int, order: str) -> None:
    """Where the result exceeds the caches, and a store on another page costs more."""
    (level,) = (t for t in LEVELS if t.name == "avx512")
    target = replace(level, costs=replace(level.costs, page_turn=cost))
    layer = parse_problem(f"--stag=abx --dtag=abx mb1ic16ih{size}oc96oh{size}kh1ph0")
    assert default_config(layer, target).order == ("mb", *order.split(","))


@pytest.mark.parametrize(("pages", "order"), [(95, "oc,oh_ow"), (96, "oh_ow,oc")])
def test_pages_that_the_first_table_of_addresses_keeps_are_not_turned(pages: int, order: str) -> None:
    (level,) = (t for t in LEVELS if t.name == "avx512")
    target = replace(level, costs=replace(level.costs, page_turn=6.0, turned_pages=pages))
    layer = parse_problem("--stag=abx --dtag=abx mb1ic16ih112oc96oh112kh1ph0")
    assert default_config(layer, target).order == ("mb", *order.split(","))


@pytest.mark.parametrize("cost", [0.0, 3.0])
def test_pages_are_turned_once_beside_borders_too(cost: float) -> None:
    """The order of a nest whose vectors of pixels meet borders is chosen among all of them."""
    (level,) = (t for t in LEVELS if t.name == "avx2")
    target = replace(level, costs=replace(level.costs, page_turn=cost))
    layer = parse_problem("--stag=abx --dtag=abx mb73ic32ih8iw56oc352oh10ow58kh1kw1ph2pw2")
    config = default_config(layer, target)
    assert config.lane == "ow" and config.order == ("mb", "oh", "oc", "ow")


@pytest.mark.parametrize("level", ["avx512_amx", "avx2"])
@pytest.mark.parametrize("line", [
    "--stag=axb --dtag=axb mb1ic256ih14oc1024oh14kh1ph0", "--dir=BWD_W --stag=abx --dtag=abx mb2ic64ih14oc64oh14kh3ph1",
    "--dt=u8:s8:s32 mb1ic256ih14oc256oh14kh3ph1", "--dt=bf16 mb4ic128ih28oc128oh28kh1ph0", "g32mb1ic32ih56oc32kh3ph1",
])  # fmt: skip
def test_the_first_choice_needs_no_other_arranged(line: str, level: str) -> None:
    """Only the first choice of a default config is arranged, except where arranging decides which one that is."""
    problem, machine = parse_problem(line).canonical(), known_target(level)
    assert candidates(problem, machine, 1, 1)[0] == candidates(problem, machine, 1)[0]
