"""Configs that were best elsewhere: of other machines, in the package's tables, and of the nearest problems."""

from __future__ import annotations

from pathlib import Path

import pytest

from convsmith.diag.settings import settings
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import known_targets
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import candidates, default_config
from convsmith.tune.compile import choose
from convsmith.tune.records import shipped
from convsmith.tune.records.database import Database
from convsmith.tune.records.measured import Measured
from convsmith.tune.records.shipped import MeasuredTable, table, table_names
from convsmith.tune.search.hints import hints
from convsmith.tune.search.neighbours import distance, nearest, transferred

TARGETS = {t.name: t for t in known_targets()}
AVX2 = TARGETS["avx2"]


def line(text: str) -> str:
    return str(parse_problem(text).canonical())


def test_the_distance_is_in_powers_of_two() -> None:
    one = line("mb1ic64ih28oc128oh28kh3ph1")
    assert distance(one, line("mb1ic128ih14oc64oh14kh3ph1")) == 1 + 1 + 1 + 1
    assert distance(one, one) == 0


@pytest.mark.parametrize("other", [
    "mb1ic64ih28oc128oh28kh5ph2", "mb1ic64ih28oc128oh14kh3sh2ph1", "--dt=bf16 mb1ic64ih28oc128oh28kh3ph1",
    "--dir=BWD_D mb1ic64ih28oc128oh28kh3ph1", "g32mb1ic64ih28oc128oh28kh3ph1", "--stag=axb mb1ic64ih28oc128oh28kh3ph1",
    "mb1ic3ih28oc128oh28kh3ph1",
])  # fmt: skip
def test_problems_of_another_kind_are_no_neighbours(other: str) -> None:
    assert distance(line("mb1ic64ih28oc128oh28kh3ph1"), line(other)) is None


def test_the_nearest_comes_first_and_the_problem_itself_not_at_all() -> None:
    own = line("mb1ic64ih28oc128oh28kh3ph1")
    known = [(line(f"mb1ic{ic}ih28oc128oh28kh3ph1"), str(ic)) for ic in (512, 96, 64, 4096)]
    assert nearest(own, known) == ["96", "512", "4096"]
    assert nearest(line("--matmul 64x64:64x64"), [(line("--matmul 65x64:64x64"), "other")]) == []


def test_a_transferred_config_has_tiles_within_the_loops() -> None:
    layer = "--stag=axb --dtag=axb mb1ic64ih{0}oc128oh{0}kh3ph1"
    large, small = (parse_problem(layer.format(n)).canonical() for n in (28, 4))
    for choice in candidates(large, AVX2, 1)[:20]:
        moved = transferred(str(choice.config), small, AVX2, 2)
        if moved is not None and moved.lane == "oc":
            assert moved.threads == 2 and max(moved.size("ow"), moved.size("oh")) <= 4
            with interning():
                plan(small, moved, AVX2)
    assert transferred("--target=avx2 --lane=nonsense", small, AVX2, 1) is None
    assert transferred("--target=avx512 --lane=oc", small, AVX2, 1) is None
    assert transferred("no config", small, AVX2, 1) is None


def test_rows_of_another_machine_are_hints(tmp_path: Path) -> None:
    """They are proposed, those of the problem before those of its neighbour."""
    problem, other = (parse_problem(f"--accuracy=strict mb1ic{ic}ih28oc128oh28kh3ph1").canonical() for ic in (64, 96))
    first, second = (str(c.config) for c in candidates(problem, AVX2, 1)[3:5])
    with Database(tmp_path / "m.db") as database:
        for p, config, machine in ((other, second, recall_machine()), (problem, first, "znver4-0")):
            database.put([Measured(str(p), config, machine, "c", "avx2", 1, "ok", 0.5, 1e-3, 0.01, 9)])
        assert [str(config) for config in hints(problem, AVX2, 1, database)][:2] == [first, second]


def recall_machine() -> str:
    from convsmith.tune.records.origin import machine_key

    return machine_key()


def test_the_table_serves_where_the_model_still_makes_the_choice_that_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    problem = parse_problem("mb1ic64ih28oc128oh28kh3ph1").canonical()
    gradient = parse_problem("--dir=BWD_W mb1ic64ih28oc128oh28kh3ph1").canonical()
    changed = parse_problem("mb1ic64ih28oc256oh28kh3ph1").canonical()
    found = {p: [str(c.config) for c in candidates(p, AVX2, 1)] for p in (problem, gradient, changed)}
    rows = {(str(p), found[p][0]): (found[p][2], 0.5) for p in (problem, gradient)}
    rows[str(changed), found[changed][1]] = found[changed][2], 0.5
    monkeypatch.setattr(shipped, "own_table", lambda: MeasuredTable("a CPU", "2026-01-01", rows))
    assert str(choose(problem, AVX2, 1, False)) == found[problem][0]  # the suite turns measurements off
    with settings.scope(database=tmp_path / "none.db"):
        assert str(choose(problem, AVX2, 1, False)) == found[problem][2]
        assert str(choose(problem, AVX2, 3, False)) == f"{found[problem][2]} --threads=3"
        assert choose(problem, TARGETS["avx512"], 1, False).target == "avx512"
        assert str(choose(gradient, AVX2, 1, False)) == found[gradient][2]
        assert choose(gradient, AVX2, 2, False) == default_config(gradient, AVX2, 2)
        assert str(choose(changed, AVX2, 1, False)) == found[changed][0]


@pytest.mark.parametrize("name", table_names())
def test_every_row_of_a_table_that_is_in_force_makes_a_kernel(name: str) -> None:
    made = table(name)
    assert made is not None and made.machine and made.configs
    for (problem, first), (config, ratio) in made.configs.items():
        canonical = parse_problem(problem).canonical()
        assert str(canonical) == problem and 0 < ratio < 1
        level = _level(first.partition(" ")[0].removeprefix("--target="))
        if str(default_config(canonical, level)) == first:
            with interning():
                plan(canonical, Config.parse(config), level)


def _level(name: str) -> Machine:
    return TARGETS[name]


def test_an_unknown_micro_architecture_has_no_table() -> None:
    assert shipped.table("nothing") is None
