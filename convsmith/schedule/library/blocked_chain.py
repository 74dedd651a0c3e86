"""Two convolutions over blocked layouts as one nest: TVM's schedule of conv2d -> conv2d for Hexagon."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from math import gcd, prod

from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.ir.walk import loops_of
from convsmith.schedule.custom import KernelSchedule
from convsmith.schedule.library.finish import finish
from convsmith.schedule.loops import Loop


@record(frozen=True)
class BlockLoops:
    """The loops of a convolution: over blocks of its result and within a block, over blocks of terms and within a
    block.

    ``tiles`` are the loops over tiles of blocks of channels and rows; without tiles, the loops over blocks.
    """

    channels: Loop
    rows: Loop
    columns: Loop
    inner: tuple[Loop, Loop, Loop]
    terms: tuple[Loop, Loop]
    taps: tuple[Loop, Loop]
    tiles: tuple[Loop, Loop]


def blocked_chain(s: KernelSchedule, k_split: int = 1, h_split: int = 1, ring: bool = False) -> None:
    """Compute two convolutions with a channels-last source, and blocked weights and results.

    Tiles of the second convolution have ``k_split`` blocks of channels and ``h_split`` blocks of rows. For each tile,
    the first convolution computes all of its channels for the rows that the tile reads. The source and the weights have
    caches; the cache of the source has zeros in place of padding. If it is a ``ring``, it keeps the rows that the next
    tile of rows reads too. Registers hold the sums of some pixels and channels of a block.
    """
    nests = _joined(s, k_split, h_split)
    first, second = nests
    lanes = [_sum_in_registers(s, nest) for nest in nests]
    copy = s.stage("src", second.tiles[0] if ring else second.tiles[1])
    if ring:
        s.compute_at("src_s", second.tiles[1])
    lanes.append(_lanes_of(s, copy.loops[1]))
    for array, nest in (("wei_1", first), ("wei_2", second)):
        s.pack_near(array, nest.tiles[0])
    s.simplify()
    finish(s, lanes)


def _sum_in_registers(s: KernelSchedule, nest: BlockLoops) -> Loop:
    """Hold the sums of a tile of pixels and channels of a block in registers while all of their terms are added, and
    return the loop over the lanes of a vector.
    """
    row, column, channel = nest.inner
    vectors = s.tile(channel, gcd(channel.extent, s.lanes))
    pixels, width = _register_tile(column.extent, vectors[0].extent, s.machine.vectors.count)
    columns, pixel = s.tile(column, pixels)
    groups, vector = s.tile(vectors[0], width)
    tile = (pixel, vector, vectors[1])
    s.reorder(row, columns, groups, *tile)
    s.fission(*tile)
    s.sink(nest.terms[0], *nest.taps, nest.terms[1], *tile)
    s.unroll(pixel, vector)
    return vectors[1]


def _register_tile(columns: int, vectors: int, registers: int) -> tuple[int, int]:
    """Return the pixels and the vectors of channels of a tile whose sums fit the ``registers`` with the factors of a
    term, with the most products for each load; at most ``columns`` and a divisor of ``vectors``.
    """
    tiles = [
        (pixels, width) for width in range(1, vectors + 1) if vectors % width == 0 for pixels in range(1, columns + 1)
        if pixels * width + width + 1 <= registers
    ]  # fmt: skip
    return max(tiles, key=lambda tile: tile[0] * tile[1] / (tile[0] + tile[1]))


def _lanes_of(s: KernelSchedule, loop: Loop) -> Loop:
    """Split a loop at the lanes of a vector, and return the loop over the lanes."""
    return s.tile(loop, gcd(loop.extent, s.lanes))[1]


def blocked_nest(s: KernelSchedule, k_split: int, h_split: int, source: str = "") -> tuple[BlockLoops, BlockLoops]:
    """Make the loops and caches of both convolutions in the form of TVM's document, whose sums are in caches, and
    return the loops; the cache of the source has blocks as the layout ``source`` has, if it is given.
    """
    first, second = _joined(s, k_split, h_split, source)
    for nest in (first, second):
        s.fission(*nest.inner, scope="cache")
        blocks, terms = nest.terms
        s.reorder(blocks, *nest.inner[:2], *nest.taps, nest.inner[2], terms)
    with suppress(ConfigError):  # if the results of the first convolution are not just its sums
        s.sum_in_place("acc")
    s.fission(second.rows, second.columns, second.channels, scope="cache", result=True)
    s.reorder(second.channels, second.rows, second.columns)
    # The source is read where its footprint moves: the rows of several steps, or the rows of a tile at once.
    around = first if _has_steps(s, first.tiles[1]) else second
    copy, *_ = (
        s.stage(array, nest.tiles[1], exact=True)
        for array, nest in (("src", around), ("wei_1", first), ("wei_2", second))
    )
    s.simplify(unit_loops=False)
    s.guard(*(x for x in (first.rows, *copy.loops[1:2]) if x in s.loops()))
    s.simplify()
    s.sink_guards()
    return first, second


def _joined(s: KernelSchedule, k_split: int, h_split: int, source: str = "") -> tuple[BlockLoops, BlockLoops]:
    """Compute the first convolution at the tiles of the second, and return the loops of both."""
    first = _in_blocks(s, "", "mid", "wei_1")
    second = _in_blocks(s, "2", "dst", "wei_2")
    for array in ("mid", "wei_1", "wei_2", "dst"):
        s.set_layout(array)
    if source:
        s.set_layout("src", source)
    s.simplify()
    second = _tiles(s, second, k_split, h_split)
    s.reorder(*second.tiles, second.rows, second.columns, second.channels, *second.inner)
    s.simplify()
    s.compute_at("mid", second.tiles[1], rolling=False)
    first = _tiles(s, first, k_split, h_split)
    s.reorder(*first.tiles, first.channels, first.rows, first.columns, *first.inner)
    s.simplify()
    return first, second


def _in_blocks(s: KernelSchedule, number: str, result: str, weights: str) -> BlockLoops:
    """Split the loops of a convolution at the blocks of its ``result`` and of its ``weights``."""

    def inner(array: str, dim: int) -> int:
        """Return the elements along a dim of an array that are within its blocks."""
        _, *sizes = (b.size for b in s.array(array).blocks if b.dim == dim)
        return prod(sizes)

    def split(name: str, size: int) -> tuple[Loop, Loop]:
        return s.tile(s.loop(name + number), size)

    channels, channel = split("oc", inner(result, 1))
    rows, row = split("oh", inner(result, 2))
    columns, column = split("ow", inner(result, 3))
    taps = s.loop(f"kh{number}"), s.loop(f"kw{number}")
    terms = split("ic", inner(weights, 1))
    return BlockLoops(channels, rows, columns, (row, column, channel), terms, taps, (channels, rows))


def _tiles(s: KernelSchedule, nest: BlockLoops, k_split: int, h_split: int) -> BlockLoops:
    """Split the loops over blocks of channels and of rows into tiles."""
    outer, channels = s.tile(nest.channels, k_split)
    around, rows = s.tile(nest.rows, h_split)
    return replace(nest, channels=channels, rows=rows, tiles=(outer, around))


def _has_steps(s: KernelSchedule, loop: Loop) -> bool:
    """Return whether ``loop`` runs more than once."""
    return any(x.var.name == loop.name and x.hi != x.lo + 1 for x in loops_of(s.kernel.body))
