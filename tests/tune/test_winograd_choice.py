"""Problems whose default config is a transform, and the transforms that `accuracy` permits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import convsmith as cs
from convsmith.machine.costs import FarRates
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES
from convsmith.machine.registry import target
from convsmith.machine.x86.levels import LEVELS as X86
from convsmith.measure.verification import verify_kernel
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.winograd import winograd_of
from convsmith.tune.candidates import default_config
from convsmith.tune.costs.expected import expected_terms
from convsmith.tune.winograd import winograd_features

LAYER = "--stag=axb --dtag=axb mb1ic64ih28oc64kh3ph1"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("line", "sizes"),
    [
        (LAYER, {"oh": 4, "ow": 4}),
        (f"--accuracy=any {LAYER}", {"oh": 4, "ow": 4}),
        (f"--dir=BWD_D {LAYER}", {"ih": 4, "iw": 4}),
        ("--stag=aBx16b --dtag=aBx16b mb1ic256ih14oc256kh3ph1", {"oh": 4, "ow": 4}),
        ("--stag=axb --dtag=axb mb1ic64ih1iw400oc64oh1ow400kh1kw3pw1", {"ow": 4}),
        ("--stag=axb --dtag=axb mb1ic64iw512oc64kw7pw9dw2", {"ow": 4}),
        ("--stag=abx --dtag=abx mb1ic64iw512oc64kw7pw9dw2", {}),
        (f"--accuracy=strict {LAYER}", {}),
        ("--stag=abx --dtag=abx mb1ic64ih28oc64kh3ph1", {"oh": 4, "ow": 4}),
        ("--stag=abx --dtag=abx mb1ic384ih13oc256kh3ph1", {"oh": 4, "ow": 4}),
        ("--stag=abx --dtag=abx mb1ic3ih56oc64kh3ph1", {}),
        ("--stag=axb --dtag=axb mb1ic3ih56oc64kh3ph1", {}),
        ("--stag=axb --dtag=axb mb1ic128ih28oc128kh3ph1sh2", {"oh": 2, "ow": 2}),
        ("--stag=abx --dtag=abx mb1ic64ih56oc64oh28kh3ph1sh2", {"oh": 2, "ow": 2}),
        ("--stag=axb --dtag=axb mb1ic64ih56oc64oh28kh5ph2sh2", {"oh": 4, "ow": 4}),
        ("--deconv --stag=axb --dtag=axb mb1ic256ih16oc128oh32kh5sh2ph2", {"oh": 4, "ow": 4}),
        ("--deconv --stag=abx --dtag=abx mb1ic256ih16oc128oh32kh4sh2ph1", {"oh": 4, "ow": 4}),
        ("--dir=BWD_D --stag=axb --dtag=axb mb1ic64ih56oc128oh28kh5sh2ph2", {"ih": 4, "iw": 4}),
        ("--dir=BWD_D --stag=axb --dtag=axb mb1ic512ih14oc512oh7kh3sh2ph1", {}),
        ("--stag=axb --dtag=axb mb1ic64ih28oc64kh1ph0", {}),
        ("--stag=axb --dtag=axb g64mb1ic64ih28oc64kh3ph1", {}),
        (f"--dir=BWD_W {LAYER}", {}),
        ("--stag=axb --dtag=axb g4mb1ic192ih28oc192kh3ph1", {"oh": 4, "ow": 4}),
        ("--stag=axb --dtag=axb g32mb1ic256ih28oc256kh3ph1", {}),
        (f"--dt=bf16 {LAYER}", {"oh": 4, "ow": 4}),
        (f"--dt=f16 --dir=BWD_D {LAYER}", {"ih": 4, "iw": 4}),
        (f"--dt=f16 --attr-acc-mode=f16 {LAYER}", {}),
        (f"--dt=f64 {LAYER}", {}),
    ],
)
def test_default(line: str, sizes: dict[str, int]) -> None:
    for threads in (1, 2, 3):
        with cs.settings.scope(micro_architecture="generic"):
            config = default_config(parse_problem(line), target("avx512"), threads)
        assert dict(config.tiles_at("winograd")) == sizes


@pytest.mark.parametrize(
    ("level", "types", "line", "sizes"),
    [
        ("avx2", "u8:s8:s32", LAYER, {"oh": 2, "ow": 2}),
        ("avx2", "s8:s8:s8", LAYER, {"oh": 2, "ow": 2}),
        ("avx512", "u8:s8:s32", LAYER, {"oh": 2, "ow": 2}),
        ("wasm32+relaxed", "u8:s8:s32", LAYER, {"oh": 2, "ow": 2}),
        ("avx2", "u8:s8:s32", f"{LAYER}sh2", {}),
        ("avx2", "u8:s8:s32", "--stag=axb --dtag=axb mb1ic64ih28iw28oc64oh28ow27kh1kw2ph0pw0", {}),
        ("avx2_vnni", "u8:s8:s32", LAYER, {}),
        ("avx512_vnni", "u8:s8:s32", LAYER, {}),
        ("avx512_vnni", "s8:s8:s32", LAYER, {}),
        ("avx2_vnni", "u8:u8:s32", LAYER, {}),
        ("generic", "u8:s8:s32", LAYER, {}),
        ("aarch64", "u8:s8:s32", LAYER, {}),
    ],
)
def test_bytes_are_transformed_where_words_are_multiplied_as_fast(
    level: str, types: str, line: str, sizes: dict[str, int]
) -> None:
    with cs.settings.scope(micro_architecture="generic"):
        config = default_config(parse_problem(f"--dt={types} {line}"), target(level), 1)
    assert dict(config.tiles_at("winograd")) == sizes


@pytest.mark.parametrize("line", ["mb1ic384ih13oc256kh3ph1", "--dir=BWD_D g2mb1ic256ih14oc512kh3ph1"])
def test_the_rate_of_far_lines_decides(line: str) -> None:
    with cs.settings.scope(micro_architecture="generic"):
        problem, level = parse_problem(f"--stag=abx --dtag=abx {line}"), target("avx512")
        slow = replace(level, costs=replace(level.costs, transform_far=FarRates(0.19, 0.56, 0.175)))
        assert default_config(problem, level).tiles_at("winograd") and not default_config(problem, slow).tiles_at(
            "winograd"
        )


@pytest.mark.parametrize("line", ["mb1ic16ih64oc16kh3ph1", "mb1ic128ih28oc128kh3ph1", "g2mb1ic64ih28oc128kh3ph1"])
@pytest.mark.parametrize("level", ["avx512", "avx2"])
def test_frequencies_lie_in_different_sets(line: str, level: str) -> None:
    problem, machine = parse_problem(f"--stag=axb --dtag=axb {line}"), target(level)
    for block in ((), (("oh", 4),)):
        config = Config(level, "oc", pack=("wei_w",), winograd=(("oh", 4), ("ow", 4)), block=block)
        product = winograd_of(problem, config, machine, dynamic=False).product
        for view in (product.a, product.c):
            apart, frequencies = view.layout.strides[0] * 4, view.layout.shape[0]
            assert apart % machine.l1.line == 0
            sets = {n * apart % machine.l1.way // machine.l1.line for n in range(frequencies)}
            assert len(sets) == frequencies
        assert product.b.layout.is_dense


def test_products_of_fragments_are_faster() -> None:
    assert not default_config(parse_problem(f"--dt=bf16 {LAYER}"), target("avx512_amx")).tiles_at("winograd")


def test_threads_share_blocks_and_leave_the_numbers() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 64, 28, 28), (64, 64, 3, 3)))
    kernels = [cs.compile(LAYER, threads=threads) for threads in (1, 2, 3)]
    assert all(k.config.tiles_at("winograd") for k in kernels)
    one, *others = (k(x, w) for k in kernels)
    assert all(y.tobytes() == one.tobytes() for y in others)


def test_default_is_right_within_its_bound() -> None:
    kernel = cs.compile(LAYER, threads=1)
    assert not all(x.is_exact for x in kernel.transforms)
    for real in (False, True):
        verdict = verify_kernel(kernel, real=real)
        assert verdict.ok and "eps" in verdict.detail, verdict.detail
    strict = cs.compile(LAYER, threads=1, accuracy="strict")
    assert not strict.transforms and verify_kernel(strict).detail == "exact"


def test_accuracy_is_a_part_of_the_problem() -> None:
    strict = cs.compile(LAYER, accuracy="strict", threads=1)
    assert "--accuracy=strict" in str(strict.problem)
    assert parse_problem(str(strict.problem)) == strict.problem
    assert parse_problem(LAYER).accuracy == "relaxed" and "accuracy" not in str(parse_problem(LAYER))
    same = parse_problem(f"--dt=f64 --accuracy=strict {LAYER}")
    assert same.canonical() == parse_problem(f"--dt=f64 {LAYER}").canonical()
    assert strict.problem.canonical() != parse_problem(LAYER).canonical()


@pytest.mark.parametrize(
    ("line", "words", "error", "text"),
    [
        (LAYER, "--winograd=oh:6,ow:6", cs.ConfigError, "the error is 6.9 times .* --accuracy=relaxed admits 4"),
        ("--stag=axb --dtag=axb mb1ic8iw99oc8kw3sw20", "--winograd=ow:3", cs.ConfigError,
         r"a tile of F\(3, 3\) with stride 20 covers 43 pixels along axis w; legal are at most 32"),
        ("--dir=BWD_D --stag=axb --dtag=axb mb1ic8iw99oc8kw33sw33", "--winograd=iw:33", cs.ConfigError,
         r"a tile of F\(33, 33\) with stride 33 covers 33 pixels along axis w; legal are at most 32"),
        (f"--accuracy=strict {LAYER}", "--winograd=oh:2,ow:2", cs.ConfigError, "strict permits no transforms"),
        (f"--accuracy=low {LAYER}", "", cs.UsageError, "--accuracy: 'low' is unknown; legal: strict, relaxed, any"),
    ],
)
def test_refused(line: str, words: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        cs.compile(line, config=f"--target=avx512 --lane=oc {words}")


def test_the_keyword_must_agree_with_the_line() -> None:
    with pytest.raises(cs.UsageError, match="the problem says --accuracy=strict, the keyword any; legal is"):
        cs.compile(f"--accuracy=strict {LAYER}", accuracy="any")


def test_functions_that_pack_in_each_call_transform_nothing() -> None:
    x = np.ones((1, 28, 28, 64), np.float32).transpose(0, 3, 1, 2)
    y = cs.conv2d(x, np.ones((64, 64, 3, 3), np.float32) / 3, padding=1)
    direct = cs.compile(LAYER, accuracy="strict")(x, np.ones((64, 64, 3, 3), np.float32) / 3)
    assert y.tobytes() == direct.tobytes()


@pytest.mark.parametrize(
    ("line", "tile", "blocks"),
    [
        ("mb1ic64ih112oc128kh3ph1", 4, True),  # the arrays of an image have more pages than tables of addresses
        ("mb1ic256ih14oc256kh3ph1", 4, False),  # 8 lanes multiply as long as weights of 36 frequencies arrive
        ("mb1ic128ih56oc128oh28kh3ph1sh2", 2, True),  # a tile of 4 has 81 frequencies, each on a page of its own
    ],
)
def test_memory_decides_on_tiles_and_blocks(line: str, tile: int, blocks: bool) -> None:
    level = next(t for t in X86 if t.name == "avx2")
    server = next(row for row in MICRO_ARCHITECTURES if row.name == "intel-server")
    config = default_config(parse_problem(f"--stag=axb --dtag=axb {line}"), server.of(level))
    assert dict(config.tiles_at("winograd")) == {"oh": tile, "ow": tile} and bool(config.tiles_at("block")) == blocks


@pytest.mark.parametrize(
    ("line", "block"),
    [
        ("mb1ic12ih32oc76kh3ph1", {"oh": 2}),  # the arrays of an image exceed the tensors, and gain nothing
        ("mb32ic24ih2oc256kh3ph1", {"mb": 16}),
        ("mb1ic256ih14oc256kh3ph1", {}),  # they do not, and weights come from far memory for each block
    ],
)
def test_blocks_that_are_as_fast_have_small_arrays(line: str, block: dict[str, int]) -> None:
    level = next(t for t in X86 if t.name == "avx512")
    server = next(row for row in MICRO_ARCHITECTURES if row.name == "intel-server")
    config = default_config(parse_problem(f"--stag=axb --dtag=axb {line}"), server.of(level))
    assert config.tiles_at("winograd") and dict(config.tiles_at("block")) == block


@pytest.mark.parametrize(
    "line",
    [
        "mb1ic160ih17iw17oc160oh17ow17kh7kw1ph3pw0",
        "mb1ic160ih17iw17oc160oh17ow17kh1kw7ph0pw3",
        "mb1ic160id17ih17iw17oc160od17oh17ow17kd7kh1kw1pd3ph0pw0",
        "mb1ic64id16ih8iw8oc64od16oh8ow8kd1kh3kw3pd0ph1pw1",
    ],
)
@pytest.mark.parametrize("threads", [2, 4])
def test_threads_share_an_image_along_axes_that_are_not_transformed(line: str, threads: int) -> None:
    problem = parse_problem(f"--stag=axb --dtag=axb {line}")
    with cs.settings.scope(micro_architecture="generic"):
        machine = target("avx512")
        config = default_config(problem, machine, threads)
        assert config.tiles_at("winograd") and winograd_of(problem, config, machine, dynamic=False).tasks >= threads


@pytest.mark.parametrize(("line", "threads", "block"), [
    ("mb1ic256ih14oc256kh3ph1", 2, {"oh": 2}),
    ("mb1ic256ih14oc256kh3ph1", 4, {"oh": 1}),
    ("mb3ic256ih14oc256kh3ph1", 2, {"oh": 2}),
    ("mb2ic256ih14oc256kh3ph1", 2, {}),  # each thread has an image
])  # fmt: skip
def test_threads_share_an_image_of_few_tiles(line: str, threads: int, block: dict[str, int]) -> None:
    """The image has 16 tiles, fewer than make a block on one thread."""
    zen5 = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5")
    machine = zen5.of(next(t for t in X86 if t.name == "avx512"))
    problem = parse_problem(f"--stag=axb --dtag=axb {line}")
    alone, config = default_config(problem, machine), default_config(problem, machine, threads)
    assert config.tiles_at("winograd") == alone.tiles_at("winograd") and dict(config.tiles_at("block")) == block


@pytest.mark.parametrize(("size", "transformed"), [(1, False), (4, True)])
def test_images_whose_taps_are_padding_have_no_transform(size: int, transformed: bool) -> None:
    """A direct kernel of an image of one pixel multiplies one tap of nine, a transform 16 elements."""
    line = f"--stag=axb --dtag=axb mb64ic256ih{size}oc64oh{size}kh3ph1"
    assert default_config(parse_problem(line), target("avx512")).has_transform == transformed


def test_weights_that_no_load_prefetches_stream_in_one_run() -> None:
    """The tiles of all channels follow each other where other tiles of the same weights would interrupt their stream;
    small weights, and a level whose loads prefetch, keep the order in which a tile's weights stay near.
    """
    large = parse_problem("--stag=axb --dtag=axb mb1ic256ih14oc256oh14kh3ph1")
    small = parse_problem("--stag=axb --dtag=axb mb1ic16ih14oc16oh14kh3ph1")
    level = target("wasm32+relaxed")
    patient = replace(level, costs=replace(level.costs, interrupted=0))
    orders = [default_config(p, t, 1).order for p, t in ((large, level), (large, patient), (small, level))]
    assert orders == [("f", "th_tw", "oc"), ("f", "oc", "th_tw"), ("f", "oc", "th_tw")]


def test_tiles_load_weights_again_that_the_second_level_cache_does_not_hold() -> None:
    """The weights of a frequency are 256 KiB, which the cache holds, and 4 MiB, which each further tile of pixels loads
    again; one tile of pixels loads them once.
    """
    level = target("wasm32+relaxed")

    def again(channels: int, tile: int) -> float:
        line = f"--stag=axb --dtag=axb mb1ic{channels}ih8oc{channels}kh3ph1"
        config = Config.parse(
            f"--target=wasm32+relaxed --lane=oc --fuse=th+tw --register=th_tw:{tile},oc:8 --order=f,th_tw,oc "
            "--reduce=ic --pack=wei_w --outline=no --winograd=oh:2,ow:2"
        )
        return expected_terms(parse_problem(line), config, level).get("weights again", 0.0)

    assert again(256, 6) == again(1024, 16) == 0 < again(1024, 6)
    assert again(1024, 4) == pytest.approx(1.5 * again(1024, 6), rel=1e-6)


def test_tiles_fetch_large_weights_where_loads_are_the_prefetches() -> None:
    """Tiles of pixels fetch the weights of the next tile of channels if these are at least 4 MiB."""
    level = target("wasm32+relaxed")
    fetched = [
        default_config(parse_problem(f"--stag=axb --dtag=axb mb1ic{ic}ih7oc2048kh1"), level, 1).staged("fetch")
        for ic in (448, 512)
    ]
    assert fetched == [(), ("wei",)]


def _events(line: str, config: str, cause: str) -> dict[str, float]:
    """Return the events of a cause in all sections of a transform, by name."""
    sections = winograd_features(parse_problem(line), Config.parse(config), target("avx512"))
    found = [(name, x.times * n) for x in sections for of, events in x.causes if of == cause for name, n in events]
    return {name: sum(n for other, n in found if other == name) for name, _ in found}


def test_transforms_count_all_images_of_a_block() -> None:
    line = "--stag=axb --dtag=axb mb4ic32ih8oc32oh8kh3ph1"
    same = "--target=avx512 --lane=oc --reduce=ic --pack=wei_w --outline=no --winograd=oh:4,ow:4"
    one = f"{same} --fuse=th+tw --register=th_tw:4,oc:32 --order=f,oc,th_tw"
    two = f"{same} --fuse=tmb+th,tmb_th+tw --register=tmb_th_tw:8,oc:32 --order=f,oc,tmb_th_tw --block=mb:2"
    assert _events(line, one, "transforms") == pytest.approx(_events(line, two, "transforms"))


@pytest.mark.parametrize(("size", "are_evicted"), [(32, True), (24, False)])
def test_channels_that_share_few_sets_evict_each_other(size: int, are_evicted: bool) -> None:
    """Channels of 32x32 pixels in f32 are a page apart, where the first-level cache keeps the lines of eight."""
    line = f"--stag=abx --dtag=abx mb1ic32ih{size}oc32oh{size}kh3ph1"
    config = (
        "--target=avx512 --lane=oc --fuse=th+tw --register=th_tw:8,oc:32 --order=f,oc,th_tw --reduce=ic "
        "--pack=wei_w --outline=no --winograd=oh:4,ow:4"
    )
    assert (_events(line, config, "copies of channels")["clash"] > 0) is are_evicted
