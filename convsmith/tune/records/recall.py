"""Configs that measurements have chosen: `compile` queries them before the model.

Without a database, a query costs one check of the file system. An unreadable database causes one warning per process,
and counts as absent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from convsmith.diag.errors import ConvsmithError
from convsmith.diag.forking import import_lock
from convsmith.diag.settings import settings
from convsmith.diag.warning import warn
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.tune.records.measured import DatabaseWarning, Measured, best_of, sums_in_order

__all__ = [
    "DatabaseWarning", "chosen", "database_path", "keeps_bits", "measured_row", "recalled", "refuse",
]  # fmt: skip

_unusable: set[Path] = set()
_refused: set[tuple[str, str]] = set()
"""Problems and configs of rows that make no kernel."""


def database_path() -> Path | None:
    """Return the file of the database that the settings name; None if the database is off."""
    choice = settings.database
    if choice == "off":
        return None
    if choice != "default":
        return Path(choice).absolute()
    return _default_path(*map(os.environ.get, ("HOME", "XDG_DATA_HOME")))


@cache
def _default_path(*_: str | None) -> Path:
    """Return the file of the user's database, which the variables of the environment determine."""
    with import_lock:
        from platformdirs import user_data_dir

    return Path(user_data_dir("convsmith")) / "measurements.db"


def recalled(problem: Problem, target: Machine, threads: int) -> Config | None:
    """Return the config that measurements on this machine, by this compiler, have chosen for a canonical problem; None
    if there are no measurements.
    """
    count = threads if target.device is None else 1
    rows = [row for row in _rows(problem, target.name) if not (_refused and _is_refused(row, count))]
    return chosen(rows, count, keeps_bits(problem)) if rows else None


def refuse(problem: Problem, config: Config, error: ConvsmithError) -> None:
    """Warn that a recalled ``config`` of a canonical problem makes no kernel, and do not recall it again."""
    _refused.add((str(problem), str(config)))
    warn(f"{database_path()}: a row for {problem} is not used: {config} makes no kernel: {error}", DatabaseWarning)


def _is_refused(row: Measured, threads: int) -> bool:
    return (row.problem, str(Config.parse(row.config).of_each(threads=threads))) in _refused


def keeps_bits(problem: Problem) -> bool:
    """Return whether results have the same bits for any number of threads, which gradients of weights do not have."""
    return not problem.dir.startswith("BWD_W")


def measured_row(problem: Problem, config: Config) -> Measured | None:
    """Return the measurement of ``config`` for a canonical problem by this compiler on this machine, if there is one.
    """
    rows = _rows(problem, config.target)
    return next((row for row in rows if row.status == "ok" and row.config == str(config)), None)


def _rows(problem: Problem, target: str) -> list[Measured]:
    """Return the rows of a canonical problem by this compiler on this machine."""
    path = database_path()
    if path is None or not os.access(path, os.F_OK) or path in _unusable:
        return []
    with import_lock:
        from convsmith.tune.records.database import Database, DatabaseError
        from convsmith.tune.records.origin import compiler_key, is_of_this_machine

    try:
        with Database(path, create=False) as database:
            rows = database.rows(problem=str(problem), compiler=compiler_key(), target=target)
            here = {machine for machine in {row.machine for row in rows} if is_of_this_machine(machine, target)}
            return [row for row in rows if row.machine in here]
    except DatabaseError as error:
        _unusable.add(path)
        warn(f"{error}; the model chooses configs", DatabaseWarning)
        return []


def chosen(rows: Sequence[Measured], threads: int, keeps_bits: bool) -> Config | None:
    """Return the best config of ``rows``, the rows of one problem, for a number of threads.

    A problem that ``keeps_bits`` has the same bits for any number of threads. The rows of the fewest threads then
    decide how sums are computed, and the config serves a number of threads for which nothing was measured.
    """
    own = [row for row in rows if row.threads == threads]
    if keeps_bits and rows:
        least = min(row.threads for row in rows)
        lead = best_of(row for row in rows if row.threads == least)
        if lead is None:
            return None
        config = Config.parse(lead.config)
        order = sums_in_order(config)
        best = best_of(row for row in own if sums_in_order(Config.parse(row.config)) == order)
        return Config.parse(best.config) if best is not None else config.of_each(threads=threads)
    best = best_of(own)
    return None if best is None else Config.parse(best.config)
