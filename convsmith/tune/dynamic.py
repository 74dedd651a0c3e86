"""The default config of a kernel whose sizes are known only at the call."""

from __future__ import annotations

from math import prod

from convsmith.diag.errors import UnsupportedError
from convsmith.ir.index import Var
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import is_pointwise, symbolic_dims, through_table
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.registers import filled_lanes, registers
from convsmith.schedule.transposed_results import transposes
from convsmith.statement.offsets import flips, summed
from convsmith.statement.statement import Statement, view_steps
from convsmith.statement.views import statement
from convsmith.tune.candidates import LONG_EPILOGUE, operations

_TILES = (3, 8), (2, 12), (2, 6), (2, 5), (2, 4), (1, 12), (1, 6), (1, 4), (1, 1)
"""Register tiles, best first: vectors along the lanes, and pixels. Of three vectors, remainders of 4, 2 and 1 pixels
still have as many sums as a latency has multiply-adds, or nearly.
"""
_ALL = 4
"""Number of vectors of a tile that holds all channels; with more channels, tiles of three vectors have more pixels."""
_TRANSPOSED = (3, 8), (2, 8), (1, 16), (3, 4), (2, 4), (1, 8), (1, 4), (1, 1)
"""Register tiles of results that are transposed in registers, whose rows of pixels are stored as whole vectors, or as
halves and quarters of one.
"""
_GROUPS = (4, 4), (3, 4), (2, 4), (1, 4), (1, 1)
"""Register tiles of vectors of groups with one channel each: pixels share only weights."""
MAX_TAPS = 16
"""Maximum number of taps of such groups with which pixels are computed in the order of memory. With 9 taps that takes
0.76 to 0.95 of the time, with 49 taps 1.12 times as long.
"""
SHORT_SUM = 64
"""Maximum number of terms of a sum that takes less time than its place in a transposed result."""
READ_AGAIN = 2
"""Ratio of the channels of a source to those of a result above which pixels are read once, for all channels. Otherwise
a tile of channels is computed for all pixels, so that its rows of the result are written page by page.
"""
MAX_ALONG = 8
"""Maximum number of channels of the result whose sums are vectors along the channels of the source."""
PIXELS_ALONG = 12, 8, 6, 5, 4, 3, 2, 1
"""Pixels of register tiles of such sums, best first."""


def _tiles(needed: int, groups: bool, transposed: bool, in_place: bool, is_short: bool) -> tuple[tuple[int, int], ...]:
    """Return register tiles for as many vectors as channels or ``groups`` need, best first. Where sums are short, a
    result that is transposed has fewer rows at a time.
    """
    if groups:
        return _GROUPS
    if not transposed:
        return ((_ALL, 6), *_TILES) if needed == _ALL else _TILES
    if in_place:
        return ((1, 16), *_TRANSPOSED) if needed <= 2 else _TRANSPOSED[1:] if is_short else _TRANSPOSED
    return ((_ALL, 4), *_TRANSPOSED) if needed == _ALL else _TRANSPOSED


