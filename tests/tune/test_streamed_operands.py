"""Of the operands of fragments, one may pass through the first-level cache without displacing the other."""

from __future__ import annotations

import pytest

from convsmith.ir.intern import interning
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import general
from convsmith.tune.candidates import default_config
from convsmith.tune.dynamic import dynamic_config
from convsmith.tune.fragments import Panels, streamed_operand
from convsmith.tune.search.space import Space

AMX, AVX512 = (next(t for t in LEVELS if t.name == name) for name in ("avx512_amx", "avx512"))
LAYOUTS = "--stag=axb --dtag=axb"
KEPT = 1000


@pytest.mark.parametrize(
    ("source", "weights", "stay", "shared", "expected"),
    [
        (KEPT + 1, KEPT, True, False, "source"),
        (KEPT, 4 * KEPT, True, False, ""),
        (4 * KEPT, KEPT, False, False, ""),
        (KEPT, KEPT + 1, False, True, "weights"),
        (4 * KEPT, 2 * KEPT, True, True, ""),
        (KEPT, 2 * KEPT + 4, True, True, "weights"),
    ],
)
def test_what_passes_and_exceeds_the_cache_is_streamed(
    source: int, weights: int, stay: bool, shared: bool, expected: str
) -> None:
    """Four columns of fragments have all weights, and a tile two of them."""
    panels = Panels(pixel=1, column=weights / 4, source=source, weights=weights, weights_stay=stay, shared=shared)
    assert streamed_operand(panels, 2, KEPT) == expected


@pytest.mark.parametrize(
    ("line", "streamed"),
    [
        ("--dt=bf16 mb1ic1024ih14oc256oh14kh1ph0", ("src",)),
        ("--dt=u8:s8:s32 mb1ic1024ih14oc256oh14kh1ph0", ("wei",)),
        ("--dt=bf16 mb1ic256ih14oc256oh14kh3ph1", ("wei",)),
        ("--dt=u8:s8:s32 mb1ic64ih56oc64oh56kh3ph1", ()),
        ("mb1ic1024ih14oc256oh14kh1ph0", ()),
    ],
)
def test_first_choices_stream_the_operand_that_passes(line: str, streamed: tuple[str, ...]) -> None:
    assert default_config(parse_problem(f"{LAYOUTS} {line}"), AMX).staged("stream") == streamed


@pytest.mark.parametrize(
    ("line", "streamed"),
    [
        ("mb16ic3ih224oc64oh112kh7sh2ph3", ("dst",)),
        ("mb16ic64ih56oc256oh56kh1ph0", ("dst",)),
        ("--dir=BWD_D mb16ic256ih56oc64oh56kh1ph0", ("diff_src",)),
        ("mb1ic3ih224oc64oh224kh3ph1", ()),  # 12 MiB: the next layer finds part of it in a cache
        ("mb16ic3ih224oc72oh112kh7sh2ph3", ()),  # the last vector is half full
        ("g64mb32ic64ih112oc64oh112kh3ph1", ()),
    ],
)
def test_results_beyond_the_caches_are_stored_past_them(line: str, streamed: tuple[str, ...]) -> None:
    intel = next(row for row in MICRO_ARCHITECTURES if row.name == "intel-server").of(AVX512)
    problem = parse_problem(f"{LAYOUTS} {line}")
    assert default_config(problem, intel).staged("stream") == streamed
    assert default_config(problem, AVX512).staged("stream") == ()


@pytest.mark.parametrize(("channels", "streamed"), [(3, True), (16, False)])
def test_a_smaller_source_takes_the_place_of_results_in_the_caches(channels: int, streamed: bool) -> None:
    """The result alone has 25 MiB, which the last cache would keep; a source as large as that is counted in no case."""
    zen5 = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5").of(AVX512)
    config = default_config(parse_problem(f"{LAYOUTS} mb1ic{channels}ih640oc16oh640kh1ph0"), zen5)
    assert ("dst" in config.staged("stream")) == streamed


@pytest.mark.parametrize(("channels", "streamed"), [(1, ("dst",)), (16, ("dst",)), (20, ("dst",))])
def test_zeros_that_blocks_add_count_as_results(channels: int, streamed: tuple[str, ...]) -> None:
    """The vectors of the last channels write these zeros."""
    zen4 = next(row for row in MICRO_ARCHITECTURES if row.name == "znver4").of(AVX512)
    problem = parse_problem(f"--stag=aBx16b --dtag=aBx16b mb64ic3ih112oc{channels}oh112kh1ph0")
    assert default_config(problem, zen4).staged("stream") == streamed


