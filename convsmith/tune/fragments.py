"""Register tiles of fragments that the model compares, and their features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, prod
from typing import NamedTuple

from convsmith.ir.types import dtype
from convsmith.schedule.product_shape import ProductShape
from convsmith.tune.costs.features import Section
from convsmith.tune.costs.shared_facts import SharedFacts
from convsmith.tune.costs.tile_counts import TileCount


def fragment_tiles(
    rows: str, size: int, lane: str, columns: int, unit: ProductShape, registers: int
) -> Iterator[dict[str, int]]:
    """Yield tiles of rows and columns, usually of pixels and channels; the height of a fragment is one that divides the
    rows, if there is one.

    Sums take at most half of the registers if the factors are in the same register file. Tiles that use most registers
    come first, and among them the squarest.
    """
    most = registers // 2 if unit.factor_file == unit.file else registers
    highest, widest = -(-size // unit.rows), -(-columns // unit.lanes)
    shapes = [(high, wide) for high in range(1, min(most, highest) + 1) for wide in range(1, most // high + 1)]
    for high, wide in sorted(shapes, key=lambda shape: (-shape[0] * shape[1], max(shape), shape)):
        whole = min(unit.rows * high, size)
        even = next((n for n in range(whole, whole // 2, -1) if not size % n), whole)
        for height in {whole, even} if wide <= widest else ():
            yield {rows: height, lane: wide * unit.lanes}


class Panels(NamedTuple):
    """Bytes that register tiles read: per ``pixel``, and per ``column`` of fragments, over the whole sum.

    ``source`` and ``weights`` are the total bytes. Consecutive tiles have the same pixels, unless ``weights_stay``
    while pixels change. The taps of a row may read ``shared`` pixels, and windows may be ``copied`` just before. If
    lanes are pixels, the source and the weights change places.
    """

    pixel: float
    column: float
    source: float
    weights: float
    weights_stay: bool
    shared: bool = False
    copied: bool = False


def streamed_operand(panels: Panels, columns: int, kept: int) -> str:
    """Return the operand that the first-level cache, which holds ``kept`` bytes, need not keep: ``source`` or
    ``weights``; empty if it keeps both.

    It is the operand that changes between consecutive tiles, if it exceeds the cache. A source whose pixels taps share
    is read again soon; then it is the weights of the ``columns`` of a tile, if they exceed the cache.
    """
    if not panels.weights_stay:
        return "weights" if panels.weights > kept else ""
    if panels.shared:
        return "weights" if columns * panels.column > kept else ""
    return "source" if panels.source > kept else ""


def fragment_sections(
    tiles: Sequence[TileCount], steps: int, unit: ProductShape, panels: Panels, kept: int,
    is_loaded_by_row: bool,
) -> list[Section]:  # fmt: skip
    """Return the sections of ``tiles``, whose vectors are fragments along the channels.

    A fragment of pixels is one load, or ``is_loaded_by_row``. The first-level cache holds ``kept`` bytes: one tile
    of the operand that stays, all tiles of the other operand.
    """
    sections = []
    usual = _height(tiles[0].pixels, unit.rows)
    for pixels, wide, count, _ in tiles:
        high = -(-pixels // unit.rows)
        near = (
            (panels.source if panels.weights_stay else pixels * panels.pixel) <= kept,
            (wide * panels.column if panels.weights_stay else panels.weights) <= kept,
        )
        source, weights = ("fragment_move" if x else "fragment_move_far" for x in near)
        rows = pixels if is_loaded_by_row else high
        products = ("fragment_product", high * wide), ("fragment_row", rows - high)
        loads = (source, rows), (weights, wide)
        sections.append(Section(count * steps, (("products", products), ("loads of fragments", loads)), overlap=inf))
        is_begun = near[1] and not (panels.weights_stay or panels.shared or panels.copied)
        finish = ("fragment_move", high * wide), ("fragment_finish", pixels * wide)
        begun = (("fragment_pixel", pixels),) if is_begun else ()
        sections.append(Section(count, (("write-back", (*finish, *begun)),)))
        again = panels.weights_stay and _height(pixels, unit.rows) != usual
        turn = ("fragment_turn", 1), ("fragment_configuration", again)
        sections.append(Section(count, (("calls", turn),)))
    return sections


def runs_of_results(facts: SharedFacts, lane: str, tile: dict[str, int], of: TileCount) -> tuple[str, float]:
    """Return the event of beginning the runs of memory that the results of a ``tile`` fill, where runs lie far apart in
    a result that no near cache holds, and are more than prefetchers follow.

    There is a run for each row if its lanes are adjacent, and for each lane otherwise.
    """
    in_rows = facts.stride_of(lane) == 1
    across = [n for n in tile if n != lane] if in_rows else [lane]
    apart = max((facts.stride_of(n) for n in across), default=0) * dtype(facts.st.c.dtype).bytes
    costs, streams = facts.target.costs, prod(facts.sizes[d] for n in across for d in facts.dims[n])
    far = 2 * apart >= costs.page and facts.st.c.bytes > costs.images_near and streams > costs.streams
    return "fragment_run", (of.pixels if in_rows else of.vectors * facts.lanes) if far else 0


def _height(pixels: int, most: int) -> int:
    """Return the rows of the fragments that ``pixels`` are divided into; each height needs its own configuration."""
    return -(-pixels // -(-pixels // most))
