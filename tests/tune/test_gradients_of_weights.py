"""Default configs of gradients of the weights: blocks of pixels for the caches, and lanes along either side."""

from __future__ import annotations

from math import prod

import pytest

from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES, MicroArchitecture, named
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.product_shape import ProductShape
from convsmith.statement.views import statement
from convsmith.tune.candidates import default_config
from convsmith.tune.costs.copies import packed
from convsmith.tune.costs.expected import expected_terms
from convsmith.tune.costs.model import Model
from convsmith.tune.costs.tile_counts import ADDRESSES, rows_cross_blocks
from convsmith.tune.costs.traffic import TouchedArray, Traffic

TARGETS = {t.name: t for t in LEVELS}
LAST = "--stag=axb --wtag=axb --dtag=axb"
FIRST = "--stag=abx --dtag=abx"


def config_of(line: str, isa: str) -> Config:
    return default_config(parse_problem(f"--dir=BWD_W {line}"), TARGETS[isa])


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
@pytest.mark.parametrize(("src", "dst", "size"), [(512, 128, 80), (128, 128, 104), (64, 256, 56)])
def test_products_of_many_pixels_have_blocks_that_a_cache_holds(src: int, dst: int, size: int, isa: str) -> None:
    """Each tile of the weights reads all pixels, which are more than the cache holds; a few rows at a time it does."""
    config = config_of(f"{LAST} mb1ic{src}ih{size}oc{dst}oh{size}kh1ph0", isa)
    (block,) = config.tiles_at("cache")
    assert block[0] == "oh"
    assert block[1] * size * (src + dst) * 4 <= TARGETS[isa].l2.bytes


@pytest.mark.parametrize(
    ("line", "loops"),
    [
        (f"{LAST} mb32ic3ih224oc24oh112kh3sh2ph1", ["mb", "oh"]),
        (f"{LAST} mb32ic24ih32oc32oh32kh3ph1", ["mb"]),  # the second-level cache holds an image
        (f"{FIRST} mb32ic12ih128oc6oh128kh1ph0", ["mb"]),  # some rows of a channel are a small part of a page
    ],
)
def test_blocks_are_rows_of_one_image_if_caches_do_not_hold_images(line: str, loops: list[str]) -> None:
    config = config_of(line, "avx512")
    assert [n for n, _ in config.tiles_at("cache")] == loops


@pytest.mark.parametrize(
    ("cpu", "line", "loops"),
    [
        ("znver5", "mb1ic128ih152oc128oh152kh1ph0", []),
        ("znver5", "mb8ic512ih28oc128oh28kh1ph0", ["mb"]),
        ("znver5", "mb4ic64ih112oc64oh112kh3ph1", ["oh"]),  # taps read the pixels of a block again
        ("intel-server", "mb1ic128ih152oc128oh152kh1ph0", ["oh"]),  # its last cache is slow
    ],
)
def test_pixels_that_follow_each_other_in_blocks_of_channels_are_streamed(
    cpu: str, line: str, loops: list[str]
) -> None:
    """Blocks are of images at least, so that no row ends the streams of cache lines from the last cache."""
    problem = parse_problem(f"--dir=BWD_W --stag=aBx16b --dtag=aBx16b {line}")
    config = default_config(problem, named(cpu).of(TARGETS["avx512"]))
    assert [n for n, _ in config.tiles_at("cache")] == loops and not config.packed


