"""Nearest problems of the same kind, whose best configs are hints for a problem without measurements.

Problems of a kind differ only in sizes: direction, data types, layouts, kernel, stride, attributes and whether there
are groups are the same. The distance of two is the sum of the distances of their sizes, each in powers of two. Problems
are compared by their canonical lines, because a table is too long to parse its problems in each process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from math import log2
from typing import NamedTuple

from convsmith.compiler.memory import flaw_within
from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.kernel import scheduled
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.registers import filled_lanes

__all__ = ["Shape", "distance", "nearest", "shape_of", "transferred"]

_SIZES = ("g", "mb", "ic", "oc", "id", "ih", "iw", "od", "oh", "ow")
"""Sizes in which problems of one kind may differ."""
_TOKEN = re.compile(r"([a-z]+)(\d+)")
MIN_SIZE = 4
"""Sizes below this one are part of the kind."""
MAX_DISTANCE = 6.0
"""Maximum distance of a problem that counts as a neighbour."""


class Shape(NamedTuple):
    """A line in two parts: its kind, and the sizes in which problems of this kind differ."""

    kind: tuple[object, ...]
    sizes: dict[str, int]


@lru_cache(4096)
def shape_of(line: str) -> Shape:
    """Return the kind and the sizes of a canonical line. A matrix product is alone of its kind."""
    *options, descriptor = line.split(" ")
    dims = {name: int(size) for name, size in _TOKEN.findall(descriptor)}
    if "--matmul" in options or not {"ic", "oc"} <= set(dims):
        return Shape((line,), {})
    groups = dims.get("g", 1)
    sizes = {name: size for name, size in dims.items() if name in _SIZES and size >= MIN_SIZE}
    fixed = tuple(sorted((name, size) for name, size in dims.items() if name not in sizes))
    channels = (dims["ic"] // groups, dims["oc"] // groups) if groups > 1 else ()
    return Shape((*options, fixed, channels), sizes)


def distance(one: str, other: str) -> float | None:
    """Return the distance of two lines; None if their kinds differ."""
    a, b = shape_of(one), shape_of(other)
    if a.kind != b.kind or a.sizes.keys() != b.sizes.keys():
        return None
    return sum(abs(log2(size / b.sizes[name])) for name, size in a.sizes.items())


def nearest(line: str, known: Iterable[tuple[str, str]]) -> list[str]:
    """Return the configs of ``known`` (line, config) pairs of the same kind, the nearest first, without its own."""
    near = []
    for number, (other, config) in enumerate(known):
        apart = distance(line, other) if other != line else None
        if apart is not None and apart <= MAX_DISTANCE:
            near.append((apart, number, config))
    return [config for *_, config in sorted(near)]


def transferred(text: str, problem: Problem, target: Machine, threads: int) -> Config | None:
    """Return another problem's config with tiles that are no longer than the loops of ``problem``; None if it is
    illegal for the problem, or for another target.
    """
    try:
        config = Config.parse(text).changed(threads=threads)
        if config.target != target.name or config.consumer is not None:
            return None
        if target.device is not None:
            return config if flaw_within(problem, config, target) is None else None
        target = target.with_vectors(config.vector_registers)
        with interning():
            st = scheduled(problem, config, target)
            loops = loops_after_fusing(st, config)
            filled = filled_lanes(st, loops.dims[config.lane], ProductShape.of(st, target, config))
            whole = {**loops.extents, config.lane: -(-loops.extents[config.lane] // filled) * filled}
            tile = tuple((n, min(size, whole[n])) for n, size in config.tiles_at("register"))
            width = dict(tile)
            cache = (
                (n, size // width.get(n, 1) * width.get(n, 1))
                for n, size in config.tiles_at("cache")
                if size < whole[n]
            )
            moved = config.changed(register=tile, cache=tuple(cache))
            return moved if flaw_within(problem, moved, target) is None else None
    except (ConfigError, KeyError):
        return None
