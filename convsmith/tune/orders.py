"""Orders of the loops around a register tile."""

from __future__ import annotations

from collections.abc import Iterator

from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops

MIN_TRAFFIC_GAIN = 1.1
"""Minimum ratio of memory cycles from which the order of loops changes, or pixels are blocked."""


def orders(loops: Loops, config: Config, images: str) -> Iterator[tuple[str, ...]]:
    """Yield orders in which images, channels, pixels or rows of pixels are outermost."""
    first = tuple(n for n in config.order if n not in loops.extents)
    names = [n for n in config.order if n in loops.extents]
    channels = [n for n in names if loops.kinds[n] != "m"]
    *rows, row = pixels = [n for n in names if n not in channels and n != images]
    image = [n for n in names if n == images]
    yield (*first, *image, *channels, *pixels)
    yield (*first, *image, *pixels, *channels)
    if rows:
        yield (*first, *image, *rows, *channels, row)
    if image:
        yield (*first, *channels, *image, *pixels)
