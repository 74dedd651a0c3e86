"""The page that `convsmith bench` prints: a heading, one row per measured problem, geometric means, and remarks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from convsmith.cli.output import Rows, error_line, note
from convsmith.cli.problems import Listed, short_config
from convsmith.cli.table import GIVES_WAY, Column
from convsmith.diag.errors import ConvsmithError
from convsmith.frontend.kernel import CompiledKernel
from convsmith.measure.doubts import DOUBTFUL, Figures, doubts, is_unsteady
from convsmith.measure.peak import Types
from convsmith.measure.roofline import rate_unit
from convsmith.measure.timing import Measurement
from convsmith.measure.verification import Verdict, narrow_limits
from convsmith.problem.problem import Problem
from convsmith.problem.types import is_integer, print_types

__all__ = ["Page", "Row"]

_PROBLEM, _NAME, _CONFIG, _VERIFIED = "problem", "name", "config", "verified"
_TIME, _RATE, _PEAK, _SPREAD = "time us", "rate", "% peak", "+-"
_LONG_TIME = 1e5
"""Microseconds from which a time is printed without decimals."""


@dataclass
class Row:
    """The results for one problem: a kernel with verdict and times, or the error that prevented them."""

    problem: Problem
    kernel: CompiledKernel | None = None
    verdict: Verdict | None = None
    times: Measurement | None = None
    error: ConvsmithError | None = None
    peak_types: Types | None = None
    """Types of the multiply-adds whose peak was measured beside the kernel."""
    missing: dict[str, str] = field(default_factory=dict)
    """Libraries that cannot compute this problem, with the reason."""


class Page:
    """Prints the parts of the page in order; every library in `asked` has a column."""

    def __init__(self, listed: Listed, asked: Sequence[str], data_only: bool = False, wide: bool = False) -> None:
        self._listed, self._asked, self._data_only = listed, asked, data_only
        units = {rate_unit(problem) for problem in listed.problems}
        self._unit = units.pop() if len(units) == 1 else None
        """The unit of all rates; None if rows differ, and each shows its own."""
        columns = self._columns()
        self._titles = [column.title for column in columns]
        self._rows = Rows(columns, data_only, wide)

    def head(self, heading: str) -> None:
        """Print the heading and the line of column titles."""
        self._rows.text(heading)
        self._rows.head()

    def heading(self, text: str) -> None:
        """Print a line above further rows."""
        self._rows.text(text)

    def row(self, row: Row) -> None:
        """Print `row`."""
        self._rows.row(self._cells(row))

    def foot(self, rows: Sequence[Row], advice: Sequence[str], means: Mapping[str, float | None]) -> None:
        """Print the means, the peaks, and remarks on rows and libraries; `advice` says how to install missing ones."""
        if len(rows) > 1:
            self._rows.row(self._mean_cells(means))
        for row in rows:
            if row.error is not None:
                error_line(f"{self._listed.text(row.problem)}: {row.error}", type(row.error).__name__)
            elif row.verdict is not None and not row.verdict.ok:
                error_line(f"{self._listed.text(row.problem)}: {row.verdict.detail}", "mismatch")
        if self._data_only:
            return
        noise = doubts([figures for row in rows for figures in _figures(row)], len(rows), _SPREAD)
        for remark in (*_peaks(rows), *_limits(rows), *self._left_out(), *noise, *advice, *self._libraries(rows)):
            note(remark)

    def _columns(self) -> list[Column]:
        problems = self._listed.problems
        longest = max(*(len(self._listed.text(problem)) for problem in problems), len("geometric mean"))
        names = [len(problem.name) for problem in problems if problem.name]
        return [
            Column(_PROBLEM, longest, left=True),
            *([Column(_NAME, max(*names, len(_NAME)), GIVES_WAY + 2, left=True)] if names else []),
            Column(_CONFIG, 18, GIVES_WAY + 1, left=True),
            Column(_TIME, 7),
            Column(self._unit, 7, GIVES_WAY - 2) if self._unit else Column(_RATE, 14, GIVES_WAY - 2),
            Column(_PEAK, 6, GIVES_WAY - 3),
            Column(_SPREAD, 3, GIVES_WAY),
            Column(_VERIFIED, 8, GIVES_WAY - 1),
            *(Column(f"vs {name}", max(len(name) + 3, 6)) for name in self._asked),
        ]

    def _cells(self, row: Row) -> dict[str, str]:
        cells = dict.fromkeys(self._titles, "-")
        cells |= {_PROBLEM: self._listed.text(row.problem), _NAME: row.problem.name or ""}
        if row.kernel is None or row.verdict is None:
            return cells | {_VERIFIED: "none"}
        cells |= {_CONFIG: short_config(row.kernel), _VERIFIED: "yes" if row.verdict.ok else "NO"}
        t = row.times
        if t is None:
            return cells
        time = t.seconds.median * 1e6
        rate = f"{t.gflops.median:.1f}"
        cells[_TIME] = f"{time:.0f}" if time >= _LONG_TIME else f"{time:.1f}"
        cells |= {self._unit: rate} if self._unit else {_RATE: f"{rate} {rate_unit(row.problem)}"}
        if t.of_peak is not None:
            cells[_PEAK] = f"{t.of_peak.median * 100:.1f}"
            cells[_SPREAD] = f"{(t.of_peak.high - t.of_peak.low) / 2 * 100:.1f}{DOUBTFUL * is_unsteady(t.of_peak)}"
        return cells | {f"vs {name}": f"{peer.speedup.median:.2f}" for name, peer in t.peers.items()}

    def _mean_cells(self, means: Mapping[str, float | None]) -> dict[str, str]:
        peak = means["of_peak"]
        ratios = {f"vs {name}": "-" if (mean := means.get(name)) is None else f"{mean:.2f}" for name in self._asked}
        return {_PROBLEM: "geometric mean", _PEAK: "-" if peak is None else f"{peak * 100:.1f}", **ratios}

    def _left_out(self) -> Iterator[str]:
        figures = [title for title in self._rows.left_out if title != _NAME]
        if figures:
            yield f"left out, for the width: {', '.join(figures)} (--wide and --json have all)"

    def _libraries(self, rows: Sequence[Row]) -> Iterator[str]:
        reasons: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            for item in row.missing.items():
                reasons.setdefault(item, []).append(row)
        for (name, why), of in reasons.items():
            what = self._listed.text(of[0].problem) if len(of) == 1 else f"{len(of)} of the problems"
            yield f"{name} cannot do {what}: {why}"


def _peaks(rows: Sequence[Row]) -> Iterator[str]:
    """Yield one line with the peak of each instruction-set level and types that rows were measured beside."""
    peaks_by_types: dict[tuple[str, Types], list[float]] = {}
    for row in rows:
        if row.kernel and row.peak_types and row.times and row.times.peak_gflops:
            key = row.kernel.config.target, row.peak_types
            peaks_by_types.setdefault(key, []).append(row.times.peak_gflops.median)
    texts = [
        f"{target} {print_types(types)} {statistics.median(peaks):.1f} "
        f"{'GOP/s' if is_integer(types[-1]) else 'GFLOP/s'}"
        for (target, types), peaks in peaks_by_types.items()
    ]
    if texts:
        yield f"peak{'s' * (len(texts) > 1)}: {', '.join(texts)}"


def _limits(rows: Sequence[Row]) -> Iterator[str]:
    """Yield one line if the kernels of some rows were timed with the small weights that they are made for."""
    limits = [limits for row in rows if row.kernel and row.times and (limits := narrow_limits(row.kernel))]
    if limits:
        least = min(x for of_row in limits for x in of_row.values())
        count = f"{len(limits)} row{'s' * (len(limits) > 1)}"
        yield f"weights of {count} are from {-least:g} to {least:g}; larger ones run through a slower kernel"


def _figures(row: Row) -> Iterator[Figures]:
    """Yield the figures that may give a reason to distrust the row; empty for a row without times."""
    if row.times is not None:
        on_cpu = row.kernel is None or row.kernel.target.device is None
        yield Figures((row.times.of_peak or row.times.gflops,), row.times.cpu_share if on_cpu else None)
