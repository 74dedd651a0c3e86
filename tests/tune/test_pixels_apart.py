"""Pixels whose lines evict each other, and short runs of channels that come from memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from convsmith.machine.base import Machine
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES
from convsmith.machine.wasm.levels import LEVELS as WASM
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.statement.views import statement
from convsmith.tune.candidates import default_config
from convsmith.tune.costs.channels_apart import waited_lines
from convsmith.tune.costs.far_lines import is_in_memory, lines_of_short_runs, lines_out_of_order
from convsmith.tune.costs.features import time
from convsmith.tune.costs.model import Model
from convsmith.tune.costs.tile_counts import whole_tiles
from convsmith.tune.winograd import winograd_features

AVX512 = next(level for level in LEVELS if level.name == "avx512")
ZEN5 = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5").of(AVX512)
GROUPS = "--stag=axb --dtag=axb g32mb1ic1024ih56oc1024oh28kh3sh2ph1"


def model_of(line: str, machine: Machine) -> Model:
    problem = parse_problem(line)
    st = statement(problem, machine)
    return Model(problem, st, machine, ProductShape.plain(st, machine))


@pytest.mark.parametrize(("channels", "step"), [(1024, 4096), (512, 2048), (1040, 4160)])
@pytest.mark.parametrize("added", [0, 4])
@pytest.mark.parametrize(("tile", "pixels"), [(14, 14), (28, 28), (28, 9), (28, 20), (7, 7)])
def test_pixels_beyond_the_ways_of_their_set_are_loaded_in_each_step(
    channels: int, step: int, added: int, tile: int, pixels: int
) -> None:
    """A way is left to weights; of a partial tile, each set has its share of pixels."""
    machine = replace(AVX512, costs=replace(AVX512.costs, added_ways=added))
    model = model_of(f"--stag=axb --dtag=axb mb1ic{channels}ih1iw28oc16kh1kw1", machine)
    loops = loops_after_fusing(model.st, Config("avx512", "oc"))
    sets = Counter(n * step % 4096 // 64 for n in range(tile))
    kept = machine.l1.ways + added - 1
    expected = sum(max(count * pixels / tile - kept, 0) for count in sets.values()) if pixels > kept else 0
    assert model.evicted_pixels(loops, {"ow": tile, "oc": 16}, pixels) == pytest.approx(expected)


def test_arithmetic_hides_evictions_of_a_few_pixels() -> None:
    """14 pixels 4 KiB apart by 2 vectors take 1.05 of the time of other distances on Zen 5, by 1 vector 1.44."""
    times = {}
    for channels in (1024, 1040):
        model = model_of(f"--stag=axb --dtag=axb mb1ic{channels}ih1iw56oc128kh1kw1", ZEN5)
        for vectors in (1, 2):
            config = Config("avx512", "oc", register=(("ow", 14), ("oc", 16 * vectors)), order=("mb", "oc", "oh", "ow"))
            cycles = model.cycles(loops_after_fusing(model.st, config), config, near=True)
            times[channels, vectors] = cycles / channels
    ratios = [times[1024, vectors] / times[1040, vectors] for vectors in (1, 2)]
    assert ratios[0] > 1.3 and ratios[1] < 1.15


@pytest.mark.parametrize(
    ("line", "decisions", "lines"),
    [
        (GROUPS, {}, 1024 * 56 * 56 / 16),
        (GROUPS.replace("1024", "512"), {}, 0),  # caches keep images of 8 MiB
        (GROUPS.replace("g32", "g2"), {}, 0),  # runs of 2 KiB
        (GROUPS.replace("axb", "abx"), {}, 0),  # channels lie apart
        (GROUPS, {"realise": "pad_copy"}, 0),
        (GROUPS, {"pack": ("src", "wei")}, 0),
        ("--stag=axb --dtag=axb mb8ic32ih128oc128kh3ph1", {}, 0),  # runs continue in the next pixel
    ],
)
def test_tiles_wait_for_short_runs_from_memory(line: str, decisions: dict[str, object], lines: float) -> None:
    model = model_of(line, ZEN5)
    for pixels in (7, 14):
        tile = (("ow", pixels), ("oc", 32))
        config = Config("avx512", "oc", register=tile, order=("mb", "oh", "ow", "g", "oc"), **decisions)
        loops = loops_after_fusing(model.st, config)
        found = dict(lines_of_short_runs(model, loops, config, whole_tiles(model, loops, config)))
        assert found.get("memory_wait", 0) == pytest.approx(lines / pixels)


ONE_TAP = "--stag=axb --dtag=axb g256mb32ic256ih28oc256oh28kh1"


@pytest.mark.parametrize(
    ("line", "tile", "order", "waits"),
    [
        (ONE_TAP, (1, 128), ("mb_oh_ow", "g", "oc"), {}),  # in the order of memory
        (ONE_TAP, (2, 128), ("mb_oh_ow", "g", "oc"), {"memory_line"}),
        (ONE_TAP, (1, 128), ("g", "oc", "mb_oh_ow"), {"memory_line", "memory_run"}),
        (ONE_TAP, (1, 256), ("g", "oc", "mb_oh_ow"), {}),  # whole pixels
        (ONE_TAP.replace("mb32", "mb2"), (2, 128), ("g", "oc", "mb_oh_ow"), {}),  # caches keep 3 MiB
        (ONE_TAP.replace("kh1", "kh3ph1"), (2, 128), ("g", "oc", "mb_oh_ow"), {}),  # taps share lines
    ],
)
def test_lines_of_one_tap_wait_unless_they_are_read_in_order(
    line: str, tile: tuple[int, int], order: tuple[str, ...], waits: set[str]
) -> None:
    """On a Zen 4 the first three of these take 2.1, 3.9 and 5.4 ms in f32."""
    model = model_of(line, ZEN5)
    register = (("mb_oh_ow", tile[0]), ("g", tile[1]))
    config = Config("avx512", "g", fuse=(("oh", "ow"), ("mb", "oh_ow")), register=register, order=order)
    found = dict(lines_out_of_order(model, loops_after_fusing(model.st, config), config))
    lines = 2 * 32 * 256 * 28 * 28 * 4 / 64
    expected = {"memory_line": lines, "memory_run": lines * 64 / (tile[1] * 4)}
    assert found == pytest.approx({name: expected[name] for name in waits})


@pytest.mark.parametrize(("cache", "is_late"), [((), False), ((("mb", 4),), False), ((("oh", 1),), True)])
def test_blocks_of_rows_outside_images_wait_in_gradients_of_one_tap(
    cache: tuple[tuple[str, int], ...], is_late: bool
) -> None:
    """On a Zen 4 blocks of one row take twice as long."""
    model = model_of("--dir=BWD_W --stag=axb --wtag=axb --dtag=axb g128mb32ic128ih28oc128oh28kh1", ZEN5)
    config = Config("avx512", "g", register=(("g", 64),), reduce=("mb", "oh", "ow"), cache=cache)
    found = dict(lines_out_of_order(model, loops_after_fusing(model.st, config), config))
    assert found == ({"memory_line": 2 * 32 * 128 * 28 * 28 * 4 / 64} if is_late else {})


def test_groups_of_one_tap_are_computed_pixel_by_pixel() -> None:
    """Sums of long epilogues pass all pixels instead, whose scales stay in registers."""
    config = default_config(parse_problem(ONE_TAP), ZEN5)
    assert config.size("mb_oh_ow") == 1 and config.order == ("mb_oh_ow", "g", "oc")
    scales = "--attr-scales=src:common:0.5+wei:per_oc+dst:common:2 --attr-zero-points=src:common:3+dst:common:4"
    assert default_config(parse_problem(f"--dt=u8:s8:u8 {scales} {ONE_TAP}"), ZEN5).order[0] == "g"
    gradient = default_config(parse_problem(f"--dir=BWD_W --wtag=axb {ONE_TAP.replace('256', '128')}"), ZEN5)
    assert gradient.size("g") == 128 and "oh" not in dict(gradient.tiles_at("cache"))


def test_groups_a_page_apart_have_tiles_of_many_pixels() -> None:
    """On Zen 5, 7 pixels take 1.5 times as long as 14 beside other work, and a transform 2.2 times as long."""
    line = f"--dir=FWD_B --attr-post-ops=sum+relu {GROUPS}"
    assert dict(default_config(parse_problem(line), ZEN5).tiles_at("register")) == {"ow": 14, "oc": 32}


def test_arrays_of_a_transform_that_no_cache_keeps_come_from_memory() -> None:
    """Blocks of two rows of tiles take 0.37 of the time on Zen 5."""
    problem = parse_problem("--stag=abx --dtag=abx mb1ic64ih376oc32oh372kh5ph0")
    chosen = default_config(problem, ZEN5)
    assert dict(chosen.tiles_at("winograd")) and chosen.value("block")
    cheap = replace(ZEN5, costs=replace(ZEN5.costs, memory_line=0.0))
    (far, near), (same, also) = (
        [time(winograd_features(problem, config, machine), machine)["far memory"] for machine in (ZEN5, cheap)]
        for config in (chosen.changed(block=()), chosen)
    )
    assert far > 2 * near and same == also


def test_half_of_the_last_cache_is_for_other_work() -> None:
    most = ZEN5.costs.images_far
    assert [is_in_memory(ZEN5, size) for size in (most / 4, most / 2, most / 2 + 1)] == [False, False, True]


@pytest.mark.parametrize(("waited", "copied"), [(0.0, False), (1.0, True)])
def test_tiles_are_copied_where_vectors_of_pixels_wait_for_lines_of_the_second_level_cache(
    waited: float, copied: bool
) -> None:
    """868 KiB of pixels stay there, and each tile of channels reads all of them again."""
    machine = replace(WASM[1], costs=replace(WASM[1].costs, waited_near=waited))
    config = default_config(parse_problem("--stag=abx --dtag=abx mb1ic768ih17oc128oh17kh1ph0"), machine)
    assert config.staged_at("pack_at") == ((("src", "oh_ow"),) if copied else ())


def test_pixels_that_the_first_level_cache_keeps_are_not_waited_for() -> None:
    """A tile of eight pixels reads two lines of each of 16 channels, 2 KiB, again for each tile of channels."""
    events = {}
    for channels in (16, 768):
        model = model_of(f"--stag=abx --dtag=abx mb1ic{channels}ih16oc128oh16kh1ph0", WASM[1])
        config = Config(WASM[1].name, "ow", register=(("oc", 6), ("ow", 8)), order=("mb", "oh", "ow", "oc"))
        loops = loops_after_fusing(model.st, config)
        events[channels] = waited_lines(model, loops, config, (8, 6))
    assert events == {16: (), 768: (("waited_near_line", 1.5),)}
