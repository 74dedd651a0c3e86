"""The lines of images beyond caches for which windows wait because prefetchers do not fetch them in time."""

from __future__ import annotations

from math import prod

from convsmith.ir.types import dtype
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.tune.features import Events
from convsmith.tune.shared_facts import SharedFacts
from convsmith.tune.windows import first_reads

__all__ = ["lines_of_memory", "outpaces_prefetcher"]

FAR_IMAGES = 4
"""Second-level caches that images must exceed for lines to come from so far that jumps between them count."""


def lines_of_memory(facts: SharedFacts, loops: Loops, config: Config) -> Events:
    """Return the events of waiting for the lines of images in memory; empty where caches hold the images.

    In blocks of channels, the run of each pixel ends before a prefetcher is ahead of it. Straight-line code for all
    taps of a window reads as many streams as there are pixels under it. Where they are more than prefetchers follow,
    lines are late, most of all if a tile reads a small part of each. A loop over taps reads pixels at one distance,
    which a prefetcher follows to those of the next tile.
    """
    costs = facts.target.costs
    if not facts.st.constant or facts.taps == 1 or facts.footprint() <= costs.images_far:
        return ()
    lane, tile, line = config.lane, dict(config.tiles_at("register")), facts.target.l1.line
    lines = facts.traffic.of(config)[0].touched(facts.sizes)[0][0] / line
    block = dict(config.tiles_at("cache")).get(lane, 0) * facts.bytes
    runs = (("memory_run", lines * min(line / block, 1.0)),) if block else ()
    pixels = prod(n for name, n in tile.items() if name != lane) * first_reads(loops, tile, facts.src, lane)
    if all(loops.kinds[n] != "k" for n in tile) or pixels <= costs.streams:
        return runs
    parts = max(1 - config.size(lane) * facts.bytes / line, 0.0)
    return *runs, ("memory_line", lines), ("memory_part", lines * parts)


def outpaces_prefetcher(facts: SharedFacts) -> bool:
    """Return whether each run of neighbouring pixels arrives late: where runs are further apart than prefetchers of
    strides follow, half a page, in images that the second-level cache does not hold, and several of them do not hold
    together.
    """
    images = facts.sizes[facts.images] if facts.images else 1
    pixel, size = facts.st.of("m")[-1].name, dtype(facts.st.c.dtype).bytes
    far = facts.footprint() > max(images, FAR_IMAGES) * facts.target.l2.bytes
    return far and facts.stride_of(pixel) * size > facts.target.costs.page // 2