@pytest.mark.parametrize(
    ("line", "streamed"),
    [
        ("--attr-post-ops=sum+relu mb1ic64ih56oc256oh56kh1ph0", ("dst",)),
        ("--attr-post-ops=sum+relu mb1ic32ih28oc256oh28kh1ph0", ()),  # 0.8 MB
        ("--attr-post-ops=relu mb1ic64ih56oc256oh56kh1ph0", ()),
        ("--attr-post-ops=add:f32:per_tensor:axb mb1ic64ih56oc256oh56kh1ph0", ()),
    ],
)
def test_large_results_that_are_added_to_are_prefetched_where_that_pays(line: str, streamed: tuple[str, ...]) -> None:
    intel = next(row for row in MICRO_ARCHITECTURES if row.name == "intel-server").of(AVX512)
    problem = parse_problem(f"{LAYOUTS} {line}")
    assert default_config(problem, intel).staged("stream") == streamed
    assert default_config(problem, AVX512).staged("stream") == ()


def test_the_space_stores_large_results_past_the_caches() -> None:
    streams = {}
    with interning():
        for line in ("mb1ic64ih56oc256oh56kh1ph0", "mb2ic64ih56oc256oh56kh1ph0"):
            space = Space(parse_problem(f"{LAYOUTS} {line}").canonical(), AVX512, 1)
            streams[line] = {c.staged("stream") for seed in space.seeds for c in space.neighbours(seed, "stream")}
    assert list(streams.values()) == [{("wei",)}, {("wei",), ("dst",)}]


def test_the_space_streams_operands_of_fragments_and_weights_of_vectors() -> None:
    with interning():
        space = Space(parse_problem(f"--dt=bf16 {LAYOUTS} mb1ic64ih14oc64oh14kh1ph0").canonical(), AMX, 1)
        found = {c.instruction: space.neighbours(c, "stream") for c in space.seeds}
        streams = {row: {each.staged("stream") for each in near} for row, near in found.items()}
    assert streams == {"tdpbf16ps_16": {("src",), ("wei",)}, "vdpbf16ps_512": {("wei",)}}


def test_streamed_operands_print_parse_and_are_renamed() -> None:
    config = Config.parse("--target=avx512_amx --lane=oc --stream=src,wei")
    assert Config.parse(str(config)) == config and config.staged("stream") == ("src", "wei")
    assert config.renamed({}, {"src": "inner"}).staged("stream") == ("inner", "wei")


@pytest.mark.parametrize(
    ("line", "tile"),
    [
        ("--dt=bf16 mb1ic64ih56oc256oh56kh1ph0", (16, 64)),
        ("--dt=u8:s8:s32 mb1ic128ih28oc128oh28kh1ph0", (16, 64)),
        ("--dt=bf16 mb1ic256ih56oc128oh56kh1ph0", (32, 32)),
        ("--dt=u8:s8:s32 mb1ic64ih56oc64oh56kh3ph1", (28, 32)),
    ],
)
def test_tiles_have_all_channels_of_a_pixel_where_nothing_hides_its_results(line: str, tile: tuple[int, int]) -> None:
    config = default_config(parse_problem(f"{LAYOUTS} {line}"), AMX)
    assert tuple(size for _, size in config.tiles_at("register")) == tile


@pytest.mark.parametrize(
    ("line", "streamed"),
    [
        ("mb1ic512ih7oc512oh7kh1", ("wei",)),
        ("mb1ic256ih14oc256oh14kh3ph1", ("wei_w",)),
        ("mb1ic256ih7oc256oh7kh1", ()),
        ("g512mb1ic512ih7oc512oh7kh3ph1", ()),
        ("--dir=BWD_W mb1ic512ih7oc512oh7kh1", ()),
    ],
)
def test_large_weights_are_prefetched_where_that_pays(line: str, streamed: tuple[str, ...]) -> None:
    level = next(t for t in LEVELS if t.name == "avx512")
    server = next(row for row in MICRO_ARCHITECTURES if row.name == "intel-server")
    configs = [default_config(parse_problem(f"{LAYOUTS} {line}"), t) for t in (server.of(level), level)]
    assert [c.staged("stream") for c in configs] == [streamed, ()]


@pytest.mark.parametrize(
    ("line", "streamed"),
    [
        ("mb1ic144ih56oc24oh56kh1ph0", ("src",)),
        ("g96mb1ic96ih112oc96oh56kh3sh2ph1", ("src",)),
        ("mb1ic144ih28oc32oh28kh1ph0", ()),
    ],
)
def test_pixels_of_large_images_are_prefetched_where_that_pays(line: str, streamed: tuple[str, ...]) -> None:
    level = next(t for t in LEVELS if t.name == "avx512")
    server = next(row for row in MICRO_ARCHITECTURES if row.name == "intel-server")
    problem = parse_problem(f"--stag=abx --dtag=abx {line}")
    configs = [default_config(problem, t) for t in (server.of(level), level)]
    assert [c.staged("stream") for c in configs] == [streamed, ()]


