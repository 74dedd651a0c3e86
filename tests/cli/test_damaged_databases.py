"""A database with damaged rows, or in place of one something else: one warning or one error, and `compile` goes on.

Every column gets every damaged value, and every reader reads the file.
"""

from __future__ import annotations

import json
import os
import sqlite3
import warnings
from collections.abc import Iterator
from dataclasses import asdict, astuple, replace
from pathlib import Path

import pytest
from commands import run

import convsmith as cs
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.tune.compile import compile_problem
from convsmith.tune.records import database as databases
from convsmith.tune.records import recall
from convsmith.tune.records.checked_rows import COLUMNS, checked
from convsmith.tune.records.database import Database, DatabaseError, check_rows
from convsmith.tune.records.measured import DatabaseWarning, Measured
from convsmith.tune.records.origin import compiler_key, machine_key
from convsmith.tune.records.report import model_errors

LINE = "mb1ic8iw8oc8kw1"
PROBLEM = parse_problem(LINE).canonical()
CONFIG = "--target=generic --lane=oc"
GOOD = Measured(
    str(PROBLEM), CONFIG, machine_key(), compiler_key(), "generic", 1, "ok", 1.0, 1e-5, 0.01, 9, 100.0, "", "2026-01-31"
)
PLACES = {name: number for number, name in enumerate(COLUMNS)}
DAMAGED = {
    "bytes": b"\x00\xff", "no utf-8": b"CAST", "number": 2**63 - 1,
    "negative": -1, "infinite": float("inf"), "tiny": 5e-324, "empty": "", "word": "\x1b[2J", "fraction": 0.5,
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with cs.settings.scope(database=tmp_path / "m.db"):
        yield tmp_path / "m.db"
    recall._unusable.clear()
    recall._refused.clear()
    databases._told.clear()


def compiled() -> str:
    """Return the config that a compile without one takes."""
    return compile_problem(PROBLEM, target=target("generic")).config


def stored(path: Path, column: str, value: object) -> None:
    """Write one row with a value in a column, whatever the row's meaning permits."""
    row = list(astuple(GOOD))
    row[PLACES[column]] = value
    marks = ["CAST(X'fffe' AS TEXT)" if x == b"CAST" else "?" for x in row]
    with Database(path):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM measurements")
        connection.execute(f"INSERT INTO measurements VALUES ({', '.join(marks)})", [x for x in row if x != b"CAST"])
    connection.close()


@pytest.mark.sampled(18)
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_value_is_one_warning(path: Path, column: str, kind: str) -> None:
    stored(path, column, DAMAGED[kind])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Database(path, create=False) as database:
            rows = database.rows()
            model_errors(rows)
    said = [w for w in caught if issubclass(w.category, DatabaseWarning)]
    assert len(said) == 1 - len(rows)
    for row in rows:
        assert checked(astuple(row)) == row


@pytest.mark.sampled(12, wide=1, every="kind column")
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("kind", ["bytes", "no utf-8", "number", "negative", "infinite", "word"])
def test_no_reader_fails(path: Path, column: str, kind: str) -> None:
    stored(path, column, DAMAGED[kind])
    for words in (("best",), ("list",), ("export", "-")):
        result = run("db", *words)
        assert result.exit_code == 0 and "InternalError" not in result.output, result.output
    assert run("tune", "--report").exit_code == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DatabaseWarning)
        assert compiled()


