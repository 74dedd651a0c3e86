"""Sources each of whose channels lies apart: where their lines come from, and which tiles prefetch or copy them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import convsmith as cs
from convsmith.machine.base import Machine
from convsmith.machine.micro_architectures import named
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.tune.candidates import default_config
from convsmith.tune.costs.channels_apart import arriving_lines, crossings, late_stores, packed_pixels, waited_lines
from convsmith.tune.costs.expected import expected_features, model_of
from convsmith.tune.costs.features import time
from convsmith.tune.costs.model import Model
from convsmith.tune.variants import streamed

INTEL = named("intel-server").of(target("avx512"))
TILE = "--target=avx512 --lane=oh_ow --fuse=oh+ow --register=oc:6,oh_ow:64 --reduce=kh,kw,ic"
PIXELS_FIRST, CHANNELS_FIRST = f"{TILE} --order=mb,oh_ow,oc", f"{TILE} --order=mb,oc,oh_ow"
CHANNELS = "--target=avx512 --lane=oc --fuse=oh+ow --register=oh_ow:14,oc:32 --order=mb,oh_ow,oc --reduce=kh,kw,ic"


def modelled(line: str, text: str, machine: Machine = INTEL) -> tuple[Model, Loops, Config]:
    config = Config.parse(text)
    return *model_of(parse_problem(f"--stag=abx --dtag=abx {line}").canonical(), config, machine), config


@pytest.mark.parametrize(
    ("line", "config", "lines"),
    [
        # 64 pixels fill 4 lines of each channel, and a run begins with one that nothing has fetched ahead.
        ("mb1ic300ih62oc6oh62kh1ph0", PIXELS_FIRST, (5.0, 1.0)),
        ("mb1ic300ih62oc24oh62kh1ph0", PIXELS_FIRST, (5.0, 1 / 4)),
        # Neither cache keeps an image of 4.4 MiB until the next channels.
        ("mb1ic300ih62oc24oh62kh1ph0", CHANNELS_FIRST, (5.0, 1.0)),
        # 512 channels that are 16 KiB apart share too few sets of the second-level cache.
        ("mb1ic512ih64oc24oh64kh1ph0", PIXELS_FIRST, (5.0, 1.0)),
        # The second-level cache keeps 0.9 MiB from one call to the next.
        ("mb1ic64ih62oc24oh62kh1ph0", PIXELS_FIRST, (0.0, 0.0)),
        ("mb1ic300ih62oc24oh62kh1ph0", f"{PIXELS_FIRST} --pack_at=src+oh_ow", (0.0, 0.0)),
    ],
)
def test_the_first_tile_of_channels_reads_lines_from_beyond_the_caches(
    line: str, config: str, lines: tuple[float, float]
) -> None:
    model, loops, parsed = modelled(line, config)
    events, first = arriving_lines(model, loops, parsed, 64)
    assert (dict(events).get("arriving_line", 0.0), first) == lines and not dict(events).get("late_line", 0.0)
    other = replace(INTEL, costs=replace(INTEL.costs, arriving_line=0.0))
    assert arriving_lines(*modelled(line, config, other), 64) == ((), 0.0)


def test_lines_that_arrive_are_not_waited_for_as_well() -> None:
    line, machine = "mb1ic512ih64oc24oh64kh1ph0", replace(INTEL, costs=replace(INTEL.costs, arriving_line=0.0))
    assert waited_lines(*modelled(line, PIXELS_FIRST), (64, 6)) == ()
    assert waited_lines(*modelled(line, PIXELS_FIRST, machine), (64, 6)) == (("waited_line", 5.0),)


@pytest.mark.parametrize(("line", "alone"), [("ic300ih28oc64oh28kh1ph0", True), ("ic300ih28oc64oh28kh3ph1", False)])
def test_lines_of_pixels_with_one_tap_arrive_during_products(line: str, alone: bool) -> None:
    """A step of 14 pixels reads 14 / 16 + 1 lines of a channel, which the first-level cache has not kept."""
    config = CHANNELS.replace("mb,oh_ow", "mb,oh,ow").replace("--fuse=oh+ow ", "").replace("oh_ow", "ow")
    model, loops, parsed = modelled(line, config)
    causes = [dict(x.causes) for x in model.features(loops, parsed) if "multiply-adds" in dict(x.causes)]
    assert {("l2", 1.875) in each.get("lines of channels", ()) for each in causes} == {alone}
    assert any(("l2", 1.875) in each["loads"] for each in causes) != alone


@pytest.mark.parametrize(("row", "waits"), [(28, True), (14, False)])
def test_prefetchers_follow_channels_in_half_a_page(row: int, waits: bool) -> None:
    found = waited_lines(*modelled(f"mb1ic480ih{row}oc192oh{row}kh1ph0", PIXELS_FIRST), (64, 6))
    assert found == ((("waited_near_line", 5.0),) if waits else ())


@pytest.mark.parametrize(
    ("line", "config", "late"),
    [
        ("mb32ic192ih28oc32oh28kh1ph0", PIXELS_FIRST, 4.0),
        # Loads prefetch the lines of the tile after the next one, which are those of the next channel for the last two.
        ("mb32ic192ih28oc32oh28kh1ph0", f"{PIXELS_FIRST} --stream=src", 4 * 2 * 64 / 784),
        ("mb32ic192ih28oc6oh28kh1ph0", PIXELS_FIRST, 0.0),
        ("mb16ic192ih28oc32oh28kh1ph0", PIXELS_FIRST, 0.0),
    ],
)
def test_lines_from_memory_are_late_where_several_tiles_read_them(line: str, config: str, late: float) -> None:
    """Prefetches take 0.39 of the time of 192 channels to 32 of 32 images, and copies 1.6 of it."""
    events, _ = arriving_lines(*modelled(line, config), 64)
    assert dict(events)["late_line"] == pytest.approx(late)


@pytest.mark.parametrize(("images", "late"), [(32, True), (16, False)])
def test_copies_wait_for_part_of_the_lines_from_memory(images: int, late: bool) -> None:
    model, loops, config = modelled(f"mb{images}ic192ih28oc32oh28kh1ph0", f"{PIXELS_FIRST} --pack_at=src+oh_ow")
    lines = images * 192 * 784 * 4 / 64
    events = dict(packed_pixels(model, loops, config))
    assert events["arriving_line"] == pytest.approx(lines * (1 + 1 / 4))
    assert bool(events["late_line"]) == late and events["late_line"] < lines / 2


BLOCKS = f"{CHANNELS_FIRST} --cache=oh_ow:512 --pack_at=src+oh_ow:512"


@pytest.mark.parametrize(
    ("line", "config", "lines"),
    [
        # 64 pixels of 6 channels are 6 runs of 4 lines; those of a block of 512 pixels run on.
        ("mb32ic16ih128oc64oh128kh1ph0", PIXELS_FIRST, 6.0),
        ("mb32ic16ih128oc64oh128kh1ph0", BLOCKS, 6 / 8),
        ("mb32ic16ih128oc64oh128kh1ph0", CHANNELS_FIRST, 0.0),
        # A tile of all channels is followed by the next pixels of each.
        ("mb32ic64ih128oc6oh128kh1ph0", PIXELS_FIRST, 0.0),
        # The last cache keeps source and result.
        ("mb1ic16ih128oc64oh128kh1ph0", PIXELS_FIRST, 0.0),
    ],
)
def test_stores_wait_for_the_first_line_of_each_run_of_a_result_in_memory(
    line: str, config: str, lines: float
) -> None:
    machine = replace(INTEL, costs=replace(INTEL.costs, late_result=60.0))
    assert late_stores(*modelled(line, config, machine), 6, 4) == pytest.approx(lines)
    assert late_stores(*modelled(line, config), 6, 4) == 0.0


@pytest.mark.parametrize(
    ("line", "config", "fraction"),
    [
        ("mb1ic256ih35oc64oh35kh1ph0", PIXELS_FIRST, 1.0),
        ("mb1ic256ih36oc64oh36kh1ph0", PIXELS_FIRST, 0.0),
        ("mb1ic256ih35oc64oh35kh1ph0", f"{PIXELS_FIRST} --pack_at=src+oh_ow", 0.0),
        ("mb1ic256ih35oc64oh35kh1ph0", CHANNELS, 0.0),
    ],
)
def test_vectors_of_channels_that_no_multiple_of_a_line_separates_cross_lines(
    line: str, config: str, fraction: float
) -> None:
    assert crossings(*modelled(line, config)) == fraction


def test_arithmetic_hides_the_lines_of_a_single_tile_of_channels() -> None:
    """One tile of channels computes while lines arrive; the lines of the first of several tiles are added."""
    far: dict[int, list[float]] = {}
    for channels in (6, 24):
        problem = parse_problem(f"--stag=abx --dtag=abx mb1ic300ih62oc{channels}oh62kh1ph0").canonical()
        machines = (INTEL, replace(INTEL, costs=replace(INTEL.costs, arriving_line=0.0)))
        config = Config.parse(PIXELS_FIRST)
        far[channels] = [sum(time(expected_features(problem, config, m), m).values()) for m in machines]
    lines = 300 * 61 * 5 * INTEL.costs.arriving_line  # of 61 tiles
    assert far[24][0] - far[24][1] == pytest.approx(lines, rel=0.05)
    assert far[6][0] - far[6][1] < 0.8 * lines


@pytest.mark.parametrize(
    ("line", "config", "streams"),
    [
        ("mb1ic300ih62oc6oh62kh1ph0", PIXELS_FIRST, True),
        ("mb1ic300ih62oc18oh62kh1ph0", PIXELS_FIRST, True),
        ("mb1ic300ih62oc24oh62kh1ph0", PIXELS_FIRST, False),
        ("mb1ic300ih62oc24oh62kh1ph0", CHANNELS_FIRST, True),
        # Lines that are prefetched are evicted before the next tiles read them.
        ("mb1ic512ih64oc6oh64kh1ph0", PIXELS_FIRST, False),
        ("mb1ic512ih63oc6oh63kh1ph0", PIXELS_FIRST, True),
        # Lines from memory are prefetched for any number of tiles, except lines of the next channel.
        ("mb32ic192ih28oc64oh28kh1ph0", PIXELS_FIRST, True),
        ("mb128ic192ih11oc64oh11kh1ph0", PIXELS_FIRST, False),
    ],
)
def test_loads_prefetch_pixels_that_a_cache_keeps_for_few_passes(line: str, config: str, streams: bool) -> None:
    """With 1, 2, 4 and 11 tiles of channels, no prefetches take 1.14, 1.1, 1.0 and 0.92 of the time."""
    assert streamed(*modelled(line, config)) == (("src",) if streams else ())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        # One tile of channels reads each line once; copying would take 1.3 times as long.
        ("mb1ic512ih60oc6oh60kh1ph0", ["--stream=src"]),
        ("mb1ic512ih64oc6oh64kh1ph0", []),
        ("mb1ic768ih40oc192oh40kh1ph0", ["--pack_at=src+oh_ow"]),
        ("mb1ic256ih35oc64oh35kh1ph0", ["--pack_at=src+oh_ow"]),
        ("mb1ic2048ih8oc448oh8kh1ph0", []),
    ],
)
def test_sources_that_many_tiles_of_channels_read_are_copied(line: str, words: list[str]) -> None:
    config = default_config(parse_problem(f"--stag=abx --dtag=abx {line}").canonical(), INTEL)
    assert config.lane == "oh_ow"
    assert [x for x in str(config).split() if x.startswith(("--stream", "--pack_at"))] == words


def test_vectors_of_channels_that_are_transposed_turn_the_pages_of_a_large_result() -> None:
    config = CHANNELS.replace("oc:32", "oc:48").replace("oh_ow:14", "oh_ow:8")
    line = "mb1ic48ih50oc256oh50kh1ph0"
    problem = parse_problem(f"--stag=abx --dtag=abx {line}").canonical()
    cheap = replace(INTEL, costs=replace(INTEL.costs, page_turn=0.0))
    found = [time(expected_features(problem, Config.parse(config), m), m)["write-back"] for m in (INTEL, cheap)]
    tiles = -(-2500 // 8) * 16 * 8  # vectors of results
    assert found[0] - found[1] == pytest.approx(tiles * INTEL.costs.page_turn, rel=0.05)


@pytest.mark.parametrize(
    ("line", "threads", "block"),
    [
        ("mb2ic64ih64iw512oc64oh64ow512kh1kw1ph0pw0", 1, 512),
        ("mb2ic64ih64iw512oc64oh64ow512kh1kw1ph0pw0", 2, 512),
        ("--deconv --dt=f64 mb1ic48ih128iw256oc144oh128ow256kh1kw1ph0pw0", 1, 256),
        # The last cache keeps 8 MiB from one call to the next.
        ("mb1ic64ih64iw256oc64oh64ow256kh1kw1ph0pw0", 1, 0),
        # Loads of tiles prefetch the rows of channels that lie 3 KiB apart.
        ("mb32ic192ih28oc32oh28kh1ph0", 1, 0),
    ],
)
def test_blocks_of_rows_from_memory_are_copied_where_channels_are_far_apart(
    line: str, threads: int, block: int
) -> None:
    """Copies of half a page of each channel take 0.57 and 0.53 of the time of copies of a tile on an Intel server, and
    2.2 of that of prefetches where images are small.
    """
    config = default_config(parse_problem(f"--stag=abx --dtag=abx {line}").canonical(), INTEL, threads)
    cache, (place,) = config.tiles_at("cache"), config.staged_at("pack_at") or (("", ""),)
    assert cache == ((("oh_ow", block),) if block else ())
    assert (place[1] == f"oh_ow:{block}" and config.order[-2:] == ("oc", "oh_ow")) or not block


@pytest.mark.parametrize("words", ["--cache=oh_ow:128", "--cache=oh_ow:128 --threads=2"])
def test_results_of_blocks_of_rows_are_exact(words: str) -> None:
    problem = parse_problem("--stag=abx --dtag=abx --attr-post-ops=relu mb2ic9ih19oc14oh19kh1ph0")
    tile = "--target=generic --lane=oh_ow --fuse=oh+ow --register=oc:5,oh_ow:8 --order=mb,oc,oh_ow"
    kernel = cs.compile(problem, config=f"{tile} --reduce=kh,kw,ic {words} --pack_at=src+oh_ow:128")
    assert kernel.verify().ok
