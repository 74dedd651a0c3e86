"""The pages of HTML of `convsmith bench`, of problems and of the nodes of a model: a table that sorts, and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from convsmith import __version__
from convsmith.cli.bench_json import RowData
from convsmith.cli.distribution import SuiteResult, draw_all
from convsmith.measure.profile import DOUBTFUL, TEXTS, ModelProfile, ProfiledNode, heading, node_cells
from convsmith.page.document import render
from convsmith.page.figures import figure

__all__ = ["bench_html", "profile_html"]

_DRAWN = 20
"""Number of rows of nodes that a picture shows."""
_TEXTS = (*TEXTS, "agrees", "config")
"""Columns of texts in the table of a model's nodes."""
_SORTS = "A heading sorts the table by its column."


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
    versions = [f"convsmith {__version__}", *(f"{x} {found or 'not installed'}" for x, found in libraries.items())]
    note = "A library's column is its time divided by that of our kernel: above 1, our kernel is faster. " + _SORTS
    return _page(
        title, heading, [", ".join(versions), note], picture, "All problems: rates beside the roofline, and ratios",
        "Problems", columns, [_cells(row, libraries) for row in rows],
        [(name, _number(mean)) for name, mean in means.items()],
    )  # fmt: skip


def profile_html(profile: ModelProfile) -> str:
    """Return the page of a model's convolutions beside the kernels of its own framework."""
    picture = figure((12, 5), lambda made: _draw_nodes(made, profile)) if profile.nodes else ""
    titles = list(node_cells(profile.nodes[0], profile.host)) if profile.nodes else []
    columns = [HtmlColumn(title, title not in _TEXTS) for title in (*titles, "config")]
    rows = []
    for node in profile.nodes:
        texts = node_cells(node, profile.host) | {"node": ", ".join(node.names), "config": node.config}
        values = {title: text if title in _TEXTS else float(text.rstrip(DOUBTFUL)) for title, text in texts.items()}
        rows.append([HtmlCell(text, values[title]) for title, text in texts.items()])
    return _page(
        f"convsmith bench {profile.model}", heading(profile.model, profile.host, profile.threads),
        [*profile.summary(), _SORTS], picture, f"Nodes that take most time: {profile.host} and convsmith", "Nodes",
        columns, rows,
    )  # fmt: skip


def _draw_nodes(made: Any, profile: ModelProfile) -> None:
    """Draw two bars for each of the rows that take the host most time."""
    axes = made.subplots()
    slowest: list[ProfiledNode] = sorted(profile.nodes, key=lambda node: node.host_seconds)[-_DRAWN:]
    places = range(len(slowest))
    ours = [node.seconds.median * len(node.names) * 1e6 for node in slowest]
    axes.barh([x + 0.2 for x in places], [node.host_seconds * 1e6 for node in slowest], 0.38, label=profile.host)
    axes.barh([x - 0.2 for x in places], ours, 0.38, label="convsmith", hatch="//")
    axes.set_yticks(places, [node.label for node in slowest], parse_math=False)
    axes.set(xlabel="us of all nodes of a row")
    axes.legend(loc="lower right", framealpha=0)


def _page(
    title: str, heading: str, notes: Sequence[str], picture: str, caption: str, table_title: str,
    columns: Sequence[HtmlColumn], rows: Sequence[Sequence[HtmlCell]], means: Sequence[tuple[str, str]] = (),
) -> str:  # fmt: skip
    values: dict[str, Any] = {
        "title": title, "heading": heading, "notes": notes, "picture": picture, "caption": caption,
        "table_title": table_title, "columns": columns, "rows": rows, "means": means, "zip": zip,
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
