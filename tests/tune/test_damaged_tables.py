"""Tables of the package and rows of a cluster's workers that are damaged: one warning, and the model chooses."""

from __future__ import annotations

import json
import os
import stat
import warnings
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
from damaged import JSON

import convsmith as cs
from convsmith.compiler import driver
from convsmith.compiler.cache import CacheWarning
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.planned import plan_for
from convsmith.schedule.wish import Wish, read_decisions
from convsmith.tune.compile import choose, compile_problem
from convsmith.tune.records import recall, shipped
from convsmith.tune.records.database import Database
from convsmith.tune.records.measured import DatabaseWarning, Measured
from convsmith.tune.records.origin import compiler_key, machine_key
from convsmith.tune.records.shipped import MeasuredTable
from convsmith.tune.search import cluster

PROBLEM = parse_problem("mb1ic8iw8oc8kw1").canonical()
GENERIC = target("generic")
FIRST = choose(PROBLEM, GENERIC, 1, False)
ROW = [str(PROBLEM), str(FIRST), str(FIRST), 0.9]
TABLE = {"schema": shipped.SCHEMA, "machine": "a CPU", "date": "2026-01-31", "rows": [ROW]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of tables in place of the package's."""
    (tmp_path / "tables").mkdir()
    monkeypatch.setattr(shipped.resources, "files", lambda _: tmp_path)
    shipped.table.cache_clear()
    yield tmp_path / "tables"
    shipped.table.cache_clear()


def test_the_tables_of_the_package_are_legal() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(shipped.table(name) for name in shipped.table_names())


@pytest.mark.parametrize(
    "content",
    [*JSON, *(json.dumps(TABLE | change).encode() for change in (
        {"schema": 1}, {"machine": 5}, {"date": "today"}, {"rows": {}}, {"rows": [5]}, {"rows": [ROW[:3]]},
        {"rows": [[*ROW[:3], 0]]}, {"rows": [[*ROW[:3], -1]]}, {"rows": [[*ROW[:3], float("inf")]]},
        {"rows": [[*ROW[:3], "0.9"]]}, {"rows": [[*ROW[:3], 10**400]]}, {"rows": [["\ud800", *ROW[1:]]]},
        {"rows": [["mb" + "9" * 5000, *ROW[1:]]]}, {"rows": [[None, *ROW[1:]]]},
    ))],
)  # fmt: skip
def test_a_damaged_table_is_one_warning(content: bytes, folder: Path) -> None:
    (folder / "broken.json").write_bytes(content)
    with pytest.warns(DatabaseWarning, match="the table of broken is damaged and not used: ") as caught:
        assert shipped.table("broken") is None
        assert shipped.table("broken") is None
    assert len(caught) == 1


@pytest.mark.parametrize(
    "config",
    ["nonsense", "--target=avx2 --lane=oc", "--target=generic --lane=zz", "--target=generic --lane=oc --threads=2",
     "--target=generic --lane=oc --register=ow:" + "9" * 5000, "--target=generic --lane=oc --register=kd:3",
     "--target=generic --lane=oc" + " --then" * 3000],
)  # fmt: skip
def test_a_config_of_which_no_kernel_is_made_is_one_warning(
    config: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = MeasuredTable("a CPU", "2026-01-31", {(str(PROBLEM), str(FIRST)): (config, 0.9)})
    monkeypatch.setattr(shipped, "own_table", lambda: made)
    with (
        pytest.warns(DatabaseWarning, match="the row for .* is not used: ") as caught,
        cs.settings.scope(database=tmp_path / "m.db"),
    ):
        assert choose(PROBLEM, GENERIC, 1, False) == choose(PROBLEM, GENERIC, 1, False) == FIRST
    assert len(caught) == 1


PLANNED = FIRST.changed(register=(("oc", 2), ("ow", 8)))
"""A config that the plan accepts."""
REFUSALS = [cs.ConfigError("planted", "a pass refuses it"), cs.ToolchainError("a pass refuses it"),
            cs.InternalError("a pass refuses it")]  # fmt: skip


@pytest.mark.sampled(2, "source", "wish", "refusal")
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("wish", [None, read_decisions(f"--lane={FIRST.lane}")], ids=["default", "wish"])
@pytest.mark.parametrize("source", ["table", "database"])
def test_a_row_that_a_pass_refuses_is_one_warning(
    source: str, wish: Wish | None, refusal: cs.ConvsmithError, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The plan accepts its config, from which a later step makes no kernel."""
    bad = str(PLANNED)
    assert PLANNED != FIRST and plan_for(PROBLEM, PLANNED, GENERIC)
    lower = driver.lower

    def refusing(made: Any, *rest: Any, **options: Any) -> Any:
        if str(made.config) == bad:
            raise refusal
        return lower(made, *rest, **options)

    monkeypatch.setattr(driver, "lower", refusing)
    monkeypatch.setattr(recall, "_refused", set())
    made = MeasuredTable("a CPU", "2026-01-31", {(str(PROBLEM), str(FIRST)): (bad, 0.9)} if source == "table" else {})
    monkeypatch.setattr(shipped, "own_table", lambda: made)
    with cs.settings.scope(database=tmp_path / "m.db", cache="off"):
        if source == "database":
            with Database(tmp_path / "m.db") as database:
                database.put([replace(GOOD, config=bad, machine=machine_key())])
        with pytest.warns(DatabaseWarning, match="row for .* is not used: .*a pass refuses it") as caught:
            for _ in range(2):
                assert compile_problem(PROBLEM, target=GENERIC, config=wish).config == str(FIRST)
        assert len(caught) == 1
        with pytest.raises(type(refusal)):
            compile_problem(PROBLEM, target=GENERIC, config=PLANNED)


def test_a_default_of_the_model_that_a_pass_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table with a row for another choice of the model keeps it."""

    def refusing(*_: Any, **__: Any) -> Any:
        raise cs.ConfigError("planted", "a pass refuses it")

    monkeypatch.setattr(driver, "lower", refusing)
    rows = {(str(PROBLEM), str(PLANNED)): (str(FIRST), 0.9)}
    monkeypatch.setattr(shipped, "own_table", lambda: MeasuredTable("a CPU", "2026-01-31", dict(rows)))
    with cs.settings.scope(cache="off"), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(cs.ConfigError, match="a pass refuses it"):
            compile_problem(PROBLEM, target=GENERIC)


GOOD = Measured(
    str(PROBLEM), "--target=generic --lane=oc", "m", compiler_key(), "generic", 1, "ok", 1.0, 1e-5, 0.01, 9, 100.0, "",
    "2026-01-31",
)  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [None, 5, "row", (), (1, 2), (*astuple(GOOD), 1), {}, ("\ud800", *astuple(GOOD)[1:]), (5, *astuple(GOOD)[1:]),
     (*astuple(GOOD)[:5], 2**63, *astuple(GOOD)[6:]), (*astuple(GOOD)[:7], float("nan"), *astuple(GOOD)[8:])],
)  # fmt: skip
def test_rows_of_workers_are_checked_on_arrival(row: Any) -> None:
    made = cluster._Coordinator(None, [PROBLEM], 1, 1.0, None, _Memory(), lambda _: None)  # type: ignore[arg-type]
    with pytest.warns(DatabaseWarning, match="rows of a worker are damaged and not used; the first one: ") as caught:
        for _ in range(2):
            made._receive((0.0, [row, astuple(GOOD)]))
            made._flush()
    assert len(caught) == 1 and made.database.stored == [GOOD, GOOD]  # type: ignore[attr-defined]


class _Memory:
    """A database that keeps what it is given."""

    def __init__(self) -> None:
        self.stored: list[Measured] = []

    def put(self, rows: list[Measured]) -> None:
        self.stored += rows


def test_the_lock_of_measurements_lies_in_a_directory_of_this_user(tmp_path: Path) -> None:
    with cs.settings.scope(cache=str(tmp_path / "cache")), cluster._one_at_a_time():
        (lock,) = (tmp_path / "cache").iterdir()
        assert stat.S_IMODE(os.stat(lock).st_mode) == 0o600 and lock.name.startswith("measuring-")
    os.chmod(tmp_path / "cache", 0o777)
    with cs.settings.scope(cache=str(tmp_path / "cache")), pytest.warns(CacheWarning) as caught:
        with cluster._one_at_a_time():
            assert {str(w.message).partition(" ")[0] for w in caught} == {"cache", "without"}


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with cs.settings.scope(cache=str(cache)):
        with cluster._one_at_a_time():
            (lock,) = cache.iterdir()
        lock.unlink()
        (tmp_path / "other").write_text("kept")
        lock.symlink_to(tmp_path / "other")
        with pytest.warns(CacheWarning, match="cannot be written|disturb"), cluster._one_at_a_time():
            pass
    assert (tmp_path / "other").read_text() == "kept"
