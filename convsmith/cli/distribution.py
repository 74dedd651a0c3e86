"""The distribution of a suite's results by kind, its slowest problems with their bounds, and the same as a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias

from convsmith.cli.bench_json import RowData
from convsmith.cli.table import Column, fitted
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.forking import cached_property
from convsmith.frontend.explain import reason
from convsmith.machine.registry import host_targets, target
from convsmith.measure.roofline import Roofline, roofline
from convsmith.measure.timing import geometric_mean
from convsmith.page.figures import EFFECTIVE, MARKERS
from convsmith.problem.conv import Conv
from convsmith.problem.lines import parse_problem
from convsmith.problem.types import print_types
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.costs.verdict import verdict

__all__ = ["SuiteResult", "check_picture", "distribution", "draw", "draw_ratios", "draw_roofline"]

LEVEL = 0.97
"""Ratio of a library's time to ours from which a problem counts as level with the library: the noise of short samples.
"""
SLOW = 1 / 1.5
"""Ratio of a library's time to ours below which a problem counts as much slower."""
WORST = 10
"""Number of problems that are listed with their bounds."""

_BEST = "best"
_LINES = ("-", "--", ":", "-.")
"""Styles of the lines of libraries, so that a picture can be read without colours."""


class SuiteResult:
    """A timed kernel of a suite."""

    def __init__(self, row: RowData) -> None:
        self.problem = parse_problem(row["problem"])
        self.config = Config.parse(row["config"])
        self.seconds: float = row["seconds"]["median"]
        self.ratios: dict[str, float] = {name: x["speedup"]["median"] for name, x in row["libraries"].items()}
        """Each library's time divided by ours."""
        if self.ratios:
            self.ratios[_BEST] = min(self.ratios.values())

    @cached_property
    def roofline(self) -> Roofline:
        """The bounds of the problem on this machine."""
        return roofline(self.problem, target(self.config.target), self.config.threads)

    @property
    def has_roofline(self) -> bool:
        """Whether this machine, whose ceilings are known, runs the kernel: engines of WebAssembly have other ones."""
        machine = target(self.config.target)
        return machine.device is not None or machine in host_targets()

    @property
    def of_roofline(self) -> float:
        """The time at the roofline divided by ours."""
        return self.roofline.seconds / self.seconds

    @property
    def kind(self) -> str:
        """The direction, the types and the layout."""
        problem = self.problem
        layout = problem.stag if problem.dir != "BWD_D" else problem.dtag
        direction = "deconv" if isinstance(problem, Conv) and problem.deconv else problem.dir
        return f"{direction} {print_types(problem.dt)} {layout}"

    @property
    def kernel_class(self) -> str:
        """The kind, and the taps or groups."""
        problem = self.problem
        if not isinstance(problem, Conv):
            return self.kind
        if problem.g == problem.ic == problem.oc > 1:
            taps = "depthwise"
        elif problem.g > 1:
            taps = "grouped"
        else:
            most = max(problem.k)
            taps = f"{most} taps" if most in (1, 3) else "more taps" if most > 3 else "2 taps"
        return f"{self.kind}, {taps}"

    @property
    def kind_of_dot(self) -> str:
        """The kind of the kernel; marked as `EFFECTIVE` if a transform saves products, so that its rate may exceed the
        roofline.
        """
        return f"{self.kind}, {EFFECTIVE}" if self.config.has_transform else self.kind

    @property
    def verdict(self) -> str:
        """The bound of the kernel, and an alternative with its modelled gain, in a sentence."""
        machine = target(self.config.target)
        found = verdict(self.problem.canonical(), self.config, machine, self.roofline)
        return str(found) if found is not None else self.reason

    @property
    def reason(self) -> str:
        """The reason why the kernel is no faster."""
        planned = plan(self.problem.canonical(), self.config, target(self.config.target))
        return reason(planned, self.of_roofline, self.roofline.side)


_Compared: TypeAlias = tuple[float, SuiteResult]
"""A ratio of times, and the result that it is of."""