@pytest.mark.parametrize(
    ("line", "tile", "fuse"),
    [
        ("mb1ic176ih28oc176oh28kh1ph0", {"oc": 16, "ic": 16}, (("mb", "oh"), ("mb_oh", "ow"))),
        ("mb32ic256ih17oc32oh17kh1ph0", {"oc": 16, "ic": 16}, (("oh", "ow"),)),
        ("mb1ic4ih64oc512oh64kh3ph1", {"kw": 3, "ic": 4, "oc": 32}, ()),
    ],
)
def test_pairs_of_pixels_are_packed_where_blocks_of_channels_are_vectors(
    line: str, tile: dict[str, int], fuse: tuple[tuple[str, str], ...]
) -> None:
    """Tiles have whole blocks of channels, and terms are adjacent pixels of one image."""
    level = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5").of(TARGETS["avx512_bf16"])
    config = default_config(parse_problem(f"--dir=BWD_W --dt=bf16 --stag=aBx16b --dtag=aBx16b {line}"), level)
    assert config.instruction and dict(config.tiles_at("register")) == tile
    assert config.staged("pack") == ("src", "diff_dst") and config.fuse == fuse


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
@pytest.mark.parametrize(("src", "dst", "size"), [(1024, 126, 10), (384, 255, 40)])
def test_channels_first_are_packed_on_the_side_whose_result_lies_beside(
    src: int, dst: int, size: int, isa: str
) -> None:
    """The input channels of 1x1 weights are neighbours in memory, and so are the results of a vector."""
    config = config_of(f"{FIRST} mb1ic{src}ih{size}oc{dst}oh{size}kh1ph0", isa)
    assert (config.lane, config.packed) == ("ic", {"src"})


def test_lanes_lie_within_blocks_of_the_channels_beside_each_other_in_the_result() -> None:
    """Lanes along the other channels would scatter each vector of a result of 3 MiB."""
    config = config_of("--stag=aBx16b --dtag=aBx16b mb1ic2048ih8oc384oh8kh1ph0", "avx512")
    assert (config.lane, config.staged("pack")) == ("ic", ())


def test_what_takes_less_time_than_a_call_is_not_packed() -> None:
    assert config_of(f"{FIRST} mb1ic16ih4iw16oc16oh4ow16kh1kw1ph0pw0", "avx512").staged("pack") == ()


@pytest.mark.parametrize(("channels", "blocks"), [(1024, True), (1056, False)])
def test_pixels_that_share_sets_of_a_cache_have_blocks(channels: int, blocks: bool) -> None:
    """A group of 32 channels of all pixels fits in the second cache, unless pixels lie 4 KiB apart."""
    config = config_of(f"{LAST} g32mb1ic{channels}ih28oc{channels}oh28kh3ph1", "avx512")
    assert bool(config.tiles_at("cache")) == blocks


@pytest.mark.parametrize(("channels", "packed"), [(2048, ("src", "diff_dst")), (1920, ())])
def test_pixels_in_few_sets_of_a_cache_are_packed(channels: int, packed: tuple[str, ...]) -> None:
    """Pixels of 2048 channels lie 8 KiB apart, so that a few channels of all pixels are in no cache for the next tile;
    packed, they lie side by side. Blocks serve where pixels spread over more sets.
    """
    assert config_of(f"{LAST} mb1ic{channels}ih14oc320oh14kh1ph0", "avx2").staged("pack") == packed


@pytest.mark.parametrize(
    "line",
    [
        "g1024mb1ic1024ih43oc1024oh37kh7ph0",
        "g512mb1ic512ih32oc512oh13kh7sh2ph0",
        "mb4ic1ih161iw700oc32oh79ow341kh5kw20sh2sw2ph0pw0",
    ],
)
def test_taps_of_a_tile_and_windows_have_no_copies_of_their_pixels(line: str) -> None:
    assert config_of(f"{LAST} {line}", "avx2").staged("pack") == ()


@pytest.mark.parametrize("images", [1, 4])
def test_blocks_have_rows_of_one_image(images: int) -> None:
    """A row of each of four images is more than the second-level cache holds."""
    config = config_of(f"{LAST} mb{images}ic24ih320iw512oc16oh320ow512kh1kw1ph0pw0", "avx2")
    *outer, (loop, rows) = config.tiles_at("cache")
    assert (loop, outer) == ("oh", [("mb", 1)] if images > 1 else [])
    assert rows * 512 * (24 + 16) * 4 <= TARGETS["avx2"].l2.bytes


