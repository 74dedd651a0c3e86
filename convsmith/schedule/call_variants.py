"""Kernels for calls of any sizes, which have one packing: the sizes and pads of a call determine which one runs.

A kernel that reads pixels in place is the fastest for the pixels whose windows are within the source. It does not
compute other pixels (``--realise=peel``), or one by one. A kernel that reads through a table has one speed for all.
Vectors along the pixels of a row have one lane in use if an image has one pixel. The channels of such images are
contiguous in either order of dims, so vectors lie along channels then.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from convsmith.ir.types import dtype
from convsmith.layout.layout import Layout
from convsmith.machine.base import Machine
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import even_tile, has_masked_pixels, through_table
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.registers import filled_lanes, registers
from convsmith.statement.statement import Statement
from convsmith.statement.views import reads_windows, statement

MAX_POINTERS = 12
"""Maximum number of pixels of a register tile that are read through pointers, which integer registers hold."""
FEW_CHANNELS = 4
"""Maximum number of channels of a source that windows read in place, because a pointer would serve few products."""
MAX_IMAGES = 16
"""Maximum number of images of one pixel in a register tile."""


def variant_of_call(q: Conv, config: Config, target: Machine) -> tuple[Conv, Config]:
    """Return ``q``, the problem of a call, in the layouts of the kernel that serves it, and the config of that kernel.
    """
    last = _with_adjacent_channels(q)
    if last is not q:
        found = config_of_call(last, config, target)
        if found.lane not in [d.name for d in statement(last).of("m")]:
            return last, found
    return q, config_of_call(q, config, target)


def config_of_call(q: Conv, config: Config, target: Machine) -> Config:
    """Return the config of the kernel that serves ``q``, the problem of a call: ``config``, or a variant with the same
    packed weights that reads through a table, or tests each access.
    """
    if config.realise == "peel" and not is_padded(q):
        return _along_channels(q, config, target) if _has_one_pixel(q) else config
    if config.realise == "peel":
        return _for_pads(q, config, target)
    if config.realise == "mask" and through_table(q):
        return _in_even_tiles(q, _through_table(q, config, target), target)
    if config.realise == "indirection" and _is_mostly_absent(q):
        return _in_place(q, config, target)
    return config


def has_few_channels(p: Problem, st: Statement) -> bool:
    """Return whether windows of a float source without groups have `FEW_CHANNELS` at most."""
    is_few = st.extents[st.reduce[-1]] <= FEW_CHANNELS and dtype(st.a.dtype).kind == "float"
    return isinstance(p, Conv) and p.g == 1 and prod(p.k) > 1 and is_few


def may_read_through_table(p: Problem, config: Config) -> bool:
    """Return whether a call of the kernel of ``p`` under ``config`` may run a variant that reads through a table, which
    multiplies the weights by stored zeros.
    """
    reads_in_place = isinstance(p, Conv) and config.realise == "mask" and through_table(p)
    return reads_in_place and _has_tiles_of_channels(p, statement(p), config)


def is_padded(q: Conv) -> bool:
    """Return whether a window of ``q``, the problem of a call, reads pixels that its source does not have."""
    fine, coarse = (q.o, q.i) if q.deconv else (q.i, q.o)
    ends = ((o - 1) * s + keff for o, s, keff in zip(coarse, q.s, q.keff))
    return any(q.p) or any(end > size for end, size in zip(ends, fine))


def _has_one_pixel(q: Conv) -> bool:
    """Return whether the images of source and result of ``q``, the problem of a call, have one pixel."""
    return prod(q.i) == prod(q.o) == 1


def _with_adjacent_channels(q: Conv) -> Conv:
    """Return ``q``, the problem of a call, with channels last, if its arrays have the same elements at the same places:
    if its images have one pixel. Otherwise ``q`` itself.
    """
    if not _has_one_pixel(q):
        return q
    last = replace(q, stag="axb", dtag="axb")
    layouts = [(a.layout, b.layout) for a, b in zip(q.tensors, last.tensors)]
    same = all(a.is_plain and _places(a) == _places(b) for a, b in layouts)
    return last if same and any(a != b for a, b in layouts) else q


def _places(layout: Layout) -> dict[int, int]:
    """Return the strides of the dims of a plain ``layout`` that have several elements."""
    return {b.dim: b.stride for b in layout.blocks if b.size > 1}


def _along_channels(q: Conv, config: Config, target: Machine) -> Config:
    """Return the variant of ``config`` for images of one pixel, with vectors along the channels of its register tile,
    in tiles of as many images as registers hold; ``config`` itself if its vectors lie along channels, or if those of
    the tile exceed a vector.
    """
    st = statement(q)
    row, channels = st.of("m")[-1].name, config.size(st.n)
    if config.lane != row or channels == 1 or config.instruction or q.stag != "axb":
        return config
    order = (*(n for n in config.order if n not in (st.n, row)), st.n, row)
    for images in range(MAX_IMAGES, 0, -1):
        tile = ((st.n, channels), (row, images))
        found = config.changed(lane=st.n, register=tile, order=order, pack_at=(), stream=(), fetch=())
        loops, unit = loops_after_fusing(st, found), ProductShape.of(st, target, found)
        if channels <= unit.lanes and registers(loops, found, target, unit, channels).fit:
            return found
    return config


def _for_pads(q: Conv, config: Config, target: Machine) -> Config:
    """Return the variant of ``config``, which reads all pixels in place, for calls with pads, which do not run the rows
    of an image as one.
    """
    # Sums of weights over the taps that are there depend on sizes, unless stored values are in the others' place.
    # Only a source whose pixels are read where they are is fetched ahead.
    packed = {*config.staged("pack")}
    ahead = config.staged("stream"), config.staged("fetch")
    stream, fetch = (tuple(n for n in own if n in packed) for own in ahead)
    realise = "mask" if config.offsets == "each" else "indirection"
    order = _by_channels(statement(q), config, target) if realise == "mask" else config.order
    return config.changed(realise=realise, order=order, pack_at=(), stream=stream, fetch=fetch)


def _by_channels(st: Statement, config: Config, target: Machine) -> tuple[str, ...]:
    """Return the order of the loops of ``config`` with those over pixels within that over channels, if each row would
    otherwise read weights again that the second-level cache does not keep; threads share the loops of their own order.
    """
    order, pixels = config.order, {d.name for d in st.of("m")}
    if config.threads > 1 or st.b.bytes <= target.l2.bytes or st.n not in order:
        return order
    others = [n for n in order if n != st.n]
    first = next((at for at, n in enumerate(others) if n in pixels), len(others))
    return (*others[:first], st.n, *others[first:])


def _is_mostly_absent(q: Conv) -> bool:
    """Return whether windows of ``q`` have one tap, which at most half of the pixels of the result have."""
    return reads_windows(q) and all(k == 1 for k in q.k) and 2 * prod(_inside(q)) <= prod(q.o)


def _in_place(q: Conv, config: Config, target: Machine) -> Config:
    """Return the variant of ``config`` that reads in place, whose register tile has at most the pixels of a row that
    have a tap, so that no others are computed; ``config`` itself if sums of weights count absent taps too.
    """
    st = statement(q)
    row, pixels = st.of("m")[-1].name, max(_inside(q)[-1], 1)
    if config.offsets == "sums" or config.flip or (config.threads > 1 and q.rank == 1):
        return config
    tile = tuple((n, min(size, pixels) if n == row else size) for n, size in config.tiles_at("register"))
    return config.changed(register=tile, realise="mask", order=_by_channels(st, config, target), pack_at=(), fetch=())


def _inside(q: Conv) -> list[int]:
    """Return the pixels of the result along each axis whose windows are within the source."""
    return [max(size - crossing, 0) for size, crossing in zip(q.o, pixels_at_borders(q).values())]


def _through_table(q: Conv, config: Config, target: Machine) -> Config:
    """Return the variant of ``config`` that reads through a table, in tiles of as many pixels of a row as registers
    hold, if most pixels have windows that reach beyond the source of ``q``, and vectors are groups or of few channels.
    """
    st = statement(q)
    loops, row = loops_after_fusing(st, config), st.of("m")[-1].name
    crossing = pixels_at_borders(q)
    sizes = [(d.size, crossing[d.axis]) for d in st.of("m") if d.axis]
    inside = prod(max(size - apart, 0) for size, apart in sizes)
    if not _has_tiles_of_channels(q, st, config) or 2 * inside >= prod(size for size, _ in sizes):
        return config
    for pixels in range(MAX_POINTERS, 0, -1):
        tile = ((row, pixels), (config.lane, config.size(config.lane)))
        found = config.changed(register=tile, realise="indirection", fetch=())
        unit = ProductShape.of(st, target, found)
        if registers(loops, found, target, unit, filled_lanes(st, loops.dims[found.lane], unit)).fit:
            return found
    return config


def _in_even_tiles(q: Conv, config: Config, target: Machine) -> Config:
    """Return the variant of ``config`` whose tiles have about as many rows each, if vectors are pixels, and these tiles
    are few. The first and the last tile compute all of their rows, also those beyond the image.
    """
    st = statement(q)
    rows = {d.name: d.size for d in st.of("m") if d.axis}
    if config.realise != "mask" or config.lane not in rows or not has_masked_pixels(st, target):
        return config
    tile = dict(config.tiles_at("register"))
    even = {n: even_tile(rows[n], size) if n in rows and n != config.lane else size for n, size in tile.items()}
    return config.changed(register=tuple(even.items()))


def _has_tiles_of_channels(p: Problem, st: Statement, config: Config) -> bool:
    """Return whether a register tile has several pixels, and vectors of groups, or of channels that read few."""
    tiled = any(d.axis and config.size(d.name) > 1 for d in st.of("m"))
    kind = loops_after_fusing(st, config).kinds[config.lane]
    return tiled and (kind == "batch" or (kind == "n" and has_few_channels(p, st)))


def pixels_at_borders(p: Conv) -> dict[str, int]:
    """Return the pixels along each axis whose windows reach beyond the source under the pads of ``p``."""
    return {axis: _crossing(p, n) for n, axis in enumerate(p.axes)}


def _crossing(p: Conv, n: int) -> int:
    front, back, s = p.p[n], p.pr[n], p.s[n]
    if not reads_windows(p):
        front, back, s = p.keff[n] - 1 - front, p.keff[n] - 1 - back, 1
    return max(-(-front // s), 0) + max(-(-back // s), 0)
