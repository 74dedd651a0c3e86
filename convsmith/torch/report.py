"""The report of `optimize`: the convolutions that run on our kernels, and why the remaining ones do not."""

from __future__ import annotations

import io
import shutil
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from convsmith.diag.forking import import_lock
from convsmith.diag.record import record

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

__all__ = ["FunctionTimes", "LayerRow", "OptimizeReport", "OtherSizes"]


_GAP = 2
"""Characters between two columns."""
_PROBLEM, _RUNNER = 9, 20
"""Maximum widths to which the columns of problems and of runners are cut."""


@record(frozen=True)
class LayerRow:
    """Layers with one problem: their `names`, the operations folded into them, who runs them, and why. Their `kind` is
    "convolution", "linear" or "product".
    """

    names: tuple[str, ...]
    problem: str
    folded: str
    runner: str
    why: str = ""
    kind: str = "convolution"


@record(frozen=True)
class FunctionTimes:
    """Native functions that compute a part of a network: their `count`, and the seconds of the part by them and by
    torch (0 if not measured).
    """

    count: int
    ours: float
    torch: float


@record(frozen=True)
class OtherSizes:
    """Sources of the shapes `shapes`, which differ from the example's, for a run of `layers` convolutions.

    Their first call takes `seconds` longer, to make kernels for them; PyTorch computes if there is a reason `why`.
    """

    shapes: tuple[tuple[int, ...], ...]
    layers: int
    seconds: float
    why: str = ""


@dataclass
class OptimizeReport:
    """The changes that `optimize` made to a network, row by row; `print` shows a table."""

    network: str
    threads: int
    rows: list[LayerRow] = field(default_factory=list)
    functions: list[FunctionTimes] = field(default_factory=list)
    """Native functions, for each part of the network that runs as such."""
    without_functions: list[str] = field(default_factory=list)
    """The reasons why PyTorch computes other parts."""
    seconds: float = 0.0
    difference: float = 0.0
    """Largest difference of an output from eager's on the example, divided by the largest element of eager's output."""
    note: str = ""
    divided: dict[str, str] = field(default_factory=dict)
    """Modules that do not run as one graph, by name, and the reasons; parts inside of them may."""
    other_sizes: list[OtherSizes] = field(default_factory=list)
    """Sizes of later calls that differ from the example's, for each run of convolutions."""

    def lengths(self) -> tuple[int, ...]:
        """Return the numbers of rows and of times so far."""
        return tuple(map(len, self._lists()))

    def shorten(self, lengths: tuple[int, ...] = (0, 0, 0)) -> None:
        """Remove the rows and times after the first `lengths` of each kind."""
        for x, length in zip(self._lists(), lengths):
            del x[length:]

    def _lists(self) -> tuple[list[Any], ...]:
        return self.rows, self.functions, self.without_functions

    @property
    def ours(self) -> int:
        """The number of convolutions that run on our kernels."""
        return self._count("convolution", "convsmith")

    @property
    def convolutions(self) -> int:
        """The number of convolutions of the network."""
        return self._count("convolution")

    def _count(self, kind: str, runner: str = "") -> int:
        """Return the number of layers of a kind, that `runner` runs if it is given."""
        return sum(len(row.names) for row in self.rows if row.kind == kind and runner in ("", row.runner))

    def table(self, width: int = 120) -> Table:
        """Return the rows as a table of at most `width` characters a line, in their order.

        If the width is small, problems are cut and reasons continue on the next line.
        """
        with import_lock:
            from rich.table import Table

        titles = {"layers": "right", "problem": "left", "folded": "left", "runs on": "left"}
        rows = [self._cells(row) for row in self.rows]
        widths = {t: max([len(t), *(len(cells[n]) for cells in rows)]) for n, t in enumerate(titles)}
        room = width - sum(widths.values()) - _GAP * len(titles)  # rich before 14.3 adds one at the end
        for title, least in (("runs on", _RUNNER), ("problem", _PROBLEM)):
            short = min(max(-room, 0), max(widths[title] - least, 0))
            widths[title], room = widths[title] - short, room + short
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title, side in titles.items():
            wraps = title == "runs on"
            table.add_column(title, justify=side, no_wrap=not wraps, overflow="ellipsis", width=widths[title])  # type: ignore[arg-type]
        for cells in rows:
            table.add_row(*cells)
        return table

    @staticmethod
    def _cells(row: LayerRow) -> tuple[str, ...]:
        return str(len(row.names)), row.problem, row.folded, row.runner + (f": {row.why}" if row.why else "")

    def summary(self) -> str:
        """Return one sentence per fact about the whole network."""
        line = f"{self.network}: {self.ours} of {self.convolutions} convolutions run on convsmith"
        if linear := self._count("linear"):
            line += f", {self._count('linear', 'convsmith')} of {linear} linear layers too"
        if self.functions:
            count = sum(times.count for times in self.functions)
            line += f", {count} native function{'s' * (count > 1)} compute{'s' * (count == 1)} all around them"
            if ours := sum(times.ours for times in self.functions):
                other = sum(times.torch for times in self.functions)
                line += f", in {ours * 1e3:.1f} ms instead of {other * 1e3:.1f} ms by torch"
        line += (
            f" ({self.threads} thread{'s' * (self.threads > 1)}). Outputs differ from eager's by {self.difference:.1g} "
            f"of the largest. Optimized in {self.seconds:.1f} s."
        )
        return " ".join(part for part in (line, self.note, self._of_other_sizes()) if part)

    def _of_other_sizes(self) -> str:
        """Return a sentence on calls with other sizes than the example's; empty if there was no such call."""
        made, others = ([row for row in self.other_sizes if bool(row.why) is by_torch] for by_torch in (False, True))
        parts = []
        if made:
            kernels, seconds = sum(row.layers for row in made), sum(row.seconds for row in made)
            parts.append(f"{kernels} kernels, made in {seconds:.1f} s")
        if others:
            parts.append(f"{sum(row.layers for row in others)} convolutions by PyTorch ({others[0].why})")
        return f"Calls with other sizes: {'; '.join(parts)}." if parts else ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table(options.max_width)
        yield self.summary()

    def __str__(self) -> str:
        with import_lock:
            from rich.console import Console

        width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 120
        text = io.StringIO()
        Console(file=text, width=width, highlight=False).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
