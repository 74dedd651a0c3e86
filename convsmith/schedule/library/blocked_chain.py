"""Two convolutions over blocked layouts as one nest: TVM's schedule of conv2d -> conv2d for Hexagon."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from math import prod

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


def blocked_chain(s: KernelSchedule, k_split: int = 1, h_split: int = 1) -> None:
    """Compute two convolutions without pads, with a channels-last source, and blocked weights and results.

    Tiles of the second convolution have ``k_split`` blocks of channels and ``h_split`` blocks of rows. For each tile,
    the first convolution computes all of its channels for the rows that the tile reads. The source, the weights and the
    result have caches.
    """
    nests = blocked_nest(s, k_split, h_split)
    for nest in nests:
        s.reorder(nest.terms[1], nest.inner[2])
    finish(s, [nest.inner[2] for nest in nests])


def blocked_nest(s: KernelSchedule, k_split: int, h_split: int, source: str = "") -> tuple[BlockLoops, BlockLoops]:
    """Make the loops and caches of both convolutions, and return the loops; the cache of the source has blocks as the
    layout ``source`` has, if it is given.
    """
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
