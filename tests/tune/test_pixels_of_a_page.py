"""Tiles of few results, whose lanes are channels, read few pixels of a page at a time where these come from memory."""

from __future__ import annotations

import pytest

from convsmith.machine.micro_architectures import named
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.statement.views import statement
from convsmith.tune.candidates import default_config
from convsmith.tune.costs.far_lines import lines_of_pixels_of_a_page
from convsmith.tune.costs.model import Model
from convsmith.tune.costs.tile_counts import whole_tiles

ZEN4 = named("znver4").of(next(level for level in LEVELS if level.name == "avx512"))
LAYOUTS = "--stag=axb --dtag=axb"
FAR = "mb4ic256ih256oc3oh256kh1ph0"


@pytest.mark.parametrize(
    ("line", "pixels"),
    [(FAR, 1), ("mb16ic64ih112oc4oh112kh1ph0", 2), ("mb1ic256ih64oc3oh64kh1ph0", 5), ("mb4ic1024ih64oc2oh64kh1ph0", 8)],
    ids=["one-run-of-lines", "short-runs", "from-a-cache", "a-page-for-each"],
)
def test_first_choices_have_few_pixels_where_lines_come_from_memory(line: str, pixels: int) -> None:
    config = default_config(parse_problem(f"{LAYOUTS} {line}"), ZEN4)
    assert config.lane == "ic" and dict(config.tiles_at("register"))["mb_oh_ow"] == pixels


@pytest.mark.parametrize(
    ("line", "pixels", "late"),
    [(FAR, 1, 0.0), (FAR, 4, 1.0), ("mb4ic64ih256oc3oh256kh1ph0", 2, 0.25), ("mb1ic256ih64oc3oh64kh1ph0", 4, None)],
)
def test_lines_behind_the_first_stream_of_a_page_are_late(line: str, pixels: int, late: float | None) -> None:
    problem = parse_problem(f"{LAYOUTS} {line}")
    st = statement(problem, ZEN4)
    model = Model(problem, st, ZEN4, ProductShape.plain(st, ZEN4))
    config = Config.parse(f"--target=avx512 --lane=ic --register=ow:{pixels},oc:3 --reduce=kh,kw,ic")
    loops = loops_after_fusing(st, config)
    found = dict(lines_of_pixels_of_a_page(model, loops, config, whole_tiles(model, loops, config)))
    assert found == ({} if late is None else {"memory_line": late * st.a.bytes / 64})
