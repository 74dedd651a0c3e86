"""Two kernels for calls of any sizes, which have one packing: the sizes and pads of a call determine which one runs.

A kernel that reads pixels in place is the fastest for the pixels whose windows are within the source. It does not
compute other pixels (``--realise=peel``), or one by one. A kernel that reads through a table has one speed for all.
"""

from __future__ import annotations

from math import prod

from convsmith.machine.base import Machine
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import through_table
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.registers import filled_lanes, registers
from convsmith.statement.statement import Statement
from convsmith.statement.views import reads_windows, statement

MAX_POINTERS = 12
"""Maximum number of pixels of a register tile that are read through pointers, which integer registers hold."""


def config_of_call(q: Conv, config: Config, target: Machine) -> Config:
    """Return the config of the kernel that serves ``q``, the problem of a call: ``config``, or a variant with the same
    packed weights that reads through a table, or tests each access.
    """
    if config.realise == "peel":
        return _for_pads(config) if is_padded(q) else config
    if config.realise == "mask" and through_table(q):
        return _through_table(q, config, target)
    return config


def may_read_through_table(p: Problem, config: Config) -> bool:
    """Return whether a call of the kernel of ``p`` under ``config`` may run a variant that reads through a table, which
    multiplies the weights by stored zeros.
    """
    reads_in_place = isinstance(p, Conv) and config.realise == "mask" and through_table(p)
    return reads_in_place and _has_tiles_of_groups(statement(p), config)


def is_padded(q: Conv) -> bool:
    """Return whether a window of ``q``, the problem of a call, reads pixels that its source does not have."""
    fine, coarse = (q.o, q.i) if q.deconv else (q.i, q.o)
    ends = ((o - 1) * s + keff for o, s, keff in zip(coarse, q.s, q.keff))
    return any(q.p) or any(end > size for end, size in zip(ends, fine))


def _for_pads(config: Config) -> Config:
    """Return the variant of ``config``, which reads all pixels in place, for calls with pads."""
    # Sums of weights over the taps that are there depend on sizes, unless stored values are in the others' place.
    # Only a source whose pixels are read where they are is fetched ahead.
    packed = {*config.staged("pack")}
    ahead = config.staged("stream"), config.staged("fetch")
    stream, fetch = (tuple(n for n in own if n in packed) for own in ahead)
    realise = "mask" if config.offsets == "each" else "indirection"
    return config.changed(realise=realise, stream=stream, fetch=fetch)


def _through_table(q: Conv, config: Config, target: Machine) -> Config:
    """Return the variant of ``config`` that reads through a table, in tiles of as many pixels of a row as registers
    hold, if vectors are groups, and most pixels have windows that reach beyond the source of ``q``.
    """
    st = statement(q)
    loops, row = loops_after_fusing(st, config), st.of("m")[-1].name
    crossing = pixels_at_borders(q)
    sizes = [(d.size, crossing[d.axis]) for d in st.of("m") if d.axis]
    inside = prod(max(size - apart, 0) for size, apart in sizes)
    if not _has_tiles_of_groups(st, config) or 2 * inside >= prod(size for size, _ in sizes):
        return config
    for pixels in range(MAX_POINTERS, 0, -1):
        tile = ((row, pixels), (config.lane, config.size(config.lane)))
        found = config.changed(register=tile, realise="indirection", fetch=())
        unit = ProductShape.of(st, target, found)
        if registers(loops, found, target, unit, filled_lanes(st, loops.dims[found.lane], unit)).fit:
            return found
    return config


def _has_tiles_of_groups(st: Statement, config: Config) -> bool:
    """Return whether a register tile has several pixels, and vectors of groups."""
    tiled = any(d.axis and config.size(d.name) > 1 for d in st.of("m"))
    return tiled and loops_after_fusing(st, config).kinds[config.lane] == "batch"


def pixels_at_borders(p: Conv) -> dict[str, int]:
    """Return the pixels along each axis whose windows reach beyond the source under the pads of ``p``."""
    return {axis: _crossing(p, n) for n, axis in enumerate(p.axes)}


def _crossing(p: Conv, n: int) -> int:
    front, back, s = p.p[n], p.pr[n], p.s[n]
    if not reads_windows(p):
        front, back, s = p.keff[n] - 1 - front, p.keff[n] - 1 - back, 1
    return max(-(-front // s), 0) + max(-(-back // s), 0)
