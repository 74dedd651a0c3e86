"""Kernels that read windows in place in calls of any sizes: their configs, and their cycles in a call.

Without a table of pointers, pixels of a register tile have constant distances, so that rows and columns of a tile share
loaded elements. Pixels whose windows reach beyond the source are computed one by one (`passes/pieces.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import isqrt, prod
from typing import NamedTuple

from convsmith.ir.index import Var
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.schedule.call_variants import has_few_channels
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import even_tile, has_masked_pixels
from convsmith.schedule.loops import Loops, loops_after_fusing
from convsmith.statement.statement import Dim, Statement, view_steps
from convsmith.statement.views import reads_windows
from convsmith.tune.costs.cold_weights import weights_read
from convsmith.tune.costs.features import Section, cycles
from convsmith.tune.costs.model import Model
from convsmith.tune.nests import Nests
from convsmith.tune.register_tiles import FEW_TAPS, MAX_PRODUCTS, MAX_RUN_OF_TAPS

MAX_VECTORS_OF_GROUPS = 3
"""Maximum number of vectors of groups in a register tile; with more, the variant that reads through a table has few
pixels in a tile.
"""
MAX_MASKS = 9
"""Maximum number of masks of a row of taps with a stride in a register tile: those of loads and of sums of each tap.
More of them are loaded again before each sum.
"""


class _TiledPixels(NamedTuple):
    """The ``pixels`` of a loop that are computed in tiles of ``size``."""

    size: int
    pixels: int


def image(rank: int, pixels: int) -> tuple[int, ...]:
    """Return the extents of an image of ``pixels``, whose last two axes are about equal and whose others are 1."""
    if rank == 1:
        return (pixels,)
    rows = next(n for n in range(isqrt(pixels), 0, -1) if not pixels % n)
    return (*(1,) * (rank - 2), rows, pixels // rows)


def may_read_in_place(p: Problem, st: Statement, target: Machine) -> bool:
    """Return whether a kernel of ``p``, whose statement is ``st``, may be faster without a table: groups have one
    channel, or the source has few, so that pointers are a large part of its loads, or channels leave lanes empty. With
    a stride, windows of a transposed convolution are not contiguous.
    """
    if not isinstance(p, Conv) or not (reads_windows(p) or all(s == 1 for s in p.s)):
        return False
    return p.g == p.ic == p.oc > 1 or has_few_channels(p, st) or _leaves_lanes_empty(st, target)


def _may_lie_along_rows(p: Problem, st: Statement, target: Machine) -> bool:
    """Return whether vectors of the result of ``p``, whose statement is ``st``, may lie along the pixels of a row: if
    there are groups, if channels leave vectors empty, or if a pixel has few products and the first-level cache does
    not keep a line of each channel of a vector where the channels of an image have one place in it. Vectors of
    channels, which are stored as parts of so many lines, take up to three times as long in images of such sizes. A
    window of one column may be that of an image of one column, whose rows fill no vector.
    """
    if st.of("batch") or _leaves_lanes_empty(st, target):
        return True
    is_kept = target.l1.lines_kept(target.l1.way, 0) >= target.width(dtype(st.acc))
    has_columns = isinstance(p, Conv) and p.k[-1] > 1
    return _is_row(st) and has_columns and has_few_channels(p, st) and not is_kept


def _leaves_lanes_empty(st: Statement, target: Machine) -> bool:
    """Return whether the channels of a group of a result in channels first leave half of a vector empty, where vectors
    of pixels may have masks.
    """
    is_few = 2 * st.extents[st.n] <= target.width(dtype(st.acc))
    return is_few and _is_row(st) and has_masked_pixels(st, target)


def _is_row(st: Statement) -> bool:
    """Return whether the pixels of a row are contiguous in source and result, as in channels first."""
    return view_steps(st.c).get(Var(st.of("m")[-1].name)) == 1 and view_steps(st.a).get(Var(st.reduce[-1])) != 1


def in_place_configs(nests: Nests, loops: Loops, config: Config, tile: Mapping[str, int]) -> Iterator[Config]:
    """Yield ``config`` with the register ``tile``, if it has pixels of one image, and no taps of an axis along which
    there is one pixel; such a tile may have a row of taps if its vectors run along the row. A loop over few terms would
    test each row of a tile at a border again for each tap, so that these are unrolled.
    """
    st, lane, threads = nests.st, config.lane, config.threads
    rows = {d.axis: d.name for d in st.of("m") if d.axis}
    cut = {axis for axis, n in rows.items() if tile.get(n, 1) > 1 or n == lane}
    taps = {d.name: d.size for d in st.of("k") if d.sort == "taps" and d.axis in cut}
    if not cut or not tile.keys() <= {lane, st.n, *rows.values(), *taps}:
        return
    if lane in rows.values() and not _may_lie_along_rows(nests.model.problem, st, nests.target):
        return
    if threads > 1 and len(rows) == 1:  # the loop that threads share has no pieces for borders
        return
    if loops.kinds[lane] == "batch" and tile[lane] > MAX_VECTORS_OF_GROUPS * nests.model.filled(lane):
        return
    if lane in rows.values():
        along = {n: size for n, size in taps.items() if loops.axes[n] == loops.axes[lane]}
        along = {n: size for n, size in along.items() if 1 < size <= MAX_RUN_OF_TAPS}
        step = nests.model.row_step(lane)
        every = {n for n, size in taps.items() if size > 1}
        is_looped = step == 1 and len(cut) > 1 and nests.model.terms <= FEW_TAPS and not every <= tile.keys()
        if is_looped and nests.batch and has_masked_pixels(st, nests.target):
            return
        shared = step > 1 and not along.keys() <= tile.keys()  # taps of a row share gathers
        if step > 1 and has_masked_pixels(st, nests.target):  # vectors with masks share no gathers
            many = (step + 1) * prod(along.values()) > MAX_MASKS
            if shared:
                yield _ordered(nests, loops, config, tile)
            if many and (shared or tile.keys() & along.keys()):
                return
        if shared and tile.keys() & taps.keys():
            return
        if shared or len(cut) == 1:
            tile = {**tile, **along}
            if len(cut) > 1 and prod(tile.values()) > MAX_PRODUCTS * nests.lanes:
                return
    yield _ordered(nests, loops, config, tile)


def _ordered(nests: Nests, loops: Loops, config: Config, tile: Mapping[str, int]) -> Config:
    """Return ``config`` with the register ``tile`` and the order of its loops."""
    st, lane, threads = nests.st, config.lane, config.threads
    rows = [d.name for d in st.of("m") if d.axis]
    *outer, last = st.reduce
    within = [n for n in outer if n in tile]
    order = nests.order(loops, lane) if threads == 1 else config.order
    if threads > 1:  # threads share the loops outside of the tiles of pixels
        order = (*(n for n in order if n not in rows), *rows)
    elif lane in rows and nests.batch in order:  # neighbouring tiles of a group share lines; those of groups do not
        first = [n for n in (nests.images, nests.batch) if n in order]
        order = (*first, *(n for n in order if n not in first))
    reduce = (*(n for n in outer if n not in within), last, *within)
    return config.changed(register=tuple(tile.items()), order=order, reduce=reduce)


def in_place_cycles(model: Model, config: Config) -> float:
    """Return the cycles of a call of the problem of ``model``, which has no pads."""
    loops = loops_after_fusing(model.st, config)
    tile, sections = dict(config.tiles_at("register")), list[Section]()
    names = [d.name for d in model.st.of("m")]
    for pieces in product(*(_pieces(model, loops, config, d) for d in model.st.of("m"))):
        sizes = tile | {n: x.size for n, x in zip(names, pieces) if n in tile}
        extents = loops.extents | {n: x.pixels for n, x in zip(names, pieces)}
        sections += model.nests(replace(loops, extents=extents), config.changed(register=tuple(sizes.items())))
    return cycles((*sections, weights_read(model.st, model.target)), model.target)


def _pieces(model: Model, loops: Loops, config: Config, d: Dim) -> Sequence[_TiledPixels]:
    """Return the pieces of the loop along ``d``."""
    size, pixels = dict(config.tiles_at("register")).get(d.name, 1), loops.extents[d.name]
    least = model.filled(d.name) if d.name == config.lane else 1
    masked = config.lane in (x.name for x in model.st.of("m")) and has_masked_pixels(model.st, model.target)
    if d.axis and d is model.st.of("m")[-1]:
        return tuple(_of_row(size, least, pixels, masked))
    if d.axis and masked:
        even = even_tile(pixels, size)
        return (_TiledPixels(even, -(-pixels // even) * even),)
    return (_TiledPixels(size, -(-pixels // size) * size),) if pixels >= size else (_TiledPixels(1, pixels),)


def _of_row(size: int, least: int, pixels: int, masked: bool) -> Iterator[_TiledPixels]:
    """Yield the pieces of a row of ``pixels`` in tiles of ``size``, in vectors of ``least`` pixels: whole tiles, powers
    of two, and the last vector, which may be ``masked``.
    """
    whole, rest = pixels // size * size, pixels % size
    if whole:
        yield _TiledPixels(size, whole)
    vectors, lanes = divmod(rest, least)
    found = [n * least for n in _powers(vectors)]
    if lanes:
        found += [least] * (1 if masked or pixels >= least else len(_powers(lanes)))
    yield from (_TiledPixels(n, n) for n in found)


def _powers(n: int) -> list[int]:
    """Return the powers of two that add up to ``n``."""
    return [1 << bit for bit in range(n.bit_length()) if n >> bit & 1]
