"""Code of register tiles has a price beyond the cache of instructions; rows of residue classes need little of it."""

from __future__ import annotations

import pytest

import convsmith as cs
from convsmith.diag.errors import UnsupportedError
from convsmith.machine.base import Machine
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops, loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.statement.views import statement
from convsmith.tune.candidates import default_config
from convsmith.tune.costs.code_size import bytes_of_code, emitted, passes
from convsmith.tune.costs.features import time
from convsmith.tune.costs.model import Model

TARGETS = {t.name: t for t in LEVELS}
WINDOWS = "--dt=u8:s8:s32 --stag=abx --dtag=abx g64mb2ic64ih40oc64kh5ph2"
WHOLE = (
    "--target=avx2 --lane=ow --register=oc:1,oh:8,ow:8,kw:5,kh:5 --order=mb,g,oh,ow,oc --reduce=ic,kh,kw "
    "--realise=pad_copy"
)


def modelled(line: str, config: Config, target: Machine) -> tuple[Model, Loops]:
    problem = parse_problem(line).canonical()
    st = statement(problem, target)
    model = Model(problem, st, target, ProductShape.plain(st, target))
    return model, loops_after_fusing(st, config)


def test_bytes_are_counted_for_each_piece() -> None:
    target, config = TARGETS["avx2"], Config.parse(WHOLE)
    model, loops = modelled(WINDOWS, config, target)
    sums = 8 * 3 * 3  # the first, the last and the other tiles of both axes, of 8 vectors
    products = 25 * sums
    assert emitted(model, loops, config) == products
    assert bytes_of_code(model, loops, config) == 8 * (4 * products + model.operations * sums)
    assert passes(model, loops, config) == 2 * 64
    two = config.changed(register=(("oc", 1), ("oh", 20), ("ow", 8), ("kw", 5), ("kh", 5)))
    assert bytes_of_code(model, loops, two) == 8 * (4 * 25 + model.operations) * 20 * 2 * 3  # no tile is in between


def test_code_that_the_cache_keeps_is_free() -> None:
    target, config = TARGETS["avx2"], Config.parse(WHOLE)
    model, loops = modelled(WINDOWS, config, target)
    far = bytes_of_code(model, loops, config) - target.costs.code_kept
    assert far > 0
    expected = far * passes(model, loops, config) * target.costs.code_byte
    assert time(model.features(loops, config), target)["code"] == pytest.approx(expected)
    assert "code" not in time(model.features(loops, config.changed(register=config.tiles_at("register")[:-2])), target)


@pytest.mark.parametrize("stride", [1, 2])
def test_windows_of_bytes_have_no_more_code_than_twice_the_cache(stride: int) -> None:
    line = f"--dt=u8:s8:u8 --stag=abx --dtag=abx g512mb1ic512ih43oc512kh5sh{stride}ph1"
    config = default_config(parse_problem(line).canonical(), TARGETS["avx2"])
    model, loops = modelled(line, config, TARGETS["avx2"])
    assert bytes_of_code(model, loops, config) <= 2 * model.target.costs.code_kept


CLASSES = [
    "--deconv --stag=abx --dtag=abx g24mb1ic24ih7oc24oh14kh3sh2ph1",
    "--dir=BWD_D --stag=abx --dtag=abx g24mb1ic24ih30oc24oh15kh3sh2ph1",
    "--dir=BWD_D --stag=abx --dtag=abx g24mb1ic24ih28oc24oh14kh5sh2ph2",
    "--deconv --stag=abx --dtag=abx g8mb2ic8id3ih7iw7oc8od3oh14ow14kd3kh3kw3sd1sh2sw2pd1ph1pw1",
]


@pytest.mark.parametrize("line", CLASSES)
def test_rows_of_residue_classes_meet_borders_in_place(line: str) -> None:
    config = default_config(parse_problem(line).canonical(), TARGETS["avx512"])
    assert config.lane in ("ow", "iw") and config.realise == "peel"


@pytest.mark.parametrize(
    ("isa", "line"),
    [
        ("avx512", "--deconv --stag=abx --dtag=abx g64mb1ic64ih16oc64oh41kh11sh2ph0"),  # many taps
        ("avx2", "--deconv --stag=abx --dtag=abx g64mb1ic64ih13oc64oh31kh7sh2ph0"),  # masked loads take longer
        ("avx512_vnni", "--deconv --dt=u8:s8:s32 --stag=abx --dtag=abx g64mb1ic64ih18oc64oh41kh7sh2ph0"),  # and extend
        ("avx512", "--deconv --stag=abx --dtag=abx mb1ic21ih18iw22oc21oh38ow46kh4kw4sh2sw2ph0pw0"),  # many channels
    ],
)
def test_classes_of_many_taps_or_channels_read_no_rows_in_place(isa: str, line: str) -> None:
    config = default_config(parse_problem(line).canonical(), TARGETS[isa])
    assert (config.lane, config.realise) != ("ow", "peel")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("isa", ["avx512", "avx2"])
@pytest.mark.parametrize("line", CLASSES)
def test_they_are_exact_and_short(line: str, isa: str) -> None:
    try:
        kernel = cs.compile(line, target=isa, threads=1)
        verdict = kernel.verify()
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert verdict.ok, verdict.detail
    assert len(kernel.artifact.code) <= 16 << 10


def test_loads_ahead_follow_residue_classes() -> None:
    line = "--dir=BWD_D --stag=abx --dtag=abx mb1ic3ih224oc96oh112kh3sh2ph1"
    words = "--target=avx512 --lane=iw --register=ic:3,iw:112 --order=mb,ih,iw,ic --reduce=kh,kw,oc --stream=diff_dst"
    assert "@llvm.prefetch" in cs.compile(line, config=words, threads=1).llvm()
