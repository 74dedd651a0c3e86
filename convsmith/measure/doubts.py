"""Reasons to distrust measured figures: samples that vary, threads without CPU time, ratios that contradict times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from convsmith.measure.timing import Spread

__all__ = ["DOUBTFUL", "STARVED", "UNSTEADY", "Figures", "contradicts", "doubts", "half_range", "is_unsteady"]

DOUBTFUL = "?"
"""Mark behind a figure whose samples vary, or contradict each other."""
UNSTEADY = 0.1
"""Half the interquartile range, relative to the median, above which a row counts as unsteady."""
STARVED = 0.8
"""Ratio of the threads' CPU time to the wall time of the samples, below which a row counts as starved."""


class Figures(NamedTuple):
    """The figures of a row: ``series``, and the ratio of CPU time to wall time of the samples, per thread.

    The row is unsteady if any series varies. The ratio is None on a device, whose threads are not those of the process.
    """

    series: tuple[Spread, ...]
    cpu_share: float | None = None

    @property
    def is_unsteady(self) -> bool:
        """Whether a series varies by more than `UNSTEADY`."""
        return any(map(is_unsteady, self.series))


def half_range(spread: Spread) -> float:
    """Return half the interquartile range, relative to the median."""
    return (spread.high - spread.low) / 2 / spread.median if spread.median else 0.0


def is_unsteady(spread: Spread) -> bool:
    """Return whether half the interquartile range is more than `UNSTEADY` of the median."""
    return half_range(spread) > UNSTEADY


def contradicts(ratio: Spread, other: Spread, own: Spread) -> bool:
    """Return whether ``ratio``, the median of the ratios of the rounds, contradicts the ratio of the medians ``other /
    own``.

    Both agree if the samples are steady; they differ if the machine was busy in some of the rounds.
    """
    return not 1 / (1 + UNSTEADY) <= ratio.median * own.median / other.median <= 1 + UNSTEADY


def doubts(rows: Sequence[Figures], count: int, mark: str) -> Iterator[str]:
    """Yield reasons to distrust the figures of ``rows``, of ``count`` in all; ``mark`` shows a row's variation."""
    unsteady = sum(row.is_unsteady for row in rows)
    if unsteady:
        yield f"{unsteady} of {count} rows vary by more than {UNSTEADY:.0%} ({mark}): is something else running?"
    starved = [row.cpu_share for row in rows if row.cpu_share is not None and row.cpu_share < STARVED]
    if starved:
        yield (
            f"{len(starved)} of {count} rows had less than {STARVED:.0%} of the CPU time of their threads (the "
            f"least {min(starved):.0%}): something else took it, or threads waited for each other"
        )