def distribution(rows: Sequence[RowData], libraries: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the page: a table of each library and of the best of them, then the worst problems."""
    timed = [SuiteResult(row) for row in rows if row["seconds"]]
    subjects = [*libraries, *([_BEST] if len(libraries) > 1 else [])]
    for subject in subjects:
        compared = _compared(timed, subject)
        if compared:
            yield ""
            yield f"time of {subject} / ours" + (", the best library of each problem" if subject == _BEST else "")
            yield from _table(compared, lambda result: result.kind)
            yield from _classes(compared)
    if not timed:
        return
    bounded = [result for result in timed if result.has_roofline]
    if bounded:
        yield ""
        yield "time at the roofline / ours"
        yield from _table([(result.of_roofline, result) for result in bounded], lambda result: result.kind)
    if not (subjects or bounded):
        return
    yield ""
    against = subjects[-1] if subjects else "the roofline"
    yield f"the worst beside {against}" + (", and what holds them back" if bounded else "")
    compared = _compared(timed, against) if subjects else [(result.of_roofline, result) for result in bounded]
    for ratio, result in sorted(compared, key=lambda item: item[0])[:WORST]:
        yield f"{ratio:5.2f}  {result.problem}"
        yield f"      {result.config}"
        if result.has_roofline:
            yield f"      {result.verdict}"


def draw(rows: Sequence[RowData], libraries: Sequence[str], file: str) -> None:
    """Write a PNG of the roofline and, if rows have ratios to `libraries`, of these. UsageError if that fails."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    timed = [SuiteResult(row) for row in rows if row["seconds"]]
    bounded = [result for result in timed if result.has_roofline]
    has_ratios = any(result.ratios for result in timed)
    places = figure.subplots(1, max(bool(bounded) + has_ratios, 1), squeeze=False)[0]
    if has_ratios:
        draw_ratios(places[-1], timed, libraries)
    if bounded:
        draw_roofline(places[0], bounded)
    try:
        figure.savefig(file, dpi=120, format="png")
    except OSError as error:
        raise UsageError(f"--png={file}: cannot be written: {error.strerror}", code="bad-file") from None


def draw_roofline(axes: Any, timed: Sequence[SuiteResult]) -> None:
    """Draw the roofline with a dot for every problem; problems computed by transforms form a separate kind."""
    from matplotlib import rcParams

    for kind, marker in zip(dict.fromkeys(result.kind_of_dot for result in timed), cycle(MARKERS)):
        dots = [(result.roofline.intensity, result.of_roofline) for result in timed if result.kind_of_dot == kind]
        axes.scatter(*zip(*dots), s=9, alpha=0.6, label=kind, marker=marker)
    axes.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="rate / bound by the roofline")
    axes.axhline(1, color=rcParams["axes.edgecolor"], linewidth=0.8)
    axes.legend(framealpha=0)


def draw_ratios(axes: Any, timed: Sequence[SuiteResult], libraries: Sequence[str]) -> None:
    """Draw a histogram of the ratios to each library."""
    from matplotlib import rcParams

    bins = [2 ** (n / 4) for n in range(-16, 17)]
    for name, line in zip(libraries, cycle(_LINES)):
        ratios = [min(max(ratio, bins[0]), bins[-1]) for ratio, _ in _compared(timed, name)]
        axes.hist(ratios, bins=bins, histtype="step", label=name, linestyle=line)
    axes.set(xscale="log", xlabel="time of the library / ours (above 1: we are faster)", ylabel="problems")
    axes.set_xscale("log", base=2)
    axes.axvline(1, color=rcParams["axes.edgecolor"], linewidth=0.8)
    axes.legend(framealpha=0)


def check_picture(file: str) -> None:
    """Raise UsageError if the directory of `file` does not exist, UnsupportedError if matplotlib is not installed."""
    if not Path(file).absolute().parent.is_dir():
        raise UsageError(f"--png={file}: there is no such directory", code="bad-file")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UnsupportedError(
            f"--png={file} needs matplotlib: pip install 'convsmith[plots]' brings it", code="matplotlib"
        ) from None


def _table(compared: Sequence[_Compared], kind_of: Callable[[SuiteResult], str]) -> Iterator[str]:
    """Yield a line for each kind of problem, and one for all, on the distribution of the ratios."""
    titles = ("problems", "mean", "level", "slow", "least")
    kinds = list(dict.fromkeys(kind_of(result) for _, result in compared))
    table = fitted([Column("kind", max(map(len, (*kinds, "all"))), left=True), *(Column(t, 8) for t in titles)], None)
    yield table.head
    for kind in (*kinds, *(["all"] if len(kinds) > 1 else [])):
        values = [ratio for ratio, result in compared if kind in ("all", kind_of(result))]
        level, slow = (sum(map(test, values)) / len(values) for test in (LEVEL.__le__, SLOW.__gt__))
        cells = (len(values), f"{geometric_mean(values):.2f}", _share(level), _share(slow), f"{min(values):.2f}")
        yield table.line({"kind": kind, **{title: str(cell) for title, cell in zip(titles, cells)}})
    yield f"level: {LEVEL} or more; slow: below {SLOW:.2f}; mean: geometric"


def _share(value: float) -> str:
    """Return ``value`` as a percentage, with a digit after the point where 0% or 100% would hide a few problems."""
    text = f"{value:.0%}"
    return f"{value:.1%}" if text in ("0%", "100%") and value not in (0.0, 1.0) else text


def _classes(compared: Sequence[_Compared]) -> Iterator[str]:
    """Yield a table of the classes with the least means, if the results fall into several."""
    by_class: dict[str, list[_Compared]] = {}
    for ratio, result in compared:
        by_class.setdefault(result.kernel_class, []).append((ratio, result))
    if len(by_class) < 2:
        return
    worst = sorted(by_class.values(), key=lambda found: geometric_mean(ratio for ratio, _ in found) or 0.0)[:WORST]
    yield "the worst classes"
    yield from _table([item for found in worst for item in found], lambda result: result.kernel_class)


def _compared(results: Sequence[SuiteResult], library: str) -> list[_Compared]:
    """Return the results that `library`, or any for the best, computes too, each with its time divided by ours."""
    return [(result.ratios[library], result) for result in results if library in result.ratios]