def test_no_blocks_are_made_of_what_the_caches_hold() -> None:
    assert config_of(f"{LAST} mb1ic64ih14oc64oh14kh3ph1", "avx512").tiles_at("cache") == ()


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("line", ["mb8ic64ih56oc64oh56kh3ph1", "mb8ic3ih224oc64oh112kh7sh2ph3"])
def test_threads_share_blocks_of_the_result_around_those_of_pixels(line: str, threads: int) -> None:
    """Blocks of pixels alone leave all work to one thread, and tiles without them read all pixels from far memory."""
    problem = parse_problem(f"--dir=BWD_W {LAST} {line}")
    config = default_config(problem, TARGETS["avx512"], threads)
    sizes = {"oc": 64, "ic": problem.dims["ic"], "kh": problem.k[0], "kw": problem.k[1]}
    blocks = [tile for tile in config.tiles_at("cache") if tile[0] in sizes]
    pixels = config.tiles_at("cache")[len(blocks) :]
    assert pixels == default_config(problem, TARGETS["avx512"]).tiles_at("cache") != ()
    tasks = prod(-(-sizes[n] // size) for n, size in blocks)
    most = -(-tasks // threads) * prod(size / sizes[n] for n, size in blocks)
    assert most < 1.25 / threads


@pytest.mark.parametrize("line", ["mb1ic128ih112oc128oh112kh3ph1", "mb1ic256ih56oc256oh56kh3ph1"])
def test_taps_read_the_same_rows_before_the_next_ones(line: str) -> None:
    (block,) = config_of(f"{LAST} {line}", "avx512").tiles_at("cache")
    assert block[0] == "oh"


def test_memories_decide_between_lanes_of_equal_arithmetic() -> None:
    """With lanes along pixels, two rows of one side would meet all rows of the other: 17 MB."""
    assert config_of(f"{FIRST} mb1ic128ih32iw56oc38oh32ow56kh1kw1ph0pw0", "avx512").lane == "ic"


@pytest.mark.parametrize("line", ["mb4ic512ih32oc12oh32kh1ph0", "mb4ic256ih64oc12oh64kh1ph0"])
def test_the_rows_of_the_smaller_side_pass_while_those_of_the_larger_stay(line: str) -> None:
    """Eight rows of a side stay in a near cache, and two of the other pass: not all rows for each two."""
    order = config_of(f"{FIRST} {line}", "avx512").order
    assert order.index("ic") < order.index("oc")


@pytest.mark.parametrize(("src", "dst", "size"), [(512, 2048, 7), (192, 512, 20), (128, 512, 28)])
def test_weights_are_written_in_the_order_of_memory_unless_that_moves_much(src: int, dst: int, size: int) -> None:
    config = config_of(f"--stag=axb --dtag=axb mb1ic{src}ih{size}oc{dst}oh{size}kh1ph0", "avx512")
    assert (config.lane, config.order[0]) == ("ic", "oc")


@pytest.mark.parametrize(("groups", "size", "result", "stride"), [(256, 28, 28, 1), (960, 7, 7, 1), (48, 56, 28, 2)])
def test_all_taps_of_a_group_are_sums_of_one_tile(groups: int, size: int, result: int, stride: int) -> None:
    """Each pixel is then read once for all taps, and not once for each row of them."""
    line = f"{LAST} g{groups}mb1ic{groups}ih{size}oc{groups}oh{result}kh3sh{stride}ph1"
    tile = dict(config_of(line, "avx512").tiles_at("register"))
    assert (tile["kh"], tile["kw"]) == (3, 3)


@pytest.mark.parametrize(
    "line",
    [
        f"{FIRST} mb1ic192ih27oc64oh27kh1ph0",
        f"{LAST} mb1ic832ih14oc128oh14kh1ph0",
        f"{LAST} mb1ic448ih14oc896oh14kh1ph0",
        f"{LAST} mb1ic528ih14oc256oh14kh1ph0",
    ],
)
def test_tiles_of_equal_arithmetic_are_those_that_read_least(line: str) -> None:
    """Twice as many sums a tile halve what tiles read; tiles of one vector would load for every multiply-add."""
    config = config_of(line, "avx512")
    wide, high = (
        dict(config.tiles_at("register"))[config.lane],
        prod(size for n, size in config.tiles_at("register") if n != config.lane),
    )
    assert wide >= 32 and high * wide // 16 >= 24


def test_runs_of_neighbours_begin_with_a_line_that_nothing_fetched() -> None:
    """Channels of one line cost twice their bytes from far memory, those of eight lines an eighth more."""
    problem, level = parse_problem(f"--dir=BWD_W {LAST} mb1ic256ih80oc256oh80kh1ph0"), TARGETS["avx512"]
    st = statement(problem, level)
    source = Traffic(st, level).of(default_config(problem, level))[0]
    pixels = {"oh": 80, "ow": 80}
    shares = []
    for channels in (16, 128, 256):
        (near, far), _ = source.touched(pixels | {"ic": channels})
        shares.append(far / near)
    assert shares == [2, 1.125, 1]


@pytest.mark.parametrize(
    ("line", "tile"),
    [
        ("g240mb4ic240ih16oc240oh8kh3sh2ph1", {"kh": 3, "kw": 3}),
        ("g96mb1ic96ih56oc96oh56kh3ph1", {"kh": 3, "kw": 3}),
        ("g96mb1ic96ih56oc96oh28kh5sh2ph2", {"kw": 5}),
    ],
)
def test_pixels_two_apart_fill_the_lanes_of_a_group_of_few_channels(line: str, tile: dict[str, int]) -> None:
    """Groups as lanes would gather every pixel lane by lane, because their pixels lie far apart."""
    config = config_of(f"{FIRST} {line}", "avx512")
    assert (config.lane, config.staged("pack")) == ("ow", ()) and tile.items() <= dict(
        config.tiles_at("register")
    ).items()


@pytest.mark.parametrize(
    ("channels", "lane", "pack"), [(24, "oc", ("diff_dst",)), (68, "oc", ("diff_dst",)), (32, "ic", ())]
)
def test_vectors_of_groups_that_begin_within_a_block_are_packed(
    channels: int, lane: str, pack: tuple[str, ...]
) -> None:
    """Where a group begins is no constant, so that its vectors would be loaded lane by lane."""
    sizes = f"g8mb1ic{channels * 8}ih28oc{channels * 8}oh28kh1ph0"
    config = config_of(f"--stag=aBx16b --dtag=aBx16b {sizes}", "avx512")
    assert (config.lane, config.staged("pack")) == (lane, pack)


@pytest.mark.parametrize(("channels", "rows", "pages"), [(1024, 3, 84), (256, 4, 28), (2048, 1, 28), (512, 2, 28)])
def test_pages_of_pixels_whose_channels_lie_pages_apart(channels: int, rows: int, pages: int) -> None:
    """A vector of each of 28 pixels of some rows lies on as many pages as the rows, or on one of its own."""
    problem = parse_problem(f"--dir=BWD_W {LAST} g{channels}mb1ic{channels}ih28oc{channels}oh28kh1")
    st = statement(problem, TARGETS["avx512"])
    array = TouchedArray(st.b, False, TARGETS["avx512"])
    address = {(y * 28 + x) * channels * 4 // 4096 for y in range(rows) for x in range(28)}
    assert array.pages({"g": 16, "oh": rows, "ow": 28}) == pytest.approx(pages, rel=0.04)
    assert len(address) == pages


BLOCKED = "--dir=BWD_W --stag=aBx16b --dtag=aBx16b"


def test_columns_of_blocks_of_channels_share_sets_and_lie_on_pages_of_their_own() -> None:
    """The lines of a column of 4 rows of 32 images are 20 KiB apart: all of them fall into one set."""
    st = statement(parse_problem(f"{BLOCKED} mb32ic24ih4iw320oc64oh4ow320kh1kw1ph0pw0"), TARGETS["avx512"])
    array, column = TouchedArray(st.b, False, TARGETS["avx512"]), {"mb": 32, "oh": 4, "oc": 16}
    assert array.pages(column) == 32 * 4
    (bytes_near, _), (alone, _, in_conflict, _) = array.touched(column)
    assert bytes_near == alone == 32 * 4 * 64 and in_conflict == 64 * alone


@pytest.mark.parametrize("row", MICRO_ARCHITECTURES, ids=lambda row: row.name)
def test_blocks_of_pixels_of_blocked_layouts_are_no_columns(row: MicroArchitecture) -> None:
    problem = parse_problem(f"{BLOCKED} mb32ic24ih4iw320oc64oh4ow320kh1kw1ph0pw0")
    assert "ow" not in dict(default_config(problem, row.of(TARGETS["avx512"])).tiles_at("cache"))


@pytest.mark.parametrize(("rows", "cross"), [(14, True), (12, True), (8, False), (16, False), (32, False)])
def test_rows_cross_blocks_of_channels_unless_they_divide_each_other(rows: int, cross: bool) -> None:
    problem, target = parse_problem(f"{BLOCKED} mb32ic256ih7oc384oh7kh1ph0").canonical(), TARGETS["avx512"]
    st = statement(problem, target)
    config = Config.parse(f"--target=avx512 --lane=ic --register=oc:{rows},ic:32 --pack=")
    assert rows_cross_blocks(Model(problem, st, target, ProductShape.plain(st, target)), config) == cross
    assert default_config(problem, target).size("oc") <= ADDRESSES


@pytest.mark.parametrize("row", MICRO_ARCHITECTURES, ids=lambda row: row.name)
def test_blocks_of_pixels_touch_few_pages(row: MicroArchitecture) -> None:
    """One column of all rows of four images is small, but each of its pixels lies on another page."""
    problem = parse_problem(f"--dir=BWD_W {LAST} mb4ic24ih320iw512oc16kh1kw1")
    assert "ow" not in dict(default_config(problem, row.of(TARGETS["avx2"])).tiles_at("cache"))
    problem = parse_problem(f"--dir=BWD_W {LAST} g1056mb4ic1056ih30oc1056kh3ph1")
    (block,) = default_config(problem, row.of(TARGETS["avx512"])).tiles_at("cache")
    assert block[0] in ("mb", "oh")


def test_pairs_beside_borders_are_not_packed_in_vectors() -> None:
    """Pairs of pixels, one of which may be absent, are copied one by one, unless a padded copy has both."""
    problem = parse_problem(f"--dir=BWD_W {FIRST} --dt=bf16 mb1ic64ih56oc64oh56kh3ph1").canonical()
    target = TARGETS["avx512_bf16"]
    st = statement(problem, target)
    words = "--lane=ic --register=oc:8,ic:32 --instruction=vdpbf16ps_512 --k_step=ow:2 --pack=src,diff_dst"
    for realise, singly in (("mask", 1), ("pad_copy", 0)):
        config = Config.parse(f"--target=avx512_bf16 {words} --realise={realise}")
        model = Model(problem, st, target, ProductShape.of(st, target, config))
        events = [name for each in packed(model, config) for name, _ in each]
        assert events.count("lane_load") == singly
    assert {"src", "diff_dst"} == config_of(f"{FIRST} --dt=bf16 mb1ic64ih56oc64oh56kh3ph1", "avx512_bf16").packed


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("mb1ic32iw72448oc32ow72448kw7pw9dw2", "ow"),
        ("mb1ic1ih640iw1024oc16oh640ow1024kh7kw7ph3pw3", "oh"),
        ("mb1ic64ih14oc48oh14kh3ph1", ""),  # the second-level cache holds the packed source
        ("mb2048ic2ih10oc8oh8kh3ph0", ""),  # rows are short
    ],
)
def test_taps_of_long_rows_are_packed_in_blocks(line: str, place: str) -> None:
    """Packing for each tap writes a source several times; blocks stay in a cache until all tiles have read them."""
    config = config_of(f"{FIRST} --dt=bf16 {line}", "avx512_bf16")
    assert dict(config.staged_at("pack_at")) == ({"src": place, "diff_dst": place} if place else {})
    if place:
        ((block, size),) = config.tiles_at("cache")
        problem = parse_problem(f"--dir=BWD_W {FIRST} {line}")
        extents = statement(problem).extents
        pixels = prod(size if n == block else extents.get(n, 1) for n in ("mb", "oh", "ow"))
        held = pixels * (extents["kw"] * extents["ic"] + extents["oc"]) * 2
        assert block == place and held <= TARGETS["avx512_bf16"].l2.bytes


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("sizes", "blocks"),
    [
        ("mb8ic128ih38oc256oh38kh1ph0", (("mb", 1), ("oh_ow", 482))),  # 0.72 of the time of packing both factors before
        ("mb32ic72ih4iw320oc24oh4ow320kh1kw1ph0pw0", (("mb", 2),)),  # 0.74
        ("mb1ic384ih80oc192oh80kh1ph0", (("mb_oh_ow", 454),)),  # 0.86
        ("mb8ic32ih14oc64oh14kh1ph0", ()),  # the second-level cache holds the factors
    ],
)
def test_factors_of_pointwise_weights_in_channels_first_are_packed_in_blocks_of_images(
    sizes: str, blocks: tuple[tuple[str, int], ...]
) -> None:
    """Packing before the products writes both factors to memory, and blocks of a few pixels load sums too often."""
    config = config_of(f"{FIRST} --dt=bf16 {sizes}", "avx512_bf16")
    place = blocks[-1][0] if blocks else ""
    assert dict(config.staged_at("pack_at")) == ({"src": place} if place else {})
    assert config.tiles_at("cache") == blocks


@pytest.mark.parametrize(
    ("sizes", "packed", "block"),
    [
        ("mb2ic64ih65oc384oh65kh1ph0", "src", 584),  # vectors of the other factor are interleaved
        ("mb2ic528id16ih14iw14oc32od16oh14ow14kd1kh1kw1pd0ph0pw0", "diff_dst", 468),
        ("mb1ic64ih28oc64oh28kh1ph0", "", 0),  # the second-level cache holds the factors
        ("mb32ic64ih64oc16oh64kh1ph0", "diff_dst", 3276),
    ],
)
def test_factors_of_pointwise_weights_are_packed_in_blocks_beyond_caches(sizes: str, packed: str, block: int) -> None:
    line = f"--dir=BWD_W --dt=bf16 --stag=axb --wtag=axb --dtag=axb {sizes}"
    level = next(level for level in LEVELS if level.name == "avx512_bf16")
    machine = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5").of(level)
    config = default_config(parse_problem(line), machine)
    pixels = config.reduce[-1]
    assert dict(config.staged_at("pack_at")) == ({packed: pixels} if packed else {})
    if block:
        assert config.tiles_at("cache") == ((pixels, block),)


@pytest.mark.parametrize(
    ("line", "packed", "cache"),
    [
        ("mb1ic64ih256iw512oc64oh256ow512kh1kw1ph0pw0", "src", (("oh", 4),)),  # 0.49 of the time of packing before
        ("mb1ic32ih147oc64oh147kh3ph1", "diff_dst", (("oh", 17),)),  # 0.51 of the time of lanes along pixels
        ("--dt=f64 mb8ic3ih224oc128oh56kh4sh4ph0", "diff_dst", (("mb", 1), ("oh", 12))),  # 0.52
        ("mb1ic128ih28oc128oh28kh1ph0", "", ()),  # the second-level cache keeps both factors
    ],
)
def test_vectors_of_channels_that_lie_apart_are_packed_in_blocks(
    line: str, packed: str, cache: tuple[tuple[str, int], ...]
) -> None:
    """Packing before the products writes the factor to memory and reads it again."""
    machine = next(row for row in MICRO_ARCHITECTURES if row.name == "intel-server").of(TARGETS["avx512"])
    config = default_config(parse_problem(f"--dir=BWD_W {FIRST} {line}"), machine)
    assert config.staged_at("pack_at") == (((packed, cache[-1][0]),) if packed else ())
    assert config.staged("pack") == (() if packed else ("src",))
    if packed:
        assert config.tiles_at("cache") == cache


def test_threads_pack_blocks_of_their_own_vectors() -> None:
    """Each of two threads has two of four vectors; three vectors would leave one thread half of the time idle."""
    machine = next(row for row in MICRO_ARCHITECTURES if row.name == "intel-server").of(TARGETS["avx512"])
    lines = (f"--dir=BWD_W {FIRST} mb1ic{channels}ih256iw512oc64oh256ow512kh1kw1ph0pw0" for channels in (64, 48))
    shared, uneven = (default_config(parse_problem(line), machine, 2) for line in lines)
    (lane, size), *blocks = shared.tiles_at("cache")
    assert (lane, size) == (shared.lane, 32) and shared.staged_at("pack_at") == (("src", blocks[-1][0]),)
    assert uneven.lane != "ic" or not uneven.staged_at("pack_at")


def test_tiles_wait_in_the_first_pass_over_a_factor_from_memory() -> None:
    """Wide tiles pass once, and each line of the shared factor serves more products."""
    machine = next(row for row in MICRO_ARCHITECTURES if row.name == "intel-server").of(TARGETS["avx512"])
    problem = parse_problem(f"--dir=BWD_W {FIRST} mb32ic64ih28oc192oh28kh1ph0")
    wide, narrow = (
        expected_terms(problem, Config.parse(
            f"--target=avx512 --lane=ic --register={tile} --order=oc,kh,kw,ic --reduce=mb,oh,ow --cache=mb:1 --pack= "
            "--pack_at=src+mb"
        ), machine) for tile in ("oc:6,ic:64", "oc:14,ic:32")
    )  # fmt: skip
    assert 0 < 4 * wide["far memory"] < narrow["far memory"] and sum(wide.values()) < sum(narrow.values())


@pytest.mark.parametrize(("line", "threads", "split"), [
    ("mb1ic4ih360iw640oc36oh360ow640kh3kw3ph1pw1", 1, ()),
    ("mb1ic4ih360iw640oc36oh360ow640kh3kw3ph1pw1", 2, (("oh", 2),)),
    ("mb8ic4ih160iw160oc24oh160ow160kh3kw3ph1pw1", 2, (("mb", 2),)),
    ("mb4ic3ih360iw720oc8oh180ow360kh3kw3sh2sw2ph1pw1", 2, (("mb", 2),)),
])  # fmt: skip
def test_few_channels_of_several_taps_are_packed_in_blocks(
    line: str, threads: int, split: tuple[tuple[str, int], ...]
) -> None:
    """Vectors join the channels of adjacent taps; each thread packs blocks of its own pixels."""
    problem = parse_problem(f"--dir=BWD_W {LAST} --dt=bf16 {line}")
    config = default_config(problem, TARGETS["avx512_bf16"], threads)
    assert dict(config.staged_at("pack_at")) == {"src": "oh", "diff_dst": "oh"}
    assert config.tiles_at("split") == split
    *parts, (name, size) = config.tiles_at("cache")
    assert parts == ([("part", 1)] if split else [])
    assert name == "oh" and not statement(problem).extents["oh"] // dict(split).get("oh", 1) % size


@pytest.mark.parametrize(("line", "split"), [
    ("mb8ic4ih112iw112oc16oh112ow112kh3kw3ph1pw1", "mb"), ("mb1ic4ih224iw224oc16oh224ow224kh3kw3ph1pw1", "oh")
])  # fmt: skip
def test_threads_share_the_outermost_loop_that_they_divide_equally(line: str, split: str) -> None:
    config = default_config(parse_problem(f"--dir=BWD_W {LAST} {line}"), TARGETS["avx512"], 2)
    assert config.tiles_at("split") == ((split, 2),)


@pytest.mark.parametrize(("sizes", "split", "cache"), [
    ("mb32ic80ih14oc184oh14kh1ph0", "mb", (("mb", 2),)),
    ("mb32ic64ih64oc16oh64kh1ph0", "mb", (("mb", 1), ("oh_ow", 1366))),  # an image exceeds a block
    ("mb1ic24ih56oc68oh56kh1ph0", "oh", (("oh", 14),)),
])  # fmt: skip
def test_threads_pack_blocks_of_pixels_of_pointwise_weights(
    sizes: str, split: str, cache: tuple[tuple[str, int], ...]
) -> None:
    """Of the fused loops over pixels, those within the loop that threads divide stay fused."""
    problem = parse_problem(f"--dir=BWD_W {LAST} --dt=bf16 {sizes}")
    config = default_config(problem, TARGETS["avx512_bf16"], 2)
    place = cache[-1][0]
    assert dict(config.staged_at("pack_at")) == {"src": place, "diff_dst": place}
    assert config.tiles_at("split") == ((split, 2),)
    assert config.tiles_at("cache") == (("part", 1), *cache)


@pytest.mark.parametrize(("sizes", "steps"), [
    ("--dt=bf16 g8mb1ic8ih368oc8oh368kh3ph1", (("ow", 4),)),
    ("--dt=f16 g64mb1ic64ih41oc64oh35kh7ph0", (("ow", 4),)),
    ("g8mb1ic8ih368oc8oh368kh3ph1", ()),  # a multiply-add loads an element of f32
    ("--dt=bf16 g128mb32ic128ih28oc128oh28kh1ph0", ()),  # an element has one tap
    ("--dt=bf16 g64mb1ic64ih41iw3oc64oh35ow3kh7kw1ph0pw0", ()),  # taps of another axis, and few pixels
])  # fmt: skip
@pytest.mark.parametrize("threads", [1, 2])
def test_taps_of_groups_share_elements_that_are_converted(
    sizes: str, steps: tuple[tuple[str, int], ...], threads: int
) -> None:
    problem = parse_problem(f"--dir=BWD_W {LAST} {sizes}")
    config = default_config(problem, TARGETS["avx512_bf16"], threads)
    assert config.lane == "g" and config.tiles_at("k_step") == steps


@pytest.mark.parametrize("sizes", ["g576mb16ic576ih14oc576oh7kh3sh2ph1", "g960mb16ic960ih7oc960oh7kh5ph2"])
def test_rows_of_few_pixels_are_vectors_where_groups_are_apart(sizes: str) -> None:
    """Vectors of groups would be gathered: 3.9 and 1.4 times the time on Zen 5."""
    assert default_config(parse_problem(f"--dir=BWD_W {FIRST} {sizes}"), TARGETS["avx512"]).lane == "ow"


@pytest.mark.parametrize(
    ("line", "packed"),
    [("mb1ic128ih56oc16oh56kh1ph0", ["diff_dst"]), ("mb14ic16ih160iw256oc24oh160ow256kh1kw1", ["diff_dst", "src"])],
    ids=["near", "in-memory"],
)
def test_factors_in_memory_that_tiles_cannot_fetch_are_packed(line: str, packed: list[str]) -> None:
    """Pixels of 16 channels are half a line each, of which no tile fetches the next block."""
    zen5 = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5").of(TARGETS["avx512_bf16"])
    config = default_config(parse_problem(f"--dir=BWD_W --dt=bf16 {LAST} {line}"), zen5)
    assert sorted(config.packed) == packed


@pytest.mark.parametrize("pixels", [3, 4, 5, 8])
def test_pixels_of_a_register_tile_do_not_step_as_well(pixels: int) -> None:
    """Depthwise gradients convert shared elements once in steps of several pixels, unless a tile has these pixels."""
    line = f"g272mb1ic272ih{2 * pixels - 1}oc272oh{pixels}kh3sh2ph1"
    for dt, level in (("bf16", "avx512_bf16"), ("f16", "avx512")):
        config = config_of(f"{LAST} --dt={dt} {line}", level)
        assert not dict(config.tiles_at("k_step")).keys() & dict(config.tiles_at("register")).keys()
