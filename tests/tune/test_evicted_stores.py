"""Stores whose lines others evict, which run beside the multiply-adds of the next tile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convsmith.machine.base import Machine
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.statement.views import statement
from convsmith.tune.candidates import default_config
from convsmith.tune.costs.model import Model

ZEN5 = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5")


def model_of(line: str, machine: Machine) -> Model:
    problem = parse_problem(line)
    st = statement(problem, machine)
    return Model(problem, st, machine, ProductShape.plain(st, machine))


@pytest.mark.parametrize("added", [0, 4])
@pytest.mark.parametrize(("rows", "apart"), [(64, True), (62, False)])
@pytest.mark.parametrize(("level", "pixels", "channels"), [
    ("avx2", 4, 24), ("avx2", 6, 16), ("avx2", 4, 8), ("avx2", 2, 24), ("avx512", 4, 48), ("avx512", 16, 32),
])  # fmt: skip
def test_stores_beyond_the_ways_of_their_set_find_their_lines_evicted(
    level: str, pixels: int, channels: int, rows: int, apart: bool, added: int
) -> None:
    """Channels of 64 x 64 pixels share a set. Of N lines, the ways keep their part; whole lines are not read."""
    machine = replace(target(level), costs=replace(target(level).costs, added_ways=added))
    model = model_of(f"--stag=axb --dtag=abx mb1ic64ih{rows}oc96kh1", machine)
    lanes = machine.vector_bits // 32
    kept = machine.l1.ways + added
    stores = channels if pixels >= 4 else channels * pixels  # of fewer pixels, each element is stored alone
    evicted = stores * max(1 - kept / channels, 0) if apart and pixels * 4 < machine.l1.line else 0
    found = model.evicted_stores("oc", {"ow": pixels, "oc": channels}, pixels, pixels * channels // lanes)
    assert found == pytest.approx(evicted)


def test_a_residue_class_writes_parts_of_several_lines() -> None:
    line = "--dir=BWD_D --stag=abx --dtag=abx mb1ic32ih128iw256oc32oh64ow128kh3kw3sh2sw2ph1pw1"
    model = model_of(line, target("avx512"))
    found = {n: model.evicted_stores("ic", {"iw": n, "ic": 32}, n, 2 * n) for n in (8, 16)}
    assert found == {8: pytest.approx(32 * 0.75), 16: pytest.approx(32 * 2 * 0.75)}


def test_arithmetic_hides_stores_of_evicted_lines() -> None:
    """4 pixels by 24 channels take 337 cycles with 4 terms, 370 with 64, and 32 or 361 elsewhere (Zen 5, 256 bits)."""
    times = {}
    for channels in (4, 64):
        for rows in (64, 62):
            machine = ZEN5.of(target("avx2"))
            model = model_of(f"--stag=axb --dtag=abx mb1ic{channels}ih{rows}oc48kh1", machine)
            config = Config("avx2", "oc", register=(("ow", 4), ("oc", 24)), order=("mb", "oc", "oh", "ow"))
            tiles = rows * -(-rows // 4) * 2
            times[channels, rows] = model.cycles(loops_after_fusing(model.st, config), config, near=True) / tiles
    assert times[4, 64] > 3 * times[4, 62]
    assert times[64, 64] < 1.25 * times[64, 62]


@pytest.mark.parametrize(("level", "vectors"), [("avx2", 3), ("avx512", 2)])
def test_a_stem_of_24_channels_reads_its_source_once(level: str, vectors: int) -> None:
    """Tiles of 8 channels read the source three times: 8.2 ms at 256 bits of Zen 5, those of 24 4.1 ms."""
    problem = parse_problem("--stag=abx --dtag=abx mb1ic3ih1024oc24oh256kh7sh4ph3")
    machine = ZEN5.of(target(level))
    chosen = default_config(problem, machine, 1)
    assert (chosen.lane, chosen.size("oc")) == ("oc", vectors * machine.vector_bits // 32)
