"""Tables of measured configs that come with the package: one file for each micro-architecture that was at hand.

A row is a problem, the model's first choice when it was measured, a faster config, and the ratio of their times. It
holds as long as the model still makes that choice: what it chooses after a change was never compared with the config.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import NamedTuple

from convsmith.machine.micro_architectures import preferred
from convsmith.plan.config import Config
from convsmith.problem.problem import Problem

__all__ = ["MeasuredTable", "faster", "own_table", "table", "table_names"]

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
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    rows = content["rows"]
    return MeasuredTable(content["machine"], content["date"], {(p, first): (config, r) for p, first, config, r in rows})


def faster(problem: Problem, first: Config) -> Config:
    """Return the config that is faster than ``first``, the model's choice for one thread, on this micro-architecture;
    ``first`` itself where nothing is known.
    """
    table = own_table()
    row = table.configs.get((str(problem), str(first))) if table is not None else None
    return first if row is None else Config.parse(row[0])


def own_table() -> MeasuredTable | None:
    """Return the table of the preferred micro-architecture; None if there is none."""
    return table(preferred().name)
