"""Tables of measured configs that come with the package: one file for each micro-architecture that was at hand.

A row is a problem, a config, and the ratio of its time to that of the model's first choice. A row exists only where the
measured config is faster; for the other problems that were measured the table names the problem alone.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import NamedTuple

from convsmith.machine.host import cpu, cpu_features
from convsmith.machine.micro_architectures import micro_architecture
from convsmith.plan.config import Config

__all__ = ["MeasuredTable", "own_table", "table", "table_names"]

SCHEMA = 1


class MeasuredTable(NamedTuple):
    """The measurements of one micro-architecture: ``configs`` by (problem, target), with their ratios.

    ``machine`` is the CPU that was measured, ``convsmith`` the version and ``date`` the day.
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
    return MeasuredTable(content["machine"], content["date"], {(p, Config.parse(c).target): (c, r) for p, c, r in rows})


def own_table() -> MeasuredTable | None:
    """Return the table of this machine's micro-architecture; None if there is none."""
    return table(micro_architecture(cpu(), cpu_features()).name)
