"""`convsmith bench MODEL.onnx`: the convolutions of a model beside the kernels of the framework that runs it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Protocol

from convsmith.cli.output import Rows, error_line, note, progress, write_file
from convsmith.cli.table import GIVES_WAY, Column
from convsmith.diag.errors import UsageError
from convsmith.measure.description import describe
from convsmith.measure.profile import TEXTS, ModelProfile, ProfiledNode, node_cells
from convsmith.problem.problem import Problem

__all__ = ["Profiler", "bench_model", "check_model_options"]

_RANKS = {"problem": GIVES_WAY, "operator": GIVES_WAY + 1, "agrees": GIVES_WAY - 2, "could win us": GIVES_WAY - 1}
"""Columns that give way to the width of the terminal, and in which order."""
_WIDTHS = {"node": 24, "operator": 13, "problem": 60, "agrees": 7}
_NUMBERS = 9


class Profiler(Protocol):
    """Profiles the nodes of a model one after the other."""

    @property
    def problems(self) -> list[Problem]:
        """The problems of the rows, in their order."""

    @property
    def host_name(self) -> str:
        """The framework that runs the model."""

    @property
    def heading(self) -> str:
        """One line above the rows."""

    @property
    def result(self) -> ModelProfile:
        """The profile of the nodes that are measured so far."""

    def rows(self) -> Iterator[ProfiledNode]:
        """Yield the rows as they are measured."""


def check_model_options(source: str, given: Mapping[str, object], json_file: str | None) -> None:
    """Raise UsageError if an option is ``given`` that a model has no use for: all of them but those of its problems."""
    wrong = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if wrong:
        raise UsageError(
            f"{source} is a model, which sets its problems and is compared with its own framework: legal is no "
            f"{wrong[0]}", code="model",
        )  # fmt: skip
    if json_file not in (None, "-") and not Path(str(json_file)).absolute().parent.is_dir():
        raise UsageError(f"--json={json_file}: there is no such directory", code="bad-file")


def bench_model(profiler: Profiler, budget: float | None, wide: bool, json_file: str | None) -> int:
    """Measure and print the nodes, with a summary; return the exit status: 1 if a result does not agree."""
    problems = profiler.problems
    longest = max((len(str(p)) for p in problems), default=0)
    table: Rows | None = None
    end = inf if budget is None else time.perf_counter() + budget
    stopped = ""
    with progress(len(problems)) as bar:
        rows = profiler.rows()
        for problem in problems:
            if time.perf_counter() >= end:
                stopped = "the budget is spent"
                break
            bar.start(str(problem))
            try:
                row = next(rows, None)
            except KeyboardInterrupt:
                stopped = "interrupted"
                break
            if row is None:
                break
            cells = node_cells(row, profiler.host_name)
            with bar.aside():
                if table is None:
                    table = Rows(_columns(cells, longest), json_file == "-", wide)
                    table.text(profiler.heading)
                    table.head()
                table.row(cells)
            bar.advance()
    profile = profiler.result
    if json_file != "-":
        for line in profile.summary():
            note(line)
    if stopped:
        error_line(f"{stopped}: {len(profile.nodes)} of {len(problems)} problems measured")
    if json_file is not None:
        content = {"machine": describe(), **profile.as_data(), "complete": not stopped}
        write_file(json_file, json.dumps(content, indent=1), "--json=")
    if stopped == "interrupted":
        return 130
    return 0 if all(node.agrees for node in profile.nodes) else 1


def _columns(cells: Mapping[str, str], longest: int) -> list[Column]:
    """Return the columns of a profile's rows, of which `cells` is one; problems have at most `longest` characters."""
    widths = {**_WIDTHS, "problem": min(longest, _WIDTHS["problem"])}
    return [
        Column(title, max(widths.get(title, _NUMBERS), len(title)), _RANKS.get(title, 0), left=title in TEXTS)
        for title in cells
    ]
