"""Tiles of rows and columns share the loads of a 3x3 window, and fetch the rows between them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from convsmith.ir.index import Index, Var
from convsmith.machine.base import Machine
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES, MicroArchitecture
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import Conv, parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops, loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.statement.views import statement
from convsmith.tune.candidates import default_config
from convsmith.tune.costs.far_lines import copied_lines_of_memory, lines_of_memory
from convsmith.tune.costs.model import Model
from convsmith.tune.costs.traffic import MovedBytes, Traffic
from convsmith.tune.costs.windows import (
    elements_at_a_border,
    first_reads,
    first_reads_of_pixels,
    live_vectors,
    weights_fit,
)
from convsmith.tune.register_tiles import fitting, gradients_of_taps, rows_of_vectors, windows

AVX2 = next(t for t in LEVELS if t.name == "avx2")
AVX512 = next(t for t in LEVELS if t.name == "avx512")

CHANNELS, WIDTH = 64, 30
LOOPS = Loops(
    {"mb": 1, "g": CHANNELS, "oh": 28, "ow": 28, "kh": 3, "kw": 3},
    {"mb": "m", "g": "batch", "oh": "m", "ow": "m", "kh": "k", "kw": "k"},
    {"mb": "", "g": "", "oh": "h", "ow": "w", "kh": "h", "kw": "w"},
    {},
    {name: (name,) for name in ("mb", "g", "oh", "ow", "kh", "kw")},
)
TAPS = {"kh": 3, "kw": 3}


def steps(stride: int) -> dict[Index, int]:
    """Elements of an image, channels last, along each loop."""
    row, column = WIDTH * CHANNELS, CHANNELS
    return {Var("oh"): row * stride, Var("ow"): column * stride, Var("kh"): row, Var("kw"): column, Var("g"): 1}


@pytest.mark.parametrize(
    ("stride", "rows", "columns", "elements", "live", "held"),
    [(1, 2, 2, 16, 13, 17), (1, 4, 2, 24, 25, 21), (1, 1, 4, 18, 11, 19), (2, 2, 2, 25, 15, 18), (2, 1, 3, 21, 11, 19)],
)
def test_what_is_read_is_counted_once(
    stride: int, rows: int, columns: int, elements: int, live: int, held: int
) -> None:
    """``elements`` of the image lie under the tile. Its code keeps ``live`` vectors, or ``held`` ones with weights."""
    tile, reads = {"oh": rows, "ow": columns, "g": 16, **TAPS}, rows * columns * 9
    assert first_reads(LOOPS, tile, steps(stride), "g") == pytest.approx(elements / reads)
    assert [live_vectors(LOOPS, tile, 1, steps(stride), is_held) for is_held in (False, True)] == [live, held]


@pytest.mark.parametrize(
    ("size", "is_blocked"), [("g576mb1ic576ih14oc576oh14", True), ("g32mb1ic32ih14oc32oh14", False)]
)
def test_blocks_of_channels_keep_the_rows_of_a_window_near(size: str, is_blocked: bool) -> None:
    """Three rows of 14 pixels and 576 channels exceed the first-level cache; of 32 channels, it holds all."""
    config = default_config(parse_problem(f"--stag=axb --dtag=axb {size}kh3ph1"), AVX2)
    assert bool(config.tiles_at("cache")) is is_blocked and not config.staged("resident")
    if is_blocked:
        ((loop, channels),) = config.tiles_at("cache")
        assert loop == "g" and channels * 4 % AVX2.l1.line == 0 and 3 * 14 * channels * 4 <= AVX2.l1.bytes


def test_a_tile_that_registers_do_not_hold_costs_more() -> None:
    """Eight sums and the elements of six rows that later taps read again exceed 16 registers."""
    problem = parse_problem("--stag=axb --dtag=axb g64mb1ic64ih14oc64oh14kh3ph1")
    st = statement(problem, AVX2)
    tile = (("oh", 4), ("ow", 2), ("g", 8), ("kh", 3), ("kw", 3))
    config = Config("avx2", "g", register=tile, order=("mb", "oh", "ow", "g", "oc"), reduce=("ic", "kh", "kw"))
    cycles = []
    for spill in (0.0, AVX2.costs.spill):
        level = replace(AVX2, costs=replace(AVX2.costs, spill=spill))
        model = Model(problem, st, level, ProductShape.plain(st, level))
        cycles.append(model.cycles(loops_after_fusing(st, config), config))
    assert cycles[0] < cycles[1]


def test_weights_of_two_vectors_fit_beside_four_pixels() -> None:
    four, eight = ({"oh": 2, "ow": n, "g": 32, **TAPS} for n in (2, 4))
    assert weights_fit(LOOPS, four, 2, 32, steps(1)) and not weights_fit(LOOPS, four, 2, 29, steps(1))
    assert not weights_fit(LOOPS, eight, 2, 32, steps(1)) and weights_fit(LOOPS, eight, 1, 32, steps(1))
    assert not weights_fit(LOOPS, {"oh": 2, "ow": 2, "g": 16}, 1, 32, steps(1))


def test_tiles_fit_the_registers_and_the_image() -> None:
    family = list(windows(LOOPS, "g", 16, steps(1)))
    tiles = list(fitting(family, LOOPS, "g", 16, 32))
    assert {"oh": 4, "ow": 2, "g": 16, **TAPS} in tiles and {"oh": 2, "ow": 2, "g": 32, **TAPS} in tiles
    assert all(t["oh"] * t["ow"] * t["g"] // 16 < 32 and t["g"] <= CHANNELS for t in tiles)
    assert not list(fitting(family, LOOPS, "g", 16, 4))


def row_tiles(loops: Loops) -> list[dict[str, int]]:
    return list(fitting(rows_of_vectors(loops, "ow", 16, "oc", 32), loops, "ow", 16, 32))


def test_images_without_rows_have_tiles_of_some_taps() -> None:
    """A part of the taps that divides them is unrolled, if there are few such parts."""
    for taps, run in ((33, 11), (9, 9), (31, 0), (87, 0)):
        kinds, axes = {"oc": "n", "ow": "m", "kw": "k"}, {"oc": "", "ow": "w", "kw": "w"}
        loops = replace(LOOPS, extents={"oc": 1, "ow": 360, "kw": taps}, kinds=kinds, axes=axes)
        tiles = row_tiles(loops)
        assert {t["kw"] for t in tiles} == ({run} if run else set())
        assert max([t["ow"] for t in tiles], default=128) == 128


def test_vectors_of_pixels_stay_in_registers_with_their_sums() -> None:
    rows_of_channels = {"oc": 1, **LOOPS.extents}
    loops = replace(LOOPS, extents=rows_of_channels, kinds={"oc": "n", **LOOPS.kinds}, axes={"oc": "", **LOOPS.axes})
    tiles = row_tiles(loops)
    assert {"oc": 1, "oh": 14, "ow": 16, "kh": 3} in tiles and {"oc": 1, "oh": 7, "ow": 32} in tiles
    assert all(t["oh"] * t["ow"] // 16 + t["ow"] // 16 < 32 and t["oh"] <= 28 and t["ow"] <= 32 for t in tiles)
    loops = replace(loops, extents={**rows_of_channels, "oc": 8})
    assert {t["oh"] for t in row_tiles(loops)} == {2, 3}
    assert not row_tiles(replace(loops, extents={**rows_of_channels, "oc": 16}))


def test_vectors_along_pixels_are_loaded_for_each_tap() -> None:
    tile = {"oh": 2, "ow": 16, **TAPS}
    assert first_reads(LOOPS, tile, steps(1), "ow") == pytest.approx(4 / 6)


@pytest.mark.parametrize(("by", "elements"), [(1, 16), (-1, 16), (0, 36), (2, 36)])
def test_taps_may_step_back_and_may_share_nothing(by: int, elements: int) -> None:
    """As those of a gradient do: backwards, and by less than a pixel or by a division."""
    along = {Var("oh"): 3, Var("ow"): 3, Var("kh"): by * 3, Var("kw"): by * 3}
    tile = {"oh": 2, "ow": 2, "g": 16, **TAPS}
    assert first_reads(LOOPS, tile, along, "g") == pytest.approx(elements / 36)


def gradient_loops(taps: int) -> Loops:
    """Loops of a gradient of the weights: taps are those of its result, and pixels those of its sums.

    The channel of a group is the innermost loop of the result.
    """
    kinds = {"mb": "k", "g": "batch", "oh": "k", "ow": "k", "kh": "m", "kw": "m", "ic": "m"}
    extents, axes = {**LOOPS.extents, "kh": taps, "kw": taps, "ic": 1}, {**LOOPS.axes, "ic": ""}
    return replace(LOOPS, extents=extents, kinds=kinds, axes=axes)


@pytest.mark.parametrize(("taps", "pixels", "stride", "elements"), [(3, 4, 1, 6), (7, 4, 1, 10), (5, 4, 2, 11)])
def test_pixels_of_a_gradient_share_the_elements_of_their_taps(
    taps: int, pixels: int, stride: int, elements: int
) -> None:
    loops, tile = gradient_loops(taps), {"kh": taps, "kw": taps, "g": 16}
    read = first_reads_of_pixels(loops, tile, (("ow", pixels),), steps(stride))
    assert read == pytest.approx(elements / (taps * pixels))


@pytest.mark.parametrize(("taps", "vectors"), [(3, [1, 2]), (5, [1]), (7, [])])
def test_tiles_of_all_taps_fit_the_registers(taps: int, vectors: list[int]) -> None:
    loops = gradient_loops(taps)
    tiles = list(fitting(gradients_of_taps(loops, "g", 16), loops, "g", 16, 32))
    assert tiles == [{"kh": taps, "kw": taps, "g": 16 * v} for v in vectors]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("images", [1, 4, 16])
@pytest.mark.parametrize("size", ["g1056mb{}ic1056ih30oc1056", "g144mb{}ic144ih104oc144", "g32mb{}ic32ih112oc32"])
@pytest.mark.parametrize("row", MICRO_ARCHITECTURES, ids=lambda row: row.name)
def test_gradients_of_a_window_read_large_images_once_for_all_taps(
    row: MicroArchitecture, size: str, images: int
) -> None:
    """Vectors of two lines of a pixel have all taps, whatever memory holds the images."""
    line = f"--dir=BWD_W --stag=axb --wtag=axb --dtag=axb {size.format(images)}kh3ph1"
    config = default_config(parse_problem(line), row.of(AVX512))
    assert (config.size("kh"), config.size("kw")) == (3, 3) and config.size("g") in (16, 32)


@pytest.mark.parametrize(
    "line",
    ["g192mb1ic192ih28oc192oh14kh3sh2ph1", "g576mb1ic576ih14oc576oh7kh3sh2ph1", "g144mb1ic144ih56oc144oh56kh3ph1"],
)
def test_taps_are_unrolled_where_sixteen_registers_hold_few_sums(line: str) -> None:
    """The next tile begins while the last products of a straight line are under way: four sums hide their latency."""
    config = default_config(parse_problem(f"--stag=axb --dtag=axb {line}"), AVX2)
    assert (config.size("kh"), config.size("kw")) == (3, 3)


@pytest.mark.parametrize("line", ["g96mb1ic96ih112oc96oh56", "g192mb1ic192ih28oc192oh14", "g576mb1ic576ih14oc576oh7"])
def test_taps_along_pixels_of_a_stride_are_unrolled_where_they_share_vectors(line: str) -> None:
    config = default_config(parse_problem(f"--stag=abx --dtag=abx {line}kh3sh2ph1"), AVX512)
    assert config.lane == "ow" and config.size("kw") == 3


@pytest.mark.parametrize(("pixels", "ratio"), [(14, 1 / 3), (16, 2 / 3), (28, 2 / 3)])
def test_neighbouring_taps_read_the_vectors_of_pixels_of_a_stride(pixels: int, ratio: float) -> None:
    """Two vectors of 16 lanes hold 14 pixels of any of three taps, but 16 pixels of two taps only."""
    problem = parse_problem(f"--stag=abx --dtag=abx g32mb1ic32ih{2 * pixels}oc32oh{pixels}kh3sh2ph1")
    st = statement(problem, AVX512)
    model, loops = Model(problem, st, AVX512, ProductShape.plain(st, AVX512)), loops_after_fusing(st, Config("", "ow"))
    assert model.gathers_of_taps(loops, {"oh": 2, "ow": 16, "kw": 3}, "ow") == pytest.approx(ratio)
    assert model.gathers_of_taps(loops, {"oh": 2, "ow": 16}, "ow") == 1


def test_taps_of_several_channels_share_no_vectors() -> None:
    config = default_config(parse_problem("--stag=abx --dtag=abx g32mb1ic128ih28oc128oh14kh3sh2ph1"), AVX512)
    assert config.lane == "ow" and config.size("kw") == 1


@pytest.mark.sampled(6)
@pytest.mark.parametrize("row", MICRO_ARCHITECTURES, ids=lambda row: row.name)
@pytest.mark.parametrize("level", [AVX2, AVX512], ids=lambda level: level.name)
@pytest.mark.parametrize(
    "line",
    [
        "--deconv {} g1024mb1ic1024ih20oc1024oh43kh5sh2ph0",
        "--deconv {} g512mb1ic512ih21oc512oh43kh7sh2ph2",
        "{} g1024mb1ic1024ih15oc1024kh11ph5",
        "{} g512mb1ic512ih41oc512kh7ph0",
        "{} g512mb1ic512ih41oc512oh21kh7sh2ph3",
    ],
)
def test_windows_whose_pixels_share_sets_of_a_cache_read_whole_lines(
    line: str, level: Machine, row: MicroArchitecture
) -> None:
    """Pixels of 512 or 1024 channels lie multiples of 2 KiB apart: each tap reads them from the second cache."""
    config = default_config(parse_problem(line.format("--stag=axb --dtag=axb")), row.of(level))
    columns, is_blocked = config.size("ow"), bool(config.tiles_at("cache"))
    assert config.size("g") * 4 > level.l1.line or is_blocked
    assert columns <= level.l1.ways + 1 or is_blocked or config.size("kw") == 1


@pytest.mark.parametrize("row", [x for x in MICRO_ARCHITECTURES if x.name != "intel-server"], ids=lambda row: row.name)
@pytest.mark.parametrize("line", ["g144mb1ic144ih56oc144oh56kh3ph1", "g96mb1ic96ih112oc96oh56kh3sh2ph1"])
def test_windows_that_a_cache_holds_read_one_vector_of_a_pixel(line: str, row: MicroArchitecture) -> None:
    """On Intel servers, where vectors beyond the registers cost less, two vectors take 0.9 of the time."""
    assert default_config(parse_problem(f"--stag=axb --dtag=axb {line}"), row.of(AVX2)).size("g") == 8


@pytest.mark.sampled(4)
@pytest.mark.parametrize("channels", [96, 144, 512, 768, 1024])
@pytest.mark.parametrize("sizes", ["ih20oh43kh5sh2ph0", "ih28oh28kh3sh1ph1", "ih28oh28kh7sh1ph3", "ih9oh19kh3sh2ph0"])
@pytest.mark.parametrize("pixels", [1, 4, 12])
def test_pixels_of_a_window_evict_each_other_if_a_set_of_the_cache_has_too_few_ways(
    channels: int, sizes: str, pixels: int
) -> None:
    problem = parse_problem(f"--deconv --stag=axb --dtag=axb g{channels}mb1ic{channels}oc{channels}{sizes}")
    assert isinstance(problem, Conv)
    st = statement(problem, AVX512)
    model = Model(problem, st, AVX512, ProductShape.plain(st, AVX512))
    loops = loops_after_fusing(st, Config("avx512", "g"))
    stride, taps, row = problem.s[1], problem.k[1], problem.i[1] * channels * 4
    columns = pixels + -(-taps // stride) - 1
    rows = -(-problem.k[0] // problem.s[0])
    sets = Counter((y * row + x * channels * 4) // 64 % 64 for y in range(rows) for x in range(columns))
    fits = columns * rows * 64 <= AVX512.l1.bytes
    assert model.evicts(loops, {"ow": pixels, "g": 16}) == (not fits or max(sets.values()) > AVX512.l1.ways)


@pytest.mark.parametrize(("channels", "are_evicted"), [(1024, True), (960, False)])
def test_runs_of_pixels_that_fall_into_few_sets_move_again(channels: int, are_evicted: bool) -> None:
    """Pixels of 1024 channels are 4 KiB apart. A block of six lines moves again in runs of six, a vector in single
    lines.
    """
    problem = parse_problem(f"--stag=axb --dtag=axb g{channels}mb1ic{channels}ih7oc{channels}oh7kh3ph1")
    st = statement(problem, AVX512)
    model = Model(problem, st, AVX512, ProductShape.plain(st, AVX512))
    tile = (("oh", 2), ("ow", 2), ("g", 16), ("kh", 3), ("kw", 3))
    base = Config("avx512", "g", register=tile, order=("mb", "oh", "ow", "g", "oc"), reduce=("ic", "kh", "kw"))
    runs = []
    for config in (base.changed(order=("mb", "g", "oc", "oh", "ow")), base.changed(cache=(("g", 96),))):
        (events,) = dict(model.lines_of_windows(loops_after_fusing(st, config), config).causes).values()
        runs.append(dict(events)["exposed_evicted_run"])
    assert all(x > 0 for x in runs) is are_evicted and (not are_evicted or runs[0] > 3 * runs[1])


STREAMS = dict(register=(("oh", 1), ("ow", 4), ("g", 8), ("kh", 5), ("kw", 5)), reduce=("ic", "kh", "kw"))
FEW_STREAMS = dict(register=(("oh", 1), ("ow", 2), ("g", 8), ("kh", 3), ("kw", 3)), reduce=("ic", "kh", "kw"))
LOOP_OVER_TAPS = dict(register=(("ow", 5), ("g", 16)), reduce=("kh", "kw", "ic"))
FROM_MEMORY, SMALL_WINDOW = "mb128ic816ih23oc816oh10kh5sh2", "mb128ic816ih23oc816oh21kh3"


@pytest.mark.parametrize(
    ("sizes", "block", "decisions", "events"),
    [
        (FROM_MEMORY, 0, STREAMS, {"memory_line", "memory_part"}),  # 5 x 11 pixels
        (FROM_MEMORY, 192, STREAMS, {"memory_line", "memory_part", "memory_run"}),
        (FROM_MEMORY, 0, LOOP_OVER_TAPS, set()),
        (FROM_MEMORY, 192, LOOP_OVER_TAPS, {"memory_run"}),
        (SMALL_WINDOW, 0, FEW_STREAMS, set()),
        (FROM_MEMORY.replace("mb128", "mb16"), 192, STREAMS, set()),  # 8 MiB, which the last cache holds
    ],
)
def test_windows_wait_for_lines_from_memory_of_more_streams_than_are_followed(
    sizes: str, block: int, decisions: dict[str, object], events: set[str]
) -> None:
    """On Zen 5 these windows of bytes take 17, 34, 10 and 13 ms from memory, in this order; loops hide the wait."""
    problem = parse_problem(f"--dt=u8:s8:s32 --stag=axb --dtag=axb g816{sizes}")
    st = statement(problem, AVX2)
    model = Model(problem, st, AVX2, ProductShape.plain(st, AVX2))
    cache = {"cache": (("g", block),)} if block else {}
    config = Config("avx2", "g", order=("mb", "oh", "ow", "g", "oc"), **decisions, **cache)
    found = dict(lines_of_memory(model, loops_after_fusing(st, config), config))
    lines = 128 * 816 * 23 * 23 / 64
    parts = {"memory_line": 1.0, "memory_part": 1 - 8 / 64, "memory_run": 64 / 192}
    assert found == pytest.approx({name: lines * parts[name] for name in events})


@pytest.mark.parametrize(
    ("line", "realise", "is_late"),
    [
        ("--stag=abx --dtag=abx mb32ic256ih28oc256oh28kh3ph1", "pad_copy", True),
        ("--stag=abx --dtag=abx mb32ic256ih28oc256oh28kh3ph1", "peel", False),  # nothing is copied
        ("--stag=axb --dtag=axb mb32ic256ih28oc256oh28kh3ph1", "pad_copy", False),  # rows follow each other
        ("--stag=abx --dtag=abx mb1ic256ih28oc256oh28kh3ph1", "pad_copy", False),  # caches keep the image
    ],
)
def test_copies_wait_for_lines_from_memory_of_channels_that_lie_apart(line: str, realise: str, is_late: bool) -> None:
    problem = parse_problem(line)
    st = statement(problem, AVX512)
    model = Model(problem, st, AVX512, ProductShape.plain(st, AVX512))
    config = Config("avx512", "oc", register=(("ow", 14), ("oc", 32)), order=("mb", "oc", "oh", "ow"), realise=realise)
    found = dict(copied_lines_of_memory(model, config))
    assert found == ({"memory_line": 32 * 256 * 28 * 28 * 4 / 64} if is_late else {})


@pytest.mark.parametrize("level", [AVX2, AVX512], ids=["avx2", "avx512"])
def test_lines_are_counted_where_a_bound_permits_the_fastest_config(
    level: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = parse_problem("--stag=axb --dtag=axb g384mb1ic384ih14oc384oh14kh3ph1")
    traced: list[Config] = []
    original = Traffic.moved

    def moved(self: Traffic, loops: Loops, config: Config) -> MovedBytes:
        traced.append(config)
        return original(self, loops, config)

    monkeypatch.setattr(Traffic, "moved", moved)
    chosen = default_config(problem, level)
    few = len(traced)
    monkeypatch.setattr(Model, "least", lambda self, loops, config: 0.0)
    traced.clear()
    assert default_config(problem, level) == chosen and few < len(traced) / 2


@pytest.mark.parametrize(
    ("sizes", "pixels", "taps", "elements"),
    [
        ("ih28oh28kh7ph3", 14, 3, 13),  # the three taps before the first pixel read 11, 12 and 13 pixels
        ("ih28oh28kh7ph3", 28, 7, 28),  # a tile of the whole row meets both borders; one tap is left
        ("ih32oh12kh11sh2ph1", 6, 1, 5),
        ("ih34oh28kh7ph0", 14, 0, 0),
        ("ih24oh24kh23ph11", 24, 0, 0),  # more taps than a loop has pieces
    ],
)
def test_taps_at_a_border_have_code_of_their_own(sizes: str, pixels: int, taps: int, elements: int) -> None:
    st = statement(parse_problem(f"--stag=axb --dtag=axb g64mb1ic64oc64{sizes}"), AVX512)
    loops = loops_after_fusing(st, Config("avx512", "g"))
    found = elements_at_a_border(loops, {"ow": pixels, "g": 16}, st.a.coords, st.a.layout.shape, 8)
    assert found == (taps, elements)


@pytest.mark.parametrize(("pixels", "is_spilled"), [(14, False), (28, True)])
def test_elements_that_stay_for_the_taps_at_a_border_are_spilled(pixels: int, is_spilled: bool) -> None:
    """28 sums leave no registers for the 28 pixels of a row (Zen 5: twice the time of two tiles of 14 pixels)."""
    problem = parse_problem("--stag=axb --dtag=axb g192mb1ic192ih28oc192oh28kh7ph3")
    st = statement(problem, AVX512)
    model = Model(problem, st, AVX512, ProductShape.plain(st, AVX512))
    loops = loops_after_fusing(st, Config("avx512", "g"))
    assert (model.spilled_at_borders(loops, {"ow": pixels, "g": 16}, pixels, 1) > 0) is is_spilled


@pytest.mark.parametrize(("pixels", "stride", "read"), [(6, 2, 21 / 66), (4, 1, 14 / 44), (1, 1, 1.0)])
def test_taps_of_a_loop_find_pixels_that_a_tap_before_has_read(pixels: int, stride: int, read: float) -> None:
    """Pixels of 1024 channels evict each other across rows, and those of a few taps of one row do not."""
    sizes = f"ih{10 + 12 * stride}oh{12 if stride == 1 else 13}kh11sh{stride}ph0"
    problem = parse_problem(f"--stag=axb --dtag=axb g1024mb1ic1024oc1024{sizes}".replace("oh13", "oh12"))
    st = statement(problem, AVX512)
    model = Model(problem, st, AVX512, ProductShape.plain(st, AVX512))
    loops, tile = loops_after_fusing(st, Config("avx512", "g")), {"ow": pixels, "g": 64}
    assert model.evicts(loops, tile)
    near = model.evicts(loops, tile, near=True)
    assert model.first_of_taps(loops, tile) == pytest.approx(1.0 if near else read)


def test_packed_weights_of_16_bits_are_counted_as_they_are_packed() -> None:
    """Windows read converted weights where no instruction multiplies bf16: 11 x 11 taps of 1024 channels, which the
    second-level cache does not keep, are read in the innermost loops.
    """
    problem = parse_problem("--dt=bf16 --stag=axb --dtag=axb g1024mb1ic1024ih32oc1024oh12kh11sh2ph1")
    level = next(t for t in LEVELS if t.name == "avx512_vnni")
    for row in MICRO_ARCHITECTURES:
        config = default_config(problem, row.of(level))
        assert config.order.index("g") < config.order.index("oh"), row.name


def test_a_tile_has_all_of_six_rows() -> None:
    config = default_config(parse_problem("--stag=abx --dtag=abx g8mb1ic8ih15oc8oh6kh11ph1"), AVX512)
    assert config.size("oh") == 6