@pytest.mark.parametrize(
    ("line", "fetched"),
    [
        ("mb1ic256ih56oc64oh56kh1ph0", ("src",)),
        ("--dt=bf16 mb4ic256ih56oc64oh56kh1ph0", ("src",)),
        ("--dir=BWD_D mb8ic256ih28oc512oh28kh1ph0", ("diff_dst",)),
        ("mb1ic256ih28oc64oh28kh1ph0", ()),
        ("mb1ic256ih56oc64oh56kh3ph1", ()),
        ("mb32ic16ih64oc64oh64kh1ph0", ("src",)),  # pixels of one line
        ("mb32ic15ih64oc64oh64kh1ph0", ()),
        ("--dir=BWD_W mb1ic256ih56oc64oh56kh1ph0", ("src",)),
        ("--dir=BWD_W mb1ic256ih28oc64oh28kh1ph0", ()),
    ],
)
def test_pixels_of_the_next_tile_are_fetched_where_that_pays(line: str, fetched: tuple[str, ...]) -> None:
    level = next(t for t in LEVELS if t.name == "avx512_bf16")
    zen5 = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5")
    configs = [default_config(parse_problem(f"{LAYOUTS} {line}"), t) for t in (zen5.of(level), level)]
    assert [c.staged("fetch") for c in configs] == [fetched, ()]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mb1ic64ih152oc64oh152kh1ph0", "--stream=src"),
        ("mb1ic512ih66oc6oh66kh1ph0", "--stream=src"),
        ("mb1ic512ih64oc6oh64kh1ph0", ""),  # channels 16 KiB apart evict each other's lines before they are read
        ("mb32ic16ih64oc64oh64kh1ph0", "--pack_at=src+oh_ow"),
        ("mb1ic256ih28oc64oh28kh1ph0", ""),
    ],
)
def test_large_sources_of_vectors_of_pixels_are_prefetched_rather_than_copied(line: str, words: str) -> None:
    level = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5").of(AMX)
    config = str(default_config(parse_problem(f"--stag=abx --dtag=abx {line}"), level))
    assert [x for x in config.split() if x.startswith(("--stream", "--pack_at"))] == ([words] if words else [])


@pytest.mark.parametrize(
    ("line", "threads", "streamed"),
    [
        ("--stag=axb --dtag=axb mb2ic64ih65oc384oh65kh1ph0", 2, ("src", "diff_dst")),
        ("--stag=axb --dtag=axb mb32ic64ih64oc16oh64kh1ph0", 1, ("diff_dst",)),  # tiles interleave and fetch the other
        ("--stag=abx --dtag=abx mb1ic128ih80oc512oh80kh1ph0", 2, ()),  # a stream for each channel
    ],
)
def test_large_factors_that_blocks_of_pixels_pack_are_prefetched(
    line: str, threads: int, streamed: tuple[str, ...]
) -> None:
    level = next(t for t in LEVELS if t.name == "avx512_bf16")
    zen5 = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5").of(level)
    problem = parse_problem(f"--dir=BWD_W --dt=bf16 {line}")
    configs = [default_config(problem, t, threads) for t in (zen5, level)]
    assert [c.staged("stream") for c in configs] == [streamed, ()] and configs[0].staged_at("pack_at")


def test_any_call_of_a_kernel_for_all_sizes_may_read_more_than_the_caches_hold() -> None:
    level = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5").of(AMX)
    problem = general(parse_problem(f"{LAYOUTS} mb1ic64ih8oc64oh8kh1ph0"))
    assert dynamic_config(problem, level).staged("fetch") == ("src",)
    assert dynamic_config(problem, AMX).staged("fetch") == ()
    problem = general(parse_problem("--stag=abx --dtag=abx mb1ic64ih8oc8oh8kh1ph0"))
    assert dynamic_config(problem, level).staged("stream") == ("src",)
    assert dynamic_config(problem, AMX).staged("stream") == ()


def test_tiles_are_rated_again_in_the_order_that_they_get() -> None:
    """Where weights stay and pixels pass, wide tiles read weights that the first-level cache cannot hold."""
    config = default_config(parse_problem(f"--dt=bf16 {LAYOUTS} mb1ic512ih28oc1024oh14kh1sh2ph0").canonical(), AMX)
    assert config.order == ("mb", "oc", "oh", "ow") and dict(config.tiles_at("register")) == {"ow": 14, "oc": 32}
