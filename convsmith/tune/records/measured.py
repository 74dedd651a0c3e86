"""A measurement as data, and the choice among measurements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

from convsmith.diag.record import record
from convsmith.diag.warning import ConvsmithWarning
from convsmith.schedule.config import Config

__all__ = ["DatabaseWarning", "Measured", "Status", "best_of", "sums_in_order"]

DOUBTED_FRACTION = 1.0
"""Fraction of a ratio's quartiles that is doubted for one sample; for n samples it is divided by the root of n."""
MIN_SPREAD = 0.02
"""Least difference of quartiles that is assumed, relative to the ratio."""
KEPT_RATIO = 0.985
"""Bound of a ratio above which the model's first choice stays, because the difference may be noise."""


class DatabaseWarning(ConvsmithWarning):
    """Some measurements cannot be used, so the model chooses configs."""


Status = Literal["ok", "refused", "wrong", "crashed", "stuck"]


@record(frozen=True)
class Measured:
    """A row: the outcome for ``problem`` under ``config`` on a machine, with a version of the compiler.

    ``seconds`` is the median of a call, ``ratio`` the median of its quotient by the time of the model's first choice in
    the same rounds (below 1: faster), ``spread`` the difference of the quartiles of that ratio, relative to it,
    ``rounds`` the number of samples. ``predicted`` are the model's cycles, 0 without an estimate. A row whose
    ``status`` is not ok has no times; ``note`` describes what happened.
    """

    problem: str
    config: str
    machine: str
    compiler: str
    target: str
    threads: int
    status: Status = "ok"
    ratio: float = 0.0
    seconds: float = 0.0
    spread: float = 0.0
    rounds: int = 0
    predicted: float = 0.0
    note: str = ""
    date: str = ""

    def dated(self) -> Measured:
        """Return the row with the present day (UTC)."""
        return replace(self, date=datetime.now(UTC).date().isoformat())


    @property
    def bound(self) -> float:
        """An upper bound of the ratio: few samples, or scattered samples, increase it."""
        return self.ratio * (1 + DOUBTED_FRACTION * max(self.spread, MIN_SPREAD) / float(max(self.rounds, 1) ** 0.5))


def best_of(rows: Iterable[Measured]) -> Measured | None:
    """Return the fastest of the rows that are ok, but the first choice's row unless another row is significantly
    faster.
    """
    good = [row for row in rows if row.status == "ok"]
    best = min(good, key=lambda row: row.bound, default=None)
    first = next((row for row in good if row.ratio == 1), None)
    return first if first is not None and best is not None and best.bound > KEPT_RATIO else best


def sums_in_order(config: Config) -> tuple[object, ...]:
    """Return the decisions of ``config`` on which the order of additions within a sum depends.

    Two kernels of a problem whose configs agree in them compute the same bits, whatever their tiles are.
    """
    reduction = {*config.reduce}
    along = config.lane if config.lane in reduction or config.lane not in config.order else ""
    depth = tuple((n, s) for n, s in config.tiles_at("cache") if n in reduction)
    tiles = tuple((n, s) for n, s in config.tiles_at("register") if n in reduction)
    inside = None if config.consumer is None else sums_in_order(config.consumer)
    return (
        config.target,
        config.instruction,
        config.tiles_at("k_step"),
        along,
        config.reduce,
        depth,
        tiles,
        config.tiles_at("split"),
        config.phases,
        config.offsets,
        config.flip,
        config.realise,
        config.fuse if along else (),
        config.tiles_at("winograd"),
        inside,
    )
