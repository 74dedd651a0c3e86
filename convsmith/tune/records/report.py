"""The error of the cost model against measurement, for each machine and compiler of a database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from math import exp, log, sqrt
from typing import NamedTuple

from convsmith.tune.records.measured import Measured, best_of

__all__ = ["ModelError", "model_errors"]


class ModelError(NamedTuple):
    """The error of the model over ``configs`` measured configs of ``problems`` problems.

    ``error`` is the typical factor, less 1, by which the predicted ratio of two configs of a problem differs from the
    measured one. ``loss`` is the geometric mean over problems of the first choice's time by the best config's time,
    less 1; ``worst`` is its maximum, at ``worst_problem``.
    """

    machine: str
    compiler: str
    problems: int
    configs: int
    error: float
    loss: float
    worst: float
    worst_problem: str


def model_errors(rows: Iterable[Measured]) -> list[ModelError]:
    """Return the error for each machine and compiler that measured two configs of a problem."""
    good = [row for row in rows if row.status == "ok" and row.predicted > 0]
    found = (_error(*origin, list(group)) for origin, group in groupby(sorted(good, key=_origin), _origin))
    return [error for error in found if error.problems]


def _error(machine: str, compiler: str, rows: list[Measured]) -> ModelError:
    squares: list[float] = []
    losses: dict[tuple[str, str, int], float] = {}
    configs = 0
    for question, own in _by_problem(rows):
        best = best_of(own)
        if len(own) < 2 or best is None:
            continue
        logs = [log(row.ratio / row.predicted) for row in own]
        mean = sum(logs) / len(logs)
        squares += [(x - mean) ** 2 for x in logs]
        losses[question] = log(1 / best.ratio)
        configs += len(own)
    if not losses:
        return ModelError(machine, compiler, 0, 0, 0.0, 0.0, 0.0, "")
    worst = max(losses, key=lambda question: losses[question])
    error = exp(sqrt(sum(squares) / len(squares))) - 1
    loss = exp(sum(losses.values()) / len(losses)) - 1
    return ModelError(machine, compiler, len(losses), configs, error, loss, exp(losses[worst]) - 1, worst[0])


def _by_problem(rows: list[Measured]) -> Iterator[tuple[tuple[str, str, int], list[Measured]]]:
    """Yield the rows of each problem, target and number of threads."""

    def question(row: Measured) -> tuple[str, str, int]:
        return row.problem, row.target, row.threads

    for key, group in groupby(sorted(rows, key=question), question):
        yield key, list(group)


def _origin(row: Measured) -> tuple[str, str]:
    return row.machine, row.compiler
