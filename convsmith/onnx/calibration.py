"""Calibration: the scale and the zero point of each value of a model, from what the value holds on samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import expect_word
from convsmith.runtime.arrays import Array

__all__ = ["METHODS", "ByteCode", "ValueRange", "calibrated"]

METHODS = ("min-max", "percentile", "mean-square")
"""Ways to choose the range of a value: all that it holds, all but the outermost parts, or the range with the least sum
of squares of errors."""

_BINS = 4096
"""Bins of the histogram of a value."""
_RATIOS = np.linspace(0.2, 1, 41)
"""Parts of the whole range that are tried for the least sum of squares."""
_STEPS = 255
"""Steps between the least and the greatest byte."""

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


class ByteCode(NamedTuple):
    """A byte x of u8 stands for `(x - point) * scale`."""

    scale: np.float32
    point: np.uint8


class ValueRange:
    """The least and the greatest number that a value holds, and a histogram between them."""

    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf
        self.counts: NDArray[Any] = np.zeros(_BINS, np.int64)

    def widen(self, name: str, x: Array) -> None:
        """Take the limits of an array into account. UsageError if it holds a number that is not finite."""
        if not np.isfinite(x).all():
            raise UsageError(f"samples: {name} holds numbers that are not finite; legal is finite", code="samples")
        self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))

    def count(self, x: Array) -> None:
        """Count the numbers of an array, whose limits are known."""
        self.counts += np.histogram(x, _BINS, (self.low, max(self.high, self.low + 1e-12)))[0]

    @property
    def centres(self) -> NDArray[np.float64]:
        """The centres of the bins."""
        edges = np.linspace(self.low, max(self.high, self.low + 1e-12), _BINS + 1)
        return (edges[1:] + edges[:-1]) / 2

    def code(self, method: str, kept: float) -> ByteCode:
        """Return scale and zero point by a method; "percentile" keeps so many percent of the numbers."""
        low, high = self.low, self.high
        if method == "percentile":
            parts = np.cumsum(self.counts) / self.counts.sum()
            least = (1 - kept / 100) / 2
            inside = self.centres[(parts >= least) & (parts <= 1 - least)]
            low, high = (float(inside.min()), float(inside.max())) if inside.size else (low, high)
        elif method == "mean-square":
            low, high = min(((low * r, high * r) for r in _RATIOS), key=lambda ends: self._error(_code(*ends)))
        return _code(low, high)

    def _error(self, code: ByteCode) -> float:
        """Return the sum of squares of the errors of numbers as bytes."""
        steps = np.clip(np.rint(self.centres / code.scale) + code.point, 0, _STEPS)
        return float(self.counts @ np.square((steps - code.point) * np.float64(code.scale) - self.centres))


def _code(low: float, high: float) -> ByteCode:
    """Return the code of numbers from `low` to `high`, in which 0 is exact."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / _STEPS) or np.float32(1)
    return ByteCode(scale, np.uint8(np.clip(np.rint(-low / scale), 0, _STEPS)))


def calibrated(
    run: Run, samples: Iterable[Mapping[str, Array]], names: Iterable[str], method: str, kept: float
) -> dict[str, ByteCode]:
    """Return the codes of the values `names`, which `run` computes from inputs, from all `samples`.

    UsageError if there are no samples, or the method or the percentage `kept` is not legal.
    """
    expect_word("method", method, METHODS, "method")
    if not 50 <= kept <= 100:
        raise UsageError(f"percentile={kept} is not legal: expected 50 to 100", code="percentile")
    ranges = {name: ValueRange() for name in names}
    every = [*samples]
    if not every:
        raise UsageError("samples: there are none; legal is at least one for each input", code="samples")
    passes = [ValueRange.widen] if method == "min-max" else [ValueRange.widen, lambda r, _, x: r.count(x)]
    for take in passes:
        for sample in every:
            found = {**sample, **run(sample)}
            for name, held in ranges.items():
                take(held, name, found[name])
    return {name: held.code(method, kept) for name, held in ranges.items()}
