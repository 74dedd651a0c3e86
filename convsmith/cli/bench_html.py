"""The page of HTML of `convsmith bench`: a table that sorts, and pictures of all problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from convsmith import __version__
from convsmith.cli.bench_json import RowData
from convsmith.cli.distribution import SuiteResult, draw_all
from convsmith.page.document import render
from convsmith.page.figures import figure

__all__ = ["bench_html"]


class HtmlColumn(NamedTuple):
    """A column of the table."""

    title: str
    is_number: bool = True


class HtmlCell(NamedTuple):
    """A cell: what it shows, and the value by which it sorts."""

    text: str
    value: object


def bench_html(
    title: str, heading: str, rows: Sequence[RowData], libraries: Mapping[str, str | None],
    means: Mapping[str, float | None],
) -> str:  # fmt: skip
    """Return the page of measured rows, beside `libraries` with their versions."""
    here = [name for name, version in libraries.items() if version is not None]
    timed = [SuiteResult(row) for row in rows if row["seconds"]]
    picture = figure((12, 5), lambda made: draw_all(made, timed, here)) if timed else ""
    columns = [
        HtmlColumn("problem", False), HtmlColumn("verified", False), HtmlColumn("time us"), HtmlColumn("GFLOP/s"),
        HtmlColumn("% peak"), HtmlColumn("+- %"), *map(HtmlColumn, libraries), HtmlColumn("config", False),
    ]  # fmt: skip
    values: dict[str, Any] = {
        "title": title, "heading": heading, "version": __version__, "libraries": libraries, "columns": columns,
        "means": [(name, _number(mean)) for name, mean in means.items()], "picture": picture, "zip": zip,
        "rows": [_cells(row, libraries) for row in rows],
    }  # fmt: skip
    return render("bench.html", values)


def _cells(row: RowData, libraries: Mapping[str, str | None]) -> list[HtmlCell]:
    """Return the cells of a row, in the order of the columns."""
    if row["error"]:
        verdict = row["error"]["message"]
    else:
        verdict = {True: "yes", False: "no", None: ""}[row["verified"]]
    seconds, peak = row["seconds"], row["of_peak"]
    spread = (seconds["high"] - seconds["low"]) / 2 / seconds["median"] if seconds else None
    numbers = [
        seconds and seconds["median"] * 1e6, row["gflops"] and row["gflops"]["median"],
        peak and peak["median"] * 100, spread and spread * 100,
        *(row["libraries"][x]["speedup"]["median"] if x in row["libraries"] else None for x in libraries),
    ]  # fmt: skip
    problem, config = row["name"] or row["problem"], row["config"] or ""
    shown = [HtmlCell(_number(x), x if x is not None else "") for x in numbers]
    return [HtmlCell(problem, problem), HtmlCell(verdict, verdict), *shown, HtmlCell(config, config)]


def _number(x: float | None) -> str:
    return "-" if x is None else f"{x:,.2f}"
