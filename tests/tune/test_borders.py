"""The parts of register tiles that terms compute at borders: together they are the multiply-adds of the problem."""

from __future__ import annotations

import pytest

from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops, loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.statement.views import statement
from convsmith.tune.candidates import default_config
from convsmith.tune.costs.borders import presence
from convsmith.tune.costs.expected import expected_terms
from convsmith.tune.costs.features import time
from convsmith.tune.costs.model import Model
from convsmith.tune.costs.tile_counts import parts_inside, whole_tiles

TARGETS = {t.name: t for t in LEVELS}
DILATED = "--dir=BWD_D --stag=axb --dtag=axb mb2ic256iw15oc512ow15kw3pw6dw5"


def modelled(line: str, config: Config, level: str = "avx512") -> tuple[Model, Loops]:
    problem, target = parse_problem(line).canonical(), TARGETS[level]
    st = statement(problem, target)
    return Model(problem, st, target, ProductShape.plain(st, target)), loops_after_fusing(st, config)


def tiled(lane: str, **sizes: int) -> Config:
    return Config("avx512", lane, register=tuple(sizes.items()))


def test_dilated_taps_cut_a_row() -> None:
    (row,) = presence(statement(parse_problem(DILATED).canonical(), TARGETS["avx512"])).values()
    assert row.runs == ((0, 9), (0, 15), (6, 15))
    assert row.cut(8) == [(1, 7, 1 / 3), (2, 8, 1 / 3), (7, 7, 2 / 3), (8, 8, 2 / 3)]
    assert row.cut(5) == [(4, 5, 2 / 3), (5, 5, 5 / 3)]
    assert row.mean() == 11


def test_a_vector_is_whole_if_one_of_its_lanes_is_present() -> None:
    (row,) = presence(statement(parse_problem(DILATED).canonical(), TARGETS["avx512"])).values()
    assert row.cut(1, 4) == [(1, 1, 10 / 3)]  # vectors 0 to 2, 0 to 3 and 1 to 3; the last run begins within a vector
    assert row.cut(4, 4) == [(3, 4, 2 / 3), (4, 4, 1 / 3)]


@pytest.mark.parametrize(
    "line, config",
    [
        ("mb1ic16ih7oc16kh3ph1", tiled("oc", ow=4, oc=16)),
        ("mb1ic16ih7oc16kh3ph1", tiled("oc", oh=2, ow=7, oc=16)),
        ("mb2ic16ih12iw9oc32oh6ow9kh3kw3sh2ph1pw1", tiled("oc", ow=5, oc=32)),
        ("mb1ic16id3oc16od1kd5pd2", tiled("oc", ow=1, oc=16)),
        ("mb1ic16ih9oc16oh11kh1ph1", tiled("oc", ow=3, oc=16)),
        ("--dir=BWD_D mb1ic32ih11oc16oh11kh5ph2", tiled("ic", iw=4, ic=32)),
        ("--dir=BWD_D mb1ic32ih28oc16oh14kh5sh2ph1", tiled("ic", iw=6, ic=32)),
        ("--dir=BWD_D mb1ic16ih13oc16oh7kh1sh2", tiled("ic", iw=3, ic=16)),
        ("--dir=BWD_D mb1ic16ih13oc16oh5kh3sh3ph3dh2", tiled("ic", iw=4, ic=16)),
        ("--dir=BWD_D mb1ic16ih21oc16oh5kh3sh4ph2dh1", tiled("ic", iw=4, ic=16)),
        ("--deconv mb1ic16ih9oc16oh18kh4sh2ph1", tiled("oc", ow=4, oc=16)),
        ("g32mb1ic32ih9oc32kh5ph2", tiled("g", oh=2, ow=4, g=16, kh=5, kw=5)),
        ("mb3ic16ih7iw9oc16oh7ow9kh3kw3ph1pw1", tiled("oc", mb=2, oh=2, ow=4, oc=16)),
        (DILATED, tiled("ic", iw=8, ic=48)),
    ],
    ids=lambda x: "" if isinstance(x, Config) else x,
)
def test_parts_of_tiles_compute_what_is_present(line: str, config: Config) -> None:
    model, loops = modelled(line, config)
    lanes, steps = model.filled(config.lane), model.terms // model.classes_per_tap
    parts = sum(t.sums * t.number for t in parts_inside(model, loops, config)) * lanes * steps
    assert 2 * parts == pytest.approx(model.problem.flops_real)
    whole = sum(t.sums * t.number for t in whole_tiles(model, loops, config)) * lanes * steps
    assert model.classes or 2 * whole == model.problem.flops_dense