def dynamic_config(p: Problem, target: Machine, threads: int = 1, alone: bool = True) -> Config:
    """Return a config with vectors of channels (or of groups of one channel), and as many pixels or rows as fit the
    registers.

    Pixels are read through a table of pointers, unless a pixel of the result reads one pixel in its own place, and the
    convolution is ``alone``; gradients by weights have no table and test each term. Stages of a chain run one after the
    other.
    """
    if (stages := stages_of(p)) is not None:
        chained: Config | None = None
        for stage in reversed(stages.problems):
            chained = dynamic_config(stage, target, threads, alone=False).changed(consumer=chained)
        assert chained is not None
        return chained
    realise = "indirection" if through_table(p) else "mask" if isinstance(p, Conv) else "peel"
    if alone and isinstance(p, Conv) and is_pointwise(p):
        realise = "peel"
    each = statement(p, target, symbolic=True, padded=realise != "peel")
    ways: list[tuple[tuple[str, ...], str, Statement]] = [((), "each", each)]
    for flip in flips(p, each) if realise != "mask" else ():
        found = summed(p, each, flip, filled=realise == "indirection")
        if found is not None and all(view.adds != found.a.name for view in found.sums):
            ways.append((flip, "sums", found))
    flip, offsets, st = max(ways, key=lambda way: _terms(way[2], target))
    sizes = st.extents
    lane = "g" if isinstance(p, Conv) and p.g > 1 and p.ic == p.oc == p.g else st.n
    unit = ProductShape.choices(st, target, limited=False)[-1]
    dot = unit.dot and lane == st.n
    terms = ((st.reduce[-1], unit.terms),) if dot else ()
    row = st.of("m")[-1].name
    scattered = transposes(st, lane, row, unit.lanes, target) is not None
    order = tuple(d.name for d in st.dims if d.kind != "k" and d.name not in (lane, row))
    channels = sizes[st.reduce[-1]]
    stays = prod(st.b.layout.shape) * dtype(st.b.dtype).bytes <= target.costs.weights_kept
    if scattered:
        stays = channels > READ_AGAIN * sizes[st.n]
    groups, taps = lane != st.n, prod(d.size for d in st.of("k") if d.sort == "taps")
    in_order = taps <= MAX_TAPS and not scattered and st.constant if groups else realise == "peel" and stays
    pixels_first = in_order and threads == 1
    order = (*order, row, lane) if pixels_first else (*order, lane, row)
    same = Config(
        target.name, lane, order=order, reduce=st.reduce, instruction=unit.name if dot else "", k_step=terms,
        realise=realise, pack=("wei",) if st.constant else (), offsets=offsets, flip=flip,
        spill_sums=operations(p, st) > LONG_EPILOGUE, threads=threads,
    )  # fmt: skip
    if not dot and offsets == "each" and not groups and _along_channels(st, unit.lanes, target):
        same = same.changed(lane=st.reduce[-1], spill_sums=False)
        tiles = [((row, pixels), (st.n, sizes[st.n])) for pixels in PIXELS_ALONG]
    else:
        vectors = _tiles(
            -(-sizes[lane] // unit.lanes), groups, scattered, realise == "peel", channels <= SHORT_SUM
        )  # fmt: skip
        tiles = [((row, pixels), (lane, n * unit.lanes)) for n, pixels in vectors]
    for tile in tiles:
        (_, pixels), (name, width) = tile
        if row not in symbolic_dims(p) and pixels > sizes[row]:
            continue
        config = same.changed(register=tile)
        own = ProductShape.of(st, target, config)
        if name == config.lane and sizes[name] <= (width // unit.lanes - 1) * own.lanes:
            continue
        loops = loops_after_fusing(st, config)
        if registers(loops, config, target, own, filled_lanes(st, loops.dims[config.lane], own)).fit:
            return config
    raise UnsupportedError(f"dynamic sizes: no config of {p} fits the registers of {target.name}", code="dynamic")


def _along_channels(st: Statement, lanes: int, target: Machine) -> bool:
    """Return whether the result has so few channels that vectors of ``lanes`` along the channels of the source, whose
    lanes are summed at the end, take less than half of the multiply-adds of vectors along its own.
    """
    columns, channels = st.extents[st.n], st.extents[st.reduce[-1]]
    near = st.constant and view_steps(st.a).get(Var(st.reduce[-1])) == 1
    taps = prod(d.size for d in st.of("k") if d.sort == "taps")
    own = taps * channels * -(-columns // lanes)
    along = columns * (taps * -(-channels // lanes) + target.costs.lane_sum)
    return near and columns <= MAX_ALONG and 2 * along <= own


def _terms(st: Statement, target: Machine) -> int:
    """Return the number of products that an instruction on vectors adds up; 0 if it is no dot product."""
    unit = ProductShape.choices(st, target, limited=False)[-1]
    return unit.terms if unit.dot else 0
