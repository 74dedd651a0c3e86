"""Hints for a search: configs that were best elsewhere, to be measured first.

They come from other machines and other compilers, from the tables of the package, and from the nearest problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.tune.records.database import Database
from convsmith.tune.records.measured import Measured, best_of
from convsmith.tune.records.origin import compiler_key, machine_key
from convsmith.tune.records.shipped import table, table_names
from convsmith.tune.search.neighbours import nearest, transferred

__all__ = ["hints"]

MAX_HINTS = 4
"""Maximum number of hints for one search."""


def hints(problem: Problem, target: Machine, threads: int, database: Database) -> list[Config]:
    """Return at most `MAX_HINTS` legal configs, configs for the problem itself before configs of its neighbours."""
    found: dict[Config, None] = {}
    for text in _texts(str(problem), target, database):
        config = transferred(text, problem, target, threads)
        if config is not None:
            found[config] = None
        if len(found) == MAX_HINTS:
            break
    return list(found)


def _texts(line: str, target: Machine, database: Database) -> Iterator[str]:
    rows = database.rows(target=target.name, status="ok")
    here = (machine_key(target), compiler_key())
    best = [row for row in map(best_of, _grouped(rows)) if row is not None]
    yield from (row.config for row in best if row.problem == line and (row.machine, row.compiler) != here)
    tables = [made for made in map(table, table_names()) if made is not None]
    yield from (config for made in tables for (other, _), (config, _) in made.configs.items() if other == line)
    known = [(row.problem, row.config) for row in best if row.machine == here[0]]
    known += [(other, config) for made in tables for (other, _), (config, _) in made.configs.items()]
    yield from nearest(line, known)


def _grouped(rows: list[Measured]) -> Iterator[list[Measured]]:
    def question(row: Measured) -> tuple[object, ...]:
        return row.problem, row.machine, row.compiler, row.threads

    return (list(group) for _, group in groupby(sorted(rows, key=question), question))
