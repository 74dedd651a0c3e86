"""The JSON of `convsmith bench`: its rows are written, and read again by a run that adds to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from convsmith import __version__
from convsmith.cli.bench_page import Row
from convsmith.compiler.cache import compiler_source_hash
from convsmith.diag.errors import ConvsmithError, UsageError
from convsmith.diag.expect import is_encodable, is_positive, shown
from convsmith.diag.files import read_text
from convsmith.measure.description import describe
from convsmith.measure.peers import PEERS
from convsmith.measure.timing import Spread, geometric_mean
from convsmith.problem.lines import parse_problem
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config

__all__ = ["JSON_SCHEMA", "RowData", "as_json", "earlier_rows", "means_of", "problem_key", "row_data", "versions_of"]

JSON_SCHEMA = 1

RowData = dict[str, Any]
"""A row in the JSON."""


def as_json(
    rows: Sequence[RowData], libraries: Mapping[str, str | None], rounds: int, layout: str, complete: bool
) -> dict[str, Any]:
    """Return the contents of the file; ``libraries`` have a version if they are installed."""
    return {
        "schema": JSON_SCHEMA,
        "convsmith": __version__,
        "sources": compiler_source_hash(),
        "machine": describe(),
        "libraries": libraries,
        "rounds": rounds,
        "layout": layout,
        "complete": complete,
        "rows": rows,
        "geometric_means": means_of(rows, [name for name, version in libraries.items() if version is not None]),
    }


def earlier_rows(file: str, libraries: Mapping[str, str | None], rounds: int) -> list[RowData]:
    """Return the rows of ``file``; empty if the file does not exist.

    UsageError if they were measured with other sources, on another machine, against other libraries, or with another
    number of ``rounds``.
    """
    if not Path(file).exists():
        return []
    try:
        content = json.loads(read_text(file))
        found = {name: content[name] for name in ("schema", "sources", "machine", "libraries", "rounds")}
        rows: list[RowData] = content["rows"]
    except (UsageError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"--json={file} holds no rows to add to: {error}", code="resume") from None
    now = as_json([], libraries, rounds, "", True)
    for name, value in found.items():
        if value != now[name]:
            message = f"--resume: the {name} of {file}, {shown(value)}, differ from this run's, {now[name]}"
            raise UsageError(message, code="resume")
    for number, row in enumerate(rows if isinstance(rows, list) else [None], 1):
        if not _is_row(row):
            raise UsageError(f"--json={file} holds no rows to add to: row {number} is no row of bench", code="resume")
    return rows


def _is_row(value: object) -> bool:
    """Return whether a value that was read is a row of `bench`."""
    if not isinstance(value, dict) or value.keys() != _COLUMNS.keys():
        return False
    return all(is_legal(value[name]) for name, is_legal in _COLUMNS.items())


def _is_text(value: object) -> bool:
    return is_encodable(value) and "\0" not in str(value)


def _is_problem(value: object) -> bool:
    try:
        return _is_text(value) and problem_key(parse_problem(str(value))) == value
    except ConvsmithError:
        return False


def _is_config(value: object) -> bool:
    try:
        return _is_text(value) and Config.parse(str(value)) is not None
    except ConvsmithError:
        return False


def _is_spread(value: object) -> bool:
    names = [f.name for f in fields(Spread)]
    return type(value) is dict and [*value] == names and all(map(is_positive, value.values()))


def _are_libraries(value: object) -> bool:
    return type(value) is dict and all(
        _is_text(name) and type(x) is dict and [*x] == ["seconds", "speedup"] and all(map(_is_spread, x.values()))
        for name, x in value.items()
    )  # fmt: skip


def _are_texts(value: object) -> bool:
    return type(value) is dict and all(_is_text(text) for item in value.items() for text in item)


def _may_lack(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


_COLUMNS: dict[str, Callable[[object], bool]] = {
    "problem": _is_problem, "name": _may_lack(_is_text), "flops": _is_count, "config": _may_lack(_is_config),
    "target": _may_lack(_is_text), "threads": _may_lack(_is_count), "verified": lambda x: x in (True, False, None),
    "error": _may_lack(lambda x: isinstance(x, dict) and _are_texts(x) and x.keys() == {"class", "message"}),
    "seconds": _may_lack(_is_spread), "gflops": _may_lack(_is_spread), "peak_gflops": _may_lack(_is_spread),
    "of_peak": _may_lack(_is_spread), "peak_types": _may_lack(_is_text),
    "cpu_share": _may_lack(lambda x: x == 0 or is_positive(x)), "libraries": _are_libraries, "cannot": _are_texts,
}  # fmt: skip
"""For each column of a row, the function that says whether a value that was read is legal."""


def problem_key(problem: Problem) -> str:
    """Return the problem as its row names it."""
    return str(replace(problem, name=None))


def means_of(rows: Sequence[RowData], peers: Sequence[str]) -> dict[str, float | None]:
    """Return the geometric means of the fraction of the peak, and of the speed-up over each library."""
    means = {"of_peak": geometric_mean(row["of_peak"]["median"] for row in rows if row["of_peak"])}
    for name in peers:
        found = (row["libraries"][name]["speedup"]["median"] for row in rows if name in row["libraries"])
        means[name] = geometric_mean(found)
    return means


def row_data(row: Row) -> RowData:
    """Return ``row`` as JSON has it."""
    kernel, t = row.kernel, row.times
    return {
        "problem": problem_key(row.problem),
        "name": row.problem.name,
        "flops": row.problem.flops_dense,
        "config": str(kernel.config) if kernel else None,
        "target": kernel.config.target if kernel else None,
        "threads": kernel.config.threads if kernel else None,
        "verified": row.verdict.ok if row.verdict else None,
        "error": None if row.error is None else {"class": type(row.error).__name__, "message": str(row.error)},
        "seconds": _spread(t.seconds if t else None),
        "gflops": _spread(t.gflops if t else None),
        "peak_gflops": _spread(t.peak_gflops if t else None),
        "of_peak": _spread(t.of_peak if t else None),
        "peak_types": ":".join(row.peak_types) if row.peak_types else None,
        "cpu_share": t.cpu_share if t else None,
        "libraries": {
            name: {"seconds": _spread(peer.seconds), "speedup": _spread(peer.speedup)}
            for name, peer in (t.peers if t else {}).items()
        },
        "cannot": row.missing,
    }


def versions_of(asked: Sequence[str], here: Sequence[str]) -> Mapping[str, str | None]:
    """Return the versions of the libraries ``asked`` for; None for libraries that are not ``here``."""
    return {name: PEERS[name].version if name in here else None for name in asked}


def _spread(value: Spread | None) -> dict[str, float] | None:
    return None if value is None else asdict(value)
