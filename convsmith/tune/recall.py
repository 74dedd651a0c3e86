"""Configs that measurements have chosen: `compile` asks here before it asks the model.

The user's database is asked first, then the table of this machine's micro-architecture. Without a database, a question
costs one look at the file system and one in the table. A database that cannot be read causes one warning in
a process, and counts as absent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from convsmith.diag.errors import ConfigError
from convsmith.diag.forking import import_lock
from convsmith.diag.settings import settings
from convsmith.diag.warning import ConvsmithWarning, warn
from convsmith.machine.base import Machine
from convsmith.plan.config import Config
from convsmith.problem.problem import Problem
from convsmith.tune.measured import Measured, best_of, sums_in_order
from convsmith.tune.shipped import own_table

__all__ = ["DatabaseWarning", "chosen", "database_path", "keeps_bits", "on_threads", "recalled"]

_unusable: set[Path] = set()


class DatabaseWarning(ConvsmithWarning):
    """The database of measurements cannot be used. The model chooses configs."""


def database_path() -> Path | None:
    """Return the file of the database that the settings name; None if there is to be none."""
    choice = settings.database
    if choice == "off":
        return None
    if choice != "default":
        return Path(choice).absolute()
    with import_lock:
        from platformdirs import user_data_dir

    return Path(user_data_dir("convsmith")) / "measurements.db"


def recalled(problem: Problem, target: Machine, threads: int) -> Config | None:
    """Return the config that measurements have chosen for a canonical problem; None where there are none.

    Measurements are those of this machine and this compiler in the database, then those in the package's table of this
    machine's micro-architecture.
    """
    path = database_path()
    if path is None:
        return None
    line = str(problem)
    config = _in_database(path, line, target, threads, keeps_bits(problem))
    if config is None and (table := own_table()) is not None and (line, target.name) in table.configs:
        text, _ = table.configs[line, target.name]
        config = Config.parse(text)
        if config.threads != threads:
            config = on_threads(config, threads) if keeps_bits(problem) else None
    return config


def keeps_bits(problem: Problem) -> bool:
    """Return whether results have the same bits for any number of threads, which gradients of weights do not have."""
    return not problem.dir.startswith("BWD_W")


def _in_database(path: Path, line: str, target: Machine, threads: int, keeps_bits: bool) -> Config | None:
    if not os.path.exists(path) or path in _unusable:
        return None
    with import_lock:
        from convsmith.tune.database import Database, DatabaseError
        from convsmith.tune.origin import compiler_key, machine_key

    try:
        with Database(path, create=False) as database:
            rows = database.rows(problem=line, machine=machine_key(), compiler=compiler_key(), target=target.name)
        return chosen(rows, threads, keeps_bits)
    except (DatabaseError, ConfigError) as error:
        _unusable.add(path)
        warn(f"{error}; the model chooses configs", DatabaseWarning)
        return None


def chosen(rows: Sequence[Measured], threads: int, keeps_bits: bool) -> Config | None:
    """Return the best config of ``rows``, which are those of one problem, for a number of threads.

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
        return Config.parse(best.config) if best is not None else on_threads(config, threads)
    best = best_of(own)
    return None if best is None else Config.parse(best.config)


def on_threads(config: Config, threads: int) -> Config:
    """Return the config for another number of threads."""
    then = None if config.then is None else on_threads(config.then, threads)
    return replace(config, threads=threads, then=then)
