"""Images and results of fragments that exceed caches: copies in blocks of rows, results in long runs of memory, and
few pixels at once.
"""

from __future__ import annotations

import pytest

from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.tune.candidates import default_config

AMX = target("avx512_amx")
LAST = "--dt=bf16 --stag=axb --dtag=axb"
FIRST = "--dt=bf16 --stag=abx --dtag=abx"


@pytest.mark.parametrize(("line", "tile"), [
    (f"{LAST} mb1ic64ih112oc64oh112kh3ph1", (("oh", 16),)),
    (f"--dir=BWD_D {LAST} mb1ic3ih368iw480oc64oh368ow480kh3kw3ph1pw1", (("ih", 4),)),
    (f"--deconv {FIRST} mb1ic512ih64oc4oh64kh3ph1", (("oh", 4),)),
    ("--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic64ih112oc128oh56kh3sh2ph1", (("oh", 16),)),
    (f"{LAST} mb1ic64ih56oc64oh56kh3ph1", ()),  # a cache keeps the whole copy
    (f"{LAST} mb1ic512ih64oc512oh64kh3ph1", ()),  # each block would read too many weights again
])  # fmt: skip
def test_a_cache_keeps_the_copied_rows_of_a_block(line: str, tile: tuple[tuple[str, int], ...]) -> None:
    config = default_config(parse_problem(line).canonical(), AMX)
    assert config.realise == "pad_copy" and config.tiles_at("cache") == tile


def test_threads_copy_the_rows_that_each_computes() -> None:
    config = default_config(parse_problem(f"{LAST} mb1ic64ih112oc64oh112kh3ph1").canonical(), AMX, 2)
    assert config.realise == "pad_copy" and config.tiles_at("cache") == (("oh", 56),)


@pytest.mark.parametrize(("sizes", "pixels"), [
    ("mb32ic192ih38oc32oh38kh1", 64),
    ("mb1ic192ih38oc32oh38kh1", 32),  # a near cache holds the result
    ("mb64ic24ih38oc32oh38kh1", 32),  # prefetchers follow the lines of 24 channels
])  # fmt: skip
def test_results_in_memory_are_written_in_long_runs(sizes: str, pixels: int) -> None:
    """A run of each channel begins on a page of its own. The widest tile of pixels begins the fewest runs."""
    config = default_config(parse_problem(f"--dir=BWD_D {FIRST} {sizes}").canonical(), AMX)
    assert config.lane == "ih_iw" and config.size("ih_iw") == pixels


@pytest.mark.parametrize(("line", "tiles"), [
    (f"--dir=BWD_W {LAST} --wtag=axb mb8ic3ih224oc64oh112kh7sh2ph3", (("mb", 1), ("oh", 14))),
    (f"--dir=BWD_W {FIRST} mb1ic8ih256oc16oh256kh5ph2", (("oh", 16),)),
    (f"--dir=BWD_W {LAST} --wtag=axb mb1ic3ih224oc64oh112kh7sh2ph3", ()),  # near caches hold packed factors
])  # fmt: skip
def test_taps_and_channels_that_are_lanes_are_packed_in_blocks_of_rows(
    line: str, tiles: tuple[tuple[str, int], ...]
) -> None:  # fmt: skip
    """A block has rows of one image, and is packed when it is multiplied, and not before all products."""
    config = default_config(parse_problem(line).canonical(), AMX)
    assert config.lane == "kw_ic" and config.tiles_at("cache") == tiles
    assert config.staged("pack") == (() if tiles else ("src", "diff_dst"))


@pytest.mark.parametrize(("sizes", "pixels"), [
    ("mb1ic256ih104oc12oh104kh1", 16),
    ("mb1ic256ih52oc12oh52kh1", 64),  # a near cache holds the image
])  # fmt: skip
def test_pixels_of_an_image_in_memory_fill_one_fragment(sizes: str, pixels: int) -> None:
    """Each pixel is a stream; with more of them than a fragment has rows, the first lines of each arrive late."""
    config = default_config(parse_problem(f"{LAST} {sizes}").canonical(), AMX)
    assert config.realise == "peel" and config.size("mb_oh_ow") == pixels
