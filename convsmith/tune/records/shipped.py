"""Tables of measured configs that come with the package: one file for each measured micro-architecture.

A row is a problem, the model's first choice when it was measured, a faster config, and the ratio of their times. It is
valid as long as the model still makes that choice, since other choices were never compared with the config.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from convsmith.diag.expect import has_long_number, is_day, is_positive, shown
from convsmith.diag.warning import warn
from convsmith.machine.micro_architectures import preferred
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.tune.records.checked_rows import config_flaw, is_line
from convsmith.tune.records.measured import DatabaseWarning

__all__ = ["MeasuredTable", "faster", "own_table", "refuse", "table", "table_names"]

SCHEMA = 2


class MeasuredTable(NamedTuple):
    """The measurements of one micro-architecture: for (problem, first choice), the faster config and the ratio.

    ``machine`` is the CPU that was measured, and ``date`` the day.
    """

    machine: str
    date: str
    configs: dict[tuple[str, str], tuple[str, float]]


def table_names() -> list[str]:
    """Return the names of the micro-architectures that have tables."""
    files = resources.files(__package__).joinpath("tables").iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


@cache
def table(name: str) -> MeasuredTable | None:
    """Return the table of a micro-architecture; None if there is none."""
    file = resources.files(__package__).joinpath("tables", f"{name}.json")
    try:
        return _decoded(file.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        warn(f"the table of {name} is damaged and not used: {error}", DatabaseWarning)
        return None


def _decoded(content: bytes) -> MeasuredTable:
    """Return the table that a file holds; ValueError describes an illegal entry."""
    made: Any = json.loads(content)
    if type(made) is not dict or made.get("schema") != SCHEMA:
        raise ValueError(f"it is no table of schema {SCHEMA}")
    machine, day, rows = map(made.get, ("machine", "date", "rows"))
    if not (is_line(machine) and is_day(day) and type(rows) is list):
        raise ValueError("it has no machine, date and rows")
    for row in rows:
        if type(row) is not list or len(row) != 4 or not (all(map(is_line, row[:3])) and is_positive(row[3])):
            raise ValueError(f"a row is {shown(row)}: expected a problem, two configs and a ratio")
        if has_long_number(row[0]):
            raise ValueError(f"a row is of the problem {shown(row[0])}")
    configs = {(problem, first): (config, ratio) for problem, first, config, ratio in rows}
    return MeasuredTable(made["machine"], made["date"], configs)


def faster(problem: Problem, first: Config) -> Config:
    """Return the config that is faster than ``first``, the model's choice for one thread, on this micro-architecture;
    ``first`` itself if the table has no row for it, or if the config of the row is illegal, which causes a warning.
    """
    table = own_table()
    row = table.configs.get((str(problem), str(first))) if table is not None else None
    if row is None:
        return first
    if flaw := config_flaw(row[0], first.target, first.threads):
        refuse(problem, flaw)
        return first
    return Config.parse(row[0])


def refuse(problem: Problem, why: object) -> None:
    """Warn that the table's row for ``problem`` is illegal, and do not use it again."""
    if (made := own_table()) is not None:
        for question in [q for q in made.configs if q[0] == str(problem)]:
            del made.configs[question]
    warn(f"the row for {problem} in the table of {preferred().name} is not used: {why}", DatabaseWarning)


def own_table() -> MeasuredTable | None:
    """Return the table of the preferred micro-architecture; None if there is none."""
    return table(preferred().name)