@pytest.mark.parametrize("realise", ["pad_copy", "indirection", "mask"])
def test_other_ways_to_read_borders_compute_whole_tiles(realise: str) -> None:
    config = tiled("oc", ow=4, oc=16).changed(realise=realise)
    model, loops = modelled("mb1ic16ih7oc16kh3ph1", config)
    assert parts_inside(model, loops, config) == whole_tiles(model, loops, config)


@pytest.mark.parametrize("taps, present", [("kh", 19 / 21), ("kd,kh", 19 / 21 * 7 / 9)])
def test_a_padded_copy_leaves_out_the_taps_of_restricted_loops(taps: str, present: float) -> None:
    config = tiled("oc", ow=4, oc=16).changed(realise="pad_copy", restrict=tuple(taps.split(",")))
    model, loops = modelled("mb1ic16id3ih7iw7oc16od3oh7ow7kd3kh3kw3pd1ph1pw1", config)
    parts, whole = ([*count(model, loops, config)] for count in (parts_inside, whole_tiles))
    sums = [sum(t.sums * t.number for t in tiles) for tiles in (parts, whole)]
    assert sums[0] == pytest.approx(sums[1] * present)


@pytest.mark.parametrize(
    "line, restrict",
    [
        ("--stag=abx --dtag=abx mb1ic120id4ih28iw28oc40od4oh28ow28kd5kh1kw1pd2ph0pw0", ("kd",)),
        ("--stag=abx --dtag=abx mb1ic512ih7oc512oh7kh3ph1", ("kh",)),
        ("--stag=abx --dtag=abx mb1ic64ih56oc64oh56kh3ph1", ()),
    ],
)
def test_copies_restrict_the_loops_of_which_many_taps_meet_padding(line: str, restrict: tuple[str, ...]) -> None:
    config = default_config(parse_problem(f"--dt=u8:s8:s32 {line}"), TARGETS["avx512_vnni"], 1)
    assert (config.realise, config.restrict) == ("pad_copy", restrict)


def test_gradients_of_weights_compute_whole_tiles() -> None:
    config = tiled("oc", ic=8, oc=16)
    model, loops = modelled("--dir=BWD_W mb1ic32ih9oc16kh3ph1", config)
    assert parts_inside(model, loops, config) == whole_tiles(model, loops, config)


def test_tiles_of_long_sums_are_whole() -> None:
    st = statement(parse_problem("mb1ic4iw100000oc4ow100000kw50001pw25000").canonical(), TARGETS["avx512"])
    assert presence(st) == {}


def test_rows_along_lanes_are_cut_in_vectors() -> None:
    config = tiled("ow", oc=1, oh=4, ow=32)
    model, loops = modelled("--stag=abx --dtag=abx g8mb1ic8ih40oc8oh40kh3ph20dh19", config)
    parts = parts_inside(model, loops, config)
    assert {(t.pixels, t.vectors) for t in parts} == {(4, 2), (4, 1)}
    assert sum(t.number for t in parts) == pytest.approx(8 * (5 + 10 + 5) / 3 * (1 + 2 + 2) / 3)


def test_small_parts_take_longer_than_their_share() -> None:
    few, many = tiled("ic", iw=8, ic=48), tiled("ic", iw=5, ic=64)
    cycles = {}
    for config in (few, many):
        model, loops = modelled(DILATED, config)
        terms = time(model.kernel(loops, config), model.target)
        cycles[config] = sum(terms.values())
    assert cycles[many] < cycles[few]
    assert ("iw", 8) not in default_config(parse_problem(DILATED), TARGETS["avx512"], 1).tiles_at("register")


@pytest.mark.parametrize(
    "fused",
    [
        "--fuse=mb+od --register=mb_od:1,oc:16 --order=mb_od,oh,ow,oc",
        "--fuse=od+oh --register=od_oh:1,oc:16 --order=mb,od_oh,ow,oc",
    ],
)
def test_a_loop_that_meets_a_border_may_be_fused(fused: str) -> None:
    problem = parse_problem("--stag=axb --dtag=axb mb2ic8id4ih6iw6oc16od4oh6ow6kd5kh1kw1pd2ph0pw0")

    def cycles(words: str) -> float:
        config = Config.parse(f"--target=avx2 --lane=oc {words} --reduce=kd,kh,kw,ic")
        return sum(expected_terms(problem, config, TARGETS["avx2"]).values())

    assert cycles(fused) == pytest.approx(cycles("--register=oc:16 --order=mb,od,oh,ow,oc"))
