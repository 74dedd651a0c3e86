"""The JSON of `convsmith bench`: its rows are written, and read again by a run that adds to them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from convsmith import __version__
from convsmith.cli.bench_page import Row
from convsmith.compiler.cache import compiler_source_hash
from convsmith.diag.errors import UsageError
from convsmith.measure.description import describe
from convsmith.measure.peers import PEERS
from convsmith.measure.timing import Spread, geometric_mean
from convsmith.problem.problem import Problem

__all__ = ["JSON_SCHEMA", "RowData", "as_json", "earlier_rows", "means_of", "problem_key", "row_data", "versions_of"]

JSON_SCHEMA = 1

RowData = dict[str, Any]
"""A row in the JSON."""


def as_json(
    rows: Sequence[RowData], asked: Sequence[str], here: Sequence[str], rounds: int, layout: str, complete: bool
) -> dict[str, Any]:
    """Return the content of the file; of the libraries ``asked`` for, those ``here`` are installed."""
    return {
        "schema": JSON_SCHEMA,
        "convsmith": __version__,
        "sources": compiler_source_hash(),
        "machine": describe(),
        "libraries": versions_of(asked, here),
        "rounds": rounds,
        "layout": layout,
        "complete": complete,
        "rows": rows,
        "geometric_means": means_of(rows, here),
    }


def earlier_rows(file: str, asked: Sequence[str], here: Sequence[str], rounds: int) -> list[RowData]:
    """Return the rows of ``file``; none if there is no such file.

    UsageError if they were measured in another way: by other sources, on another machine, beside other libraries, or
    with another number of ``rounds``.
    """
    path = Path(file)
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = {name: content[name] for name in ("schema", "sources", "machine", "libraries", "rounds")}
        rows: list[RowData] = content["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--json={file} holds no rows to add to: {error}", code="resume") from None
    now = as_json([], asked, here, rounds, "", True)
    for name, value in found.items():
        if value != now[name]:
            message = f"--resume: the {name} of {file}, {value}, differ from this run's, {now[name]}"
            raise UsageError(message, code="resume")
    return rows


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
    """Return the versions of the libraries ``asked`` for; None for those that are not ``here``."""
    return {name: PEERS[name].version if name in here else None for name in asked}


def _spread(value: Spread | None) -> dict[str, float] | None:
    return None if value is None else asdict(value)
