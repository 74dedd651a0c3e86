"""Orders of the loops around a register tile, among which the one with the least traffic between memories is chosen."""

from __future__ import annotations

from collections.abc import Iterator

from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.tune.traffic import Traffic

MIN_TRAFFIC_GAIN = 1.1
"""Minimum ratio of memory cycles from which the order of loops changes, or pixels are blocked."""


def ordered(traffic: Traffic, loops: Loops, config: Config, images: str) -> Config:
    """Return ``config`` with the order of loops that has clearly less traffic than its own, if there is one.

    ``images`` is the loop over images, or empty.
    """
    least, chosen = traffic.cycles(loops, config) / MIN_TRAFFIC_GAIN, config
    for order in dict.fromkeys(orders(loops, config, images)):
        if order == config.order:
            continue
        other = config.changed(order=order)
        cycles = traffic.cycles(loops, other)
        if cycles < least:
            least, chosen = cycles, other
    return chosen


def with_depth_within(loops: Loops, config: Config, images: str) -> Config | None:
    """Return ``config`` with the outermost loop over pixels inside the next one; None unless there are three of them.

    The rows of a register tile then pass through all depths, whose planes share them, before the next rows.
    """
    pixels = [n for n in config.order if loops.kinds.get(n) == "m" and n != images]
    if len(pixels) < 3:
        return None
    depth, rows, _ = pixels
    return config.changed(order=tuple({depth: rows, rows: depth}.get(n, n) for n in config.order))


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
