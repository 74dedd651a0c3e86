"""A compile without a config takes the one that measurements chose, and goes on without a bad database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import convsmith as cs
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.tune.candidates import candidates
from convsmith.tune.compile import compile_problem
from convsmith.tune.records import recall
from convsmith.tune.records.database import Database
from convsmith.tune.records.measured import Measured
from convsmith.tune.records.origin import compiler_key, machine_key
from convsmith.tune.records.recall import DatabaseWarning, recalled

LINE = "--stag=axb --dtag=axb mb1ic24ih9oc40oh9kh3ph1"
WEIGHTS = f"--dir=BWD_W {LINE}"
PROBLEM = parse_problem(LINE)
MACHINE = target()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with cs.settings.scope(database=tmp_path / "m.db"):
        yield tmp_path / "m.db"
    recall._unusable.clear()


def row(config: str, line: str = LINE, threads: int = 1, **changes: object) -> Measured:
    problem = str(parse_problem(line).canonical())
    made = Measured(
        problem, config, machine_key(), compiler_key(), MACHINE.name, threads, "ok", 0.5, 1e-5, 0.01, 9
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def others(line: str = LINE, threads: int = 1) -> list[str]:
    """Candidates of the model but the first, without transforms."""
    found = candidates(parse_problem(line), MACHINE, threads)[1:]
    return [str(c.config) for c in found if not c.config.tiles_at("winograd")]


def store(path: Path, *rows: Measured) -> None:
    with Database(path) as database:
        database.put(rows)


def compiled(threads: int = 1, line: str = LINE) -> str:
    return compile_problem(parse_problem(line), target=MACHINE, threads=threads).config


def test_a_kernel_has_the_config_that_was_measured_best(path: Path) -> None:
    default = compiled()
    best, worse = others()[:2]
    store(path, row(best), row(worse, ratio=0.7))
    assert compiled() == best != default
    with cs.settings.scope(database="off"):
        assert compiled() == default


@pytest.mark.parametrize(
    "changes", [{"machine": "znver4-0"}, {"compiler": "other"}, {"status": "crashed"}, {"target": "x"}]
)
def test_rows_of_another_machine_or_compiler_decide_nothing(path: Path, changes: dict[str, object]) -> None:
    default = compiled()
    store(path, row(others()[0], **changes))
    assert compiled() == default


def test_sums_are_the_same_for_any_number_of_threads(path: Path) -> None:
    """The rows of the fewest threads say how sums are added; those of other numbers count where they agree."""
    one = others()[0]
    reordered = one.replace("--reduce=kh,kw,ic", "--reduce=ic,kh,kw")
    assert reordered != one
    agreeing = others()[1]
    store(path, row(one), row(f"{reordered} --threads=2", threads=2, ratio=0.1))
    assert compiled(1) == one and compiled(2) == compiled(3).replace("=3", "=2") == f"{one} --threads=2"
    store(path, row(f"{agreeing} --threads=2", threads=2, ratio=0.3))
    assert compiled(2) == f"{agreeing} --threads=2"


def test_a_gradient_of_weights_has_the_config_of_its_number_of_threads_alone(path: Path) -> None:
    default = compiled(2, WEIGHTS)
    one = others(WEIGHTS)[0]
    store(path, row(one, WEIGHTS))
    assert compiled(1, WEIGHTS) == one
    assert compiled(2, WEIGHTS) == default


def test_a_bad_database_is_one_warning(path: Path) -> None:
    default = compiled()
    path.write_text("no database " * 100)
    with pytest.warns(DatabaseWarning, match="is damaged .*; the model chooses configs") as record:
        assert compiled() == default
        assert compiled(line=WEIGHTS)
    assert len(record) == 1


def test_a_question_without_a_database_makes_no_file_and_imports_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs a look at the file system: without the lock, no module of the database is imported."""
    monkeypatch.setattr(recall, "import_lock", None)
    assert recalled(PROBLEM.canonical(), MACHINE, 1) is None
    assert not path.exists()
    path.touch()
    with pytest.raises(TypeError):
        recalled(PROBLEM.canonical(), MACHINE, 1)
