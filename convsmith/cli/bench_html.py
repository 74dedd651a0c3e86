"""The pages of HTML of `convsmith bench`, of problems and of the nodes of a model: a table that sorts, and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from convsmith import __version__
from convsmith.cli.bench_json import RowData
from convsmith.cli.distribution import SuiteResult, draw_ratios, draw_roofline
from convsmith.measure.doubts import DOUBTFUL, Figures, doubts, half_range, is_unsteady
from convsmith.measure.profile import TEXTS, ModelProfile, ProfiledNode, heading, node_cells
from convsmith.measure.timing import Spread
from convsmith.page.document import render
from convsmith.page.figures import ABOVE, figure

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
    """A cell: its text, and the value by which it sorts."""

    text: str
    value: object
    is_doubtful: bool = False


def bench_html(
    title: str, heading: str, rows: Sequence[RowData], libraries: Mapping[str, str | None],
    means: Mapping[str, float | None],
) -> str:  # fmt: skip
    """Return the page of measured rows, beside `libraries` with their versions."""
    here = [name for name, version in libraries.items() if version is not None]
    timed = [SuiteResult(row) for row in rows if row["seconds"]]
    bounded = [result for result in timed if result.has_roofline]
    pictures = [figure((6, 4.4), lambda made: draw_roofline(made.subplots(), bounded))] if bounded else []
    if any(result.ratios for result in timed):
        pictures.append(figure((6, 4.4), lambda made: draw_ratios(made.subplots(), timed, here)))
    columns = [
        HtmlColumn("problem", False), HtmlColumn("verified", False), HtmlColumn("time us"), HtmlColumn("GFLOP/s"),
        HtmlColumn("% peak"), HtmlColumn("+- %"), *map(HtmlColumn, libraries), HtmlColumn("config", False),
    ]  # fmt: skip
    versions = [f"convsmith {__version__}", *(f"{x} {found or 'not installed'}" for x, found in libraries.items())]
    note = "A library's column is its time divided by that of our kernel: above 1, our kernel is faster. " * bool(here)
    notes = [", ".join(versions), note + _SORTS, *_doubts(rows)]
    if any(result.config.has_transform for result in timed):
        notes.append(ABOVE)
    drawn = ["rates beside the roofline"] * bool(bounded) + ["ratios"] * (len(pictures) > bool(bounded))
    caption = f"All problems: {', and '.join(drawn)}"
    return _page(
        title, _verdict(timed, bounded), heading, notes, pictures, caption, "Problems", columns,
        [_cells(row, libraries) for row in rows],
        [(name, _number(mean)) for name, mean in means.items()],
    )  # fmt: skip


def profile_html(profile: ModelProfile) -> str:
    """Return the page of a model's convolutions beside the kernels of its own framework."""
    pictures = [figure((6, 4.4), lambda made: _draw_nodes(made, profile))] if profile.nodes else []
    titles = list(node_cells(profile.nodes[0], profile.host)) if profile.nodes else []
    columns = [HtmlColumn(title, title not in _TEXTS) for title in (*titles, "config")]
    rows = []
    for node in profile.nodes:
        texts = node_cells(node, profile.host) | {"node": ", ".join(node.names), "config": node.config}
        values = {title: text if title in _TEXTS else float(text.rstrip(DOUBTFUL)) for title, text in texts.items()}
        rows.append([HtmlCell(text, values[title]) for title, text in texts.items()])
    first, *summary = profile.summary()
    return _page(
        f"convsmith bench {profile.model}", first, heading(profile.model, profile.host, profile.threads),
        [*summary, _SORTS], pictures, f"Nodes that take most time: {profile.host} and convsmith", "Nodes",
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
    title: str, verdict: str, heading: str, notes: Sequence[str], pictures: Sequence[str], caption: str,
    table_title: str, columns: Sequence[HtmlColumn], rows: Sequence[Sequence[HtmlCell]],
    means: Sequence[tuple[str, str]] = (),
) -> str:  # fmt: skip
    values: dict[str, Any] = {
        "title": title, "verdict": verdict, "heading": heading, "notes": notes, "pictures": pictures,
        "caption": caption, "table_title": table_title, "columns": columns, "rows": rows, "means": means, "zip": zip,
    }  # fmt: skip
    return render("bench.html", values)


def _cells(row: RowData, libraries: Mapping[str, str | None]) -> list[HtmlCell]:
    """Return the cells of a row, in the order of the columns."""
    if row["error"]:
        verdict = row["error"]["message"]
    else:
        verdict = {True: "yes", False: "no", None: ""}[row["verified"]]
    seconds = Spread(**row["seconds"]) if row["seconds"] else None
    numbers = [
        _cell(seconds.median * 1e6 if seconds else None), _cell(row["gflops"] and row["gflops"]["median"]),
        _cell(row["of_peak"] and row["of_peak"]["median"] * 100),
        _cell(half_range(seconds) * 100 if seconds else None, seconds is not None and is_unsteady(seconds)),
        *(_cell(row["libraries"][x]["speedup"]["median"] if x in row["libraries"] else None) for x in libraries),
    ]  # fmt: skip
    problem, config = row["name"] or row["problem"], row["config"] or ""
    return [HtmlCell(problem, problem), HtmlCell(verdict, verdict), *numbers, HtmlCell(config, config)]


def _cell(x: float | None, is_doubtful: bool = False) -> HtmlCell:
    """Return the cell of a number; it has no sort value if there is no number."""
    return HtmlCell("unreliable: " * is_doubtful + _number(x), "" if x is None else x, is_doubtful)


def _doubts(rows: Sequence[RowData]) -> Iterator[str]:
    """Yield reasons to distrust rows: the spread of their times, and their share of CPU time."""
    figures = [Figures((Spread(**row["seconds"]),), row["cpu_share"]) for row in rows if row["seconds"]]
    yield from doubts(figures, len(rows), "unreliable")


def _verdict(timed: Sequence[SuiteResult], bounded: Sequence[SuiteResult]) -> str:
    """Return the verdict on the kernel that is furthest from the roofline, the first line of the page; `bounded` are
    those of the `timed` kernels that have one.
    """
    if not bounded:
        return "engines of WebAssembly have no roofline" if timed else "nothing is measured"
    worst = min(bounded, key=lambda result: result.of_roofline)
    return f"{worst.problem} is furthest from the roofline, at {worst.of_roofline:.0%} of it: {worst.verdict}"


def _number(x: float | None) -> str:
    return "-" if x is None else f"{x:,.2f}"
