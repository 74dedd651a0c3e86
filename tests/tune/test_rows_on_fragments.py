"""Fragments whose rows are pixels of several rows of an image, whose terms copies fill up, and whose rows copies move
as vectors.
"""

from __future__ import annotations

import re

import pytest

from convsmith.compiler.driver import build_artifact, lower
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config
from convsmith.tune.costs.expected import expected_terms

AMX = target("avx512_amx")
LAST = "--dt=bf16 --stag=axb --dtag=axb"


@pytest.mark.parametrize(("line", "fused", "pixels"), [
    (f"{LAST} mb1ic256ih14oc256oh14kh3ph1", ("oh", "ow"), 28),
    (f"--dir=BWD_D {LAST} mb2ic256ih13oc256oh13kh3ph1", ("ih", "iw"), 26),
    ("--dt=u8:s8:s32 --stag=abx --dtag=abx mb1ic256ih14oc256oh14kh3ph1", ("oh", "ow"), 28),
    (f"{LAST} mb8ic192ih17iw17oc192oh17ow17kh7kw1ph3pw0", ("oh", "ow"), 32),
    (f"{LAST} mb1ic64ih28oc64oh28kh3ph1", None, 28),
    (f"{LAST} mb1ic512ih5oc512oh5kh3ph1", None, 0),
])  # fmt: skip
def test_a_tile_has_pixels_of_several_rows(line: str, fused: tuple[str, str] | None, pixels: int) -> None:
    """A fragment is one row with borders each, or a part of rows without borders, which follow each other in a copy.
    Rows that fill fragments by themselves, and rows of few pixels, stay apart.
    """
    config = default_config(parse_problem(line).canonical(), AMX)
    if config.realise == "pad_copy":
        assert (config.fuse[0] if config.fuse else None) == fused
        assert pixels in dict(config.tiles_at("register")).values()
        build_artifact(parse_problem(line).canonical(), config, AMX)
    else:
        assert fused is None


def test_threads_copy_rows_of_their_own() -> None:
    config = default_config(parse_problem(f"{LAST} mb1ic256ih14oc256oh14kh3ph1").canonical(), AMX, 2)
    assert config.realise == "pad_copy" and not config.fuse


def test_a_copy_fills_up_terms_for_the_fewest_products() -> None:
    """184 terms are 6 products of 32 terms, some of them zeros, or 23 of 8, each of which takes as long."""
    line = "--dir=BWD_D --dt=bf16 mb1ic200ih14oc184oh13kh3ph0"
    config = default_config(parse_problem(line).canonical(), AMX)
    assert config.tiles_at("k_step") == (("oc", 32),)


def test_windows_of_a_gradient_move_backwards_and_take_time() -> None:
    words = "--lane=ic --fuse=kw+oc --register=iw:28,ic:32 --order=mb,ih,iw,ic --reduce=kh,kw_oc " \
        "--instruction=tdpbf16ps_12 --k_step=kw_oc:24 --cache=ih:16 --realise=window_copy"  # fmt: skip
    line = f"--dir=BWD_D {LAST} mb1ic24ih56oc72oh56kh1ph0"
    with interning():
        terms = expected_terms(parse_problem(line).canonical(), Config.parse(f"--target=avx512_amx {words}"), AMX)
    assert min(terms.values()) > 0


@pytest.mark.parametrize(("line", "is_copied"), [
    ("--deconv --dt=bf16 --stag=abx --dtag=abx mb1ic512ih7oc512oh7kh3ph1", True),
    ("--dt=bf16 --stag=abx --dtag=abx mb1ic256ih14oc512oh7kh3sh2ph1", True),
    ("--dt=bf16 --stag=abx --dtag=abx mb32ic256ih16oc128oh8kh3sh2ph1", False),
])  # fmt: skip
def test_windows_of_short_rows_are_copied_where_channels_lie_apart(line: str, is_copied: bool) -> None:
    """Pixels of several rows then share a fragment, and weights are loaded once for all of them. Channels that evict
    each other from the first-level cache are copied slowly.
    """
    assert (default_config(parse_problem(line).canonical(), AMX).realise == "window_copy") == is_copied


@pytest.mark.parametrize("terms", [8, 16])
def test_short_rows_of_pixels_are_packed_as_vectors(terms: int) -> None:
    """Terms that fill a quarter of a vector, or half of one, are loaded and stored at once."""
    pairs, pixels = terms // 2, terms - 3
    line = f"--dir=BWD_W --dt=bf16 --stag=abx --dtag=abx mb8ic32ih{pixels}oc32oh{pixels}kh3ph1"
    words = (
        f"--target=avx512_amx --lane=oc --register=ic:16,oc:16 --order=kw,oc,ic,kh --reduce=mb,oh,ow "
        f"--instruction=tdpbf16ps_{pairs} --k_step=ow:{terms} --cache=mb:1 --realise=pad_copy --pack= "
        "--pack_at=src+mb,diff_dst+mb"
    )
    with interning():
        text = lower(plan(parse_problem(line).canonical(), Config.parse(words), AMX)).text
    assert f"masked.load.v{terms}i16" in text and f"store <{terms} x i16>" in text
    assert not re.search(r"store i16 ", text)
