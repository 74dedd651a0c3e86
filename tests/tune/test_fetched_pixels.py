"""Tiles fetch the pixels of the next tile unless a near cache has these pixels already, or will have them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convsmith.machine.micro_architectures import named
from convsmith.machine.registry import target
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.statement.views import statement
from convsmith.tune.candidates import default_config
from convsmith.tune.dynamic import dynamic_config, prefetching

ZEN3 = named("znver3").of(next(level for level in LEVELS if level.name == "avx2"))


@pytest.mark.parametrize(
    ("line", "fetches"),
    [
        # Each tile of channels passes over all images, which come from memory.
        ("mb32ic576ih14oc128oh14kh1ph0", True),
        # Tiles of pixels are outermost.
        ("mb1ic128ih64iw128oc128oh64ow128kh1kw1ph0pw0", True),
        # The groups of a pixel are contiguous, and tiles pass through them before the next pixels.
        ("g4mb32ic544ih14oc272oh14kh1ph0", False),
        # Each of many tiles of channels passes over one row, which the second-level cache holds.
        ("mb6ic64ih224iw168oc512oh112ow84kh1kw1sh2sw2ph0pw0", False),
        # The first of two passes, which reads the row from memory, is half of them.
        ("mb6ic64ih224iw168oc32oh112ow84kh1kw1sh2sw2ph0pw0", True),
    ],
)
def test_first_choices_fetch_pixels_that_are_far(line: str, fetches: bool) -> None:
    config = default_config(parse_problem(f"--stag=axb --dtag=axb {line}").canonical(), ZEN3)
    assert config.staged("fetch") == (("src",) if fetches else ())


@pytest.mark.parametrize(
    ("line", "words", "streams"),
    [
        # Tiles of channels are outermost, and each passes over all pixels.
        ("mb1ic1344ih14oc192oh14kh1ph0", "--order=mb,oc,oh,ow", True),
        # Tiles of pixels are outermost, and each loads 1 MiB of weights.
        ("mb1ic1344ih14oc192oh14kh1ph0", "--order=mb,oh,ow,oc", False),
        ("mb1ic64ih14oc192oh14kh1ph0", "--order=mb,oh,ow,oc", True),
        # Pixels are read once, where they are copied.
        ("mb1ic64ih14oc192oh14kh1ph0", "--order=mb,oh,ow,oc --pack_at=src+ow", False),
    ],
)
def test_kernels_for_any_sizes_prefetch_pixels_unless_far_weights_pass_them(
    line: str, words: str, streams: bool
) -> None:
    st = statement(parse_problem(f"--stag=abx --dtag=abx {line}").canonical(), ZEN3)
    config = Config.parse(f"--target=avx2 --lane=ow --register=oc:4,ow:24 {words}")
    assert prefetching(st, config, ZEN3).staged("stream") == (("src",) if streams else ())


@pytest.mark.parametrize(
    ("line", "blocks"),
    [
        # Half of 112 pixels would be fewer than 64, and the second-level cache holds two blocks of 112.
        ("mb2ic24ih56oc144oh56kh1ph0", (("mb", 1), ("oh", 2))),
        # The cache holds two blocks of 32 pixels, but not of 64.
        ("--dt=f64 mb4ic256ih32oc3oh32kh1ph0", (("mb", 1), ("oh", 1))),
    ],
)
def test_the_second_cache_holds_two_blocks_of_a_gradient(line: str, blocks: tuple[tuple[str, int], ...]) -> None:
    problem = parse_problem(f"--dir=BWD_W --stag=axb --wtag=axb --dtag=axb {line}").canonical()
    config = default_config(problem, ZEN3)
    assert config.staged("fetch") and config.tiles_at("cache") == blocks


@pytest.mark.parametrize(
    ("line", "fetched"),
    [
        ("mb1ic96ih128iw256oc40oh128ow256kh1kw1ph0pw0", ("src", "diff_dst")),
        # The gradient of the result has less than 1 MiB.
        ("mb1ic512ih28oc256oh28kh1ph0", ("src",)),
        ("mb1ic192ih28oc96oh28kh1ph0", ()),
    ],
)
@pytest.mark.parametrize("level", ["avx2", "avx512"])
def test_gradients_fetch_large_factors_where_forward_tiles_fetch_no_pixels(
    level: str, line: str, fetched: tuple[str, ...]
) -> None:
    intel = named("intel-server").of(target(level))
    machine = replace(intel, costs=replace(intel.costs, fetched_pixels=0))
    problem = parse_problem(f"--dir=BWD_W --stag=axb --wtag=axb --dtag=axb {line}").canonical()
    assert default_config(problem, machine).staged("fetch") == fetched


@pytest.mark.parametrize(
    ("line", "fetches"),
    [
        ("mb32ic64ih64oc16oh64kh1ph0", True),
        ("mb1ic128ih80oc512oh80kh1ph0", True),
        ("mb1ic384ih40oc128oh40kh1ph0", False),  # 2.3 MiB
    ],
)
def test_tiles_fetch_pixels_of_sources_of_three_mebibytes_on_intel_servers(line: str, fetches: bool) -> None:
    """Fetching takes 0.35 of the time of the first line on an Intel server, and 1.07 of that of the last."""
    machine = named("intel-server").of(target("avx512"))
    config = default_config(parse_problem(f"--stag=axb --dtag=axb {line}").canonical(), machine)
    assert ("src" in config.staged("fetch")) == fetches


def test_kernels_for_any_sizes_fetch_pixels_of_which_a_call_may_have_many() -> None:
    """A row of the line fits in the second-level cache, and the rows of a call run as one."""
    problem = parse_problem("--stag=axb --dtag=axb mb32ic736ih13oc128oh13kh1ph0").canonical()
    assert dynamic_config(problem, ZEN3).staged("fetch") == ("src",)
