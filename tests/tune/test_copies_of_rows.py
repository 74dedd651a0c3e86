"""A copy that reads one row of an image after the other loads the lines that rows share again, if channels are many."""

from __future__ import annotations

import pytest

from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.statement.views import statement
from convsmith.tune.candidates import default_config
from convsmith.tune.costs.copies import copied
from convsmith.tune.costs.far_lines import lines_of_short_rows
from convsmith.tune.costs.model import Model
from convsmith.tune.costs.tile_counts import whole_tiles

ZEN5 = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5").of(target("avx512"))


@pytest.mark.parametrize(
    ("types", "size", "again"),
    [
        ("u8:s8:u8", "mb1ic1248ih14", 14 * 1248 * (1 + 13 / 64) - 14 * 14 * 1248 / 64),
        ("bf16", "mb2ic1248ih14", 2 * (14 * 1248 * (1 + 27 / 64) - 14 * 28 * 1248 / 64)),
        ("u8:s8:u8", "mb1ic2048ih7", 6 * 7 * 7 * 2048 / 64),  # each line has an element of each row
        ("u8:s8:u8", "mb1ic256ih14", 0),  # the lines of a row stay in the first-level cache
        ("u8:s8:u8", "mb1ic512ih7", 0),  # the whole image does
        ("u8:s8:u8", "mb1ic1248ih64", 0),  # no line has elements of two rows
    ],
)
def test_lines_that_rows_share_are_loaded_again(types: str, size: str, again: float) -> None:
    problem = parse_problem(f"--dt={types} --stag=abx --dtag=abx {size}oc32kh1")
    level = target("avx512_bf16" if types == "bf16" else "avx512_vnni")
    st = statement(problem, level)
    unit = next(x for x in ProductShape.choices(st, level) if x.dot)
    config = Config(level.name, "oc", register=(("ow", 7), ("oc", 32)), order=("mb", "oc", "oh", "ow"),
                    reduce=("kh", "kw", "ic"), realise="pad_copy")  # fmt: skip
    model = Model(problem, st, level, unit)
    events = dict(copied(model, loops_after_fusing(st, config), config))
    assert level.l1.bytes == 32768
    assert events["beyond_line"] == pytest.approx(again)


@pytest.mark.parametrize(
    ("types", "size", "joined", "copies"),
    [
        ("u8:s8:s32", "mb2ic3ih224", True, 2 * 224 * (11 + 8)),
        ("u8:s8:s32", "mb2ic3ih224", False, 2 * 224 * 224),  # pixels are padded to four channels
        ("u8:s8:s32", "mb1ic4ih112", False, 112 * (7 + 8)),
        ("bf16", "mb1ic8ih56", False, 56 * (14 + 8)),
        ("u8:s8:s32", "mb1ic12ih56", False, 56 * 56),  # more channels are copied pixel by pixel
    ],
)
def test_rows_of_few_channels_are_copied_in_vectors(types: str, size: str, joined: bool, copies: int) -> None:
    problem = parse_problem(f"--dt={types} --stag=axb --dtag=axb {size}oc32kh3ph1")
    level = target("avx512_bf16" if types == "bf16" else "avx512_vnni")
    st = statement(problem, level)
    unit = next(x for x in ProductShape.choices(st, level) if x.dot)
    terms = ("kw_ic" if joined else "ic", unit.terms)
    fuse = (("kw", "ic"),) if joined else ()
    config = Config(level.name, "oc", fuse=fuse, register=(("ow", 7), ("oc", 32)), k_step=(terms,), realise="pad_copy")
    model = Model(problem, st, level, unit)
    for pair in fuse:
        model.fuse(*pair)
    assert dict(copied(model, loops_after_fusing(st, config), config)) == {"copy": copies}


FAR = "--stag=axb --dtag=axb mb32ic4ih224oc24oh112kh3sh2ph1"


@pytest.mark.parametrize(
    ("line", "waits"),
    [
        (FAR, 2),
        (FAR.replace("sh2", "sh1").replace("oh112", "oh224"), 1),
        (FAR.replace("mb32", "mb1"), 0),  # the second-level cache delivers them in time
        (FAR.replace("ic4", "ic16"), 0),
        (FAR.replace("ic4", "ic8"), 0),  # a row fills more than a page
        (FAR.replace("axb", "abx"), 0),
        (FAR.replace("kh3", "kh1").replace("ph1", "ph0"), 0),  # each row is read once, in order
    ],
)
@pytest.mark.parametrize("realise", ["peel", "pad_copy"])
def test_tiles_of_few_channels_wait_for_rows(line: str, waits: int, realise: str) -> None:
    problem = parse_problem(line)
    st = statement(problem, ZEN5)
    model = Model(problem, st, ZEN5, ProductShape.plain(st, ZEN5))
    config = Config("avx512", "oc", register=(("ow", 8), ("oc", 32)), order=("mb", "oh", "ow", "oc"), realise=realise)
    loops = loops_after_fusing(st, config)
    tiles = whole_tiles(model, loops, config)
    found = dict(lines_of_short_rows(model, loops, config, tiles))
    assert found.get("row_wait", 0) == (realise == "peel") * waits * sum(t.number for t in tiles)


@pytest.mark.parametrize(
    ("line", "realise"),
    [
        (FAR, "pad_copy"),  # 0.63 of the time in place
        (FAR.replace("mb32", "mb1"), "peel"),
        (FAR.replace("ic4", "ic16"), "peel"),
        (f"--dt=bf16 {FAR}", "pad_copy"),
        (f"--dt=u8:s8:s32 {FAR}", "pad_copy"),
        (f"--dt=u8:s8:s32 {FAR.replace('ic4', 'ic3').replace('mb32', 'mb1')}", "pad_copy"),  # loads lack no terms
    ],
)
def test_first_choices_copy_rows_of_few_channels_beyond_the_caches(line: str, realise: str) -> None:
    level = "avx512_bf16" if "bf16" in line else "avx512_vnni" if "u8" in line else "avx512"
    machine = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5").of(target(level))
    assert default_config(parse_problem(line), machine).realise == realise