@pytest.mark.parametrize(
    "config",
    ["--target=generic --lane=zz", "--target=generic", "nonsense", "--target=avx2 --lane=oc",
     "--target=generic --lane=oc --register=oc:6", "--target=generic --lane=oc --register=ow:" + "9" * 5000,
     "--target=generic --lane=oc --threads=2"],
)  # fmt: skip
def test_a_config_of_which_no_kernel_is_made_is_one_warning(path: Path, config: str) -> None:
    with cs.settings.scope(database="off"):
        expected = compiled()
    stored(path, "config", config)
    with pytest.warns(DatabaseWarning) as caught:
        assert compiled() == expected
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("column", "value"),
    [("ratio", 0), ("ratio", -1), ("ratio", float("inf")), ("ratio", float("nan")), ("ratio", None), ("ratio", "1"),
     ("threads", 2**63), ("threads", True), ("threads", 0), ("rounds", -1), ("rounds", 1.5), ("status", "fine"),
     ("problem", "\ud800"), ("problem", "nonsense"), ("note", "\ud800"), ("config", "nonsense"), ("config", 5),
     ("machine", ""), ("date", "today"), ("target", "avx2"), ("threads", 2), ("seconds", [1]), ("spread", {}),
     ("predicted", 10**400)],
)  # fmt: skip
def test_an_illegal_row_is_not_imported(column: str, value: object) -> None:
    assert check_rows([asdict(GOOD)], "rows.json") == [GOOD]
    with pytest.raises(DatabaseError, match=rf"^rows\.json: row 1 is no measurement; .*{column}"):
        check_rows([asdict(GOOD) | {column: value}], "rows.json")


def test_every_row_of_another_compiler_is_a_hint(path: Path) -> None:
    """Its config may have words that this compiler does not know."""
    row = replace(GOOD, compiler="another", config="--word=new")
    assert check_rows([asdict(row)], "rows.json") == [row]


ENDLESS = (
    "DROP TABLE measurements; CREATE VIEW measurements AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM "
    "n) SELECT " + ", ".join(f"i AS {name}" for name in COLUMNS) + " FROM n"
)


@pytest.mark.parametrize(
    "change",
    [ENDLESS, "DROP TABLE measurements", "DROP TABLE machines",
     "CREATE TRIGGER t AFTER INSERT ON measurements BEGIN DELETE FROM machines; END", "CREATE VIEW v AS SELECT 1"],
)  # fmt: skip
def test_other_tables_are_refused(path: Path, change: str) -> None:
    with Database(path) as database:
        database.put([GOOD])
    with sqlite3.connect(path) as connection:
        connection.executescript(change)
    connection.close()
    with pytest.warns(DatabaseWarning, match="its tables are not those that `convsmith tune` makes") as caught:
        assert compiled()
    assert len(caught) == 1
    for words in (("db", "best"), ("db", "list"), ("db", "export", "-"), ("tune", "--report")):
        result = run(*words)
        assert result.exit_code == 2 and result.stderr.startswith("DatabaseError"), result.output


def test_a_query_has_a_bounded_number_of_steps_and_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Database(path) as database:
        database.put([replace(GOOD, compiler=str(n)) for n in range(3)])
        with pytest.raises(DatabaseError, match="a query takes more than -1 million steps"):
            monkeypatch.setattr(databases, "MAX_STEPS", -1)
            database._connection.set_progress_handler(database._count_step, 1)
            database.rows()
        database._connection.set_progress_handler(None, 0)
        monkeypatch.setattr(databases, "MAX_ROWS", 2)
        with pytest.raises(DatabaseError, match="it has more than 2 rows"):
            database.rows()


@pytest.mark.parametrize(
    ("name", "mode", "why"), [("m.db", 0o666, "others can write to it"), (".", 0o777, "others can replace it")]
)
def test_a_file_that_others_can_change_is_not_used(path: Path, name: str, mode: int, why: str) -> None:
    with Database(path) as database:
        database.put([GOOD])
    os.chmod(path.parent / name, mode)
    with pytest.warns(DatabaseWarning, match=why) as caught:
        assert compiled()
    assert len(caught) == 1
    assert run("db", "list").exit_code == 2
    with Database(path, create=False, own=False) as database:
        assert database.rows() == [GOOD]


def test_a_pipe_in_place_of_the_file_is_refused(path: Path) -> None:
    os.mkfifo(path)
    with pytest.warns(DatabaseWarning, match="is no regular file"):
        assert compiled()


def test_descriptions_of_machines_are_lines_of_text(path: Path) -> None:
    with Database(path) as database:
        database.put([GOOD])
        database.name_machine("m", "\x1b[2J")
        database.name_machine("n", "a machine")
        with pytest.warns(DatabaseWarning, match="1 of 2 descriptions"):
            assert database.machines() == {"n": "a machine"}
    assert json.loads(run("db", "export", "-").stdout)["machines"] == {"n": "a machine"}
