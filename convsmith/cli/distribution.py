"""The distribution of a suite's results by kind, the slowest and what holds them back, and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from convsmith.cli.bench_page import Row
from convsmith.cli.table import Column, fitted
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.frontend.explain import reason
from convsmith.measure.roofline import Roofline, roofline
from convsmith.measure.timing import geometric_mean
from convsmith.problem.types import print_types

__all__ = ["check_picture", "distribution", "draw"]

LEVEL = 0.97
"""Ratio of a library's time to ours from which we count as level with it: the noise of short samples."""
SLOW = 1 / 1.5
"""Ratio of a library's time to ours below which a problem counts as much slower."""
WORST = 10
"""Problems that are listed with what holds them back."""

_BEST = "best"


def distribution(rows: Sequence[Row], libraries: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the page: a table of each library and of the best of them, then the worst problems."""
    timed = [row for row in rows if row.times is not None]
    subjects = [*libraries, *([_BEST] if len(libraries) > 1 else [])]
    for subject in subjects:
        compared = _compared(timed, subject)
        if compared:
            yield ""
            yield f"time of {subject} / ours" + (", the best library of each problem" if subject == _BEST else "")
            yield from _table(compared)
    if not timed:
        return
    yield ""
    yield "time at the roofline / ours"
    yield from _table([(_of_roofline(row), row) for row in timed])
    yield ""
    against = subjects[-1] if subjects else "the roofline"
    yield f"the worst beside {against}, and what holds them back"
    compared = _compared(timed, against) if subjects else [(_of_roofline(row), row) for row in timed]
    for ratio, row in sorted(compared, key=lambda item: item[0])[:WORST]:
        assert row.kernel is not None
        yield f"{ratio:5.2f}  {row.problem}"
        yield f"      {row.kernel.config}"
        yield f"      {reason(row.kernel.plan(), _of_roofline(row), _roofline(row).side)}"


def draw(rows: Sequence[Row], libraries: Sequence[str], file: str) -> None:
    """Write a PNG: the roofline with a dot for every problem, and a histogram of the ratios to each library.

    UsageError if the file cannot be written.
    """
    from matplotlib.figure import Figure

    timed = [row for row in rows if row.times is not None and row.kernel is not None]
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for kind in dict.fromkeys(map(_kind, timed)):
        dots = [_dot(row) for row in timed if _kind(row) == kind]
        left.scatter(*zip(*dots), s=9, alpha=0.6, label=kind)
    left.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="rate / bound by the roofline")
    left.axhline(1, color="black", linewidth=0.8)
    left.legend(fontsize="x-small")
    bins = [2 ** (n / 4) for n in range(-16, 17)]
    for name in libraries:
        ratios = [min(max(ratio, bins[0]), bins[-1]) for ratio, _ in _compared(timed, name)]
        right.hist(ratios, bins=bins, histtype="step", label=name)
    right.set(xscale="log", xlabel="time of the library / ours (above 1: we are faster)", ylabel="problems")
    right.set_xscale("log", base=2)
    right.axvline(1, color="black", linewidth=0.8)
    if libraries:
        right.legend(fontsize="x-small")
    try:
        figure.savefig(file, dpi=120, format="png")
    except OSError as error:
        raise UsageError(f"--png={file}: cannot be written: {error.strerror}", code="bad-file") from None


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


def _table(compared: Sequence[tuple[float, Row]]) -> Iterator[str]:
    """Yield a line for each kind of problem, and one for all, on the distribution of the ratios."""
    titles = ("problems", "mean", "level", "slow", "least")
    kinds = list(dict.fromkeys(_kind(row) for _, row in compared))
    table = fitted([Column("kind", max(map(len, (*kinds, "all"))), left=True), *(Column(t, 8) for t in titles)], None)
    yield table.head
    for kind in (*kinds, *(["all"] if len(kinds) > 1 else [])):
        values = [ratio for ratio, row in compared if kind in ("all", _kind(row))]
        level, slow = (sum(map(test, values)) / len(values) for test in (LEVEL.__le__, SLOW.__gt__))
        cells = (len(values), f"{geometric_mean(values):.2f}", f"{level:.0%}", f"{slow:.0%}", f"{min(values):.2f}")
        yield table.line({"kind": kind, **{title: str(cell) for title, cell in zip(titles, cells)}})
    yield f"level: {LEVEL} or more; slow: below {SLOW:.2f}; mean: geometric"


def _compared(rows: Sequence[Row], library: str) -> list[tuple[float, Row]]:
    """Return the rows that `library` computes, each with the library's time divided by ours."""
    return [(ratio, row) for row in rows if (ratio := _ratio(row, library)) is not None]


def _ratio(row: Row, library: str) -> float | None:
    """Return the time of `library`, or of the best one, divided by ours; None where it has none."""
    assert row.times is not None
    speedups = {name: peer.speedup.median for name, peer in row.times.peers.items()}
    return min(speedups.values(), default=None) if library == _BEST else speedups.get(library)


def _roofline(row: Row) -> Roofline:
    assert row.kernel is not None
    return roofline(row.problem, row.kernel.target, row.kernel.config.threads)


def _of_roofline(row: Row) -> float:
    assert row.times is not None
    return _roofline(row).seconds / row.times.seconds.median


def _dot(row: Row) -> tuple[float, float]:
    return _roofline(row).intensity, _of_roofline(row)


def _kind(row: Row) -> str:
    problem = row.problem
    layout = problem.stag if problem.dir != "BWD_D" else problem.dtag
    return f"{problem.dir} {print_types(problem.dt)} {layout}"
