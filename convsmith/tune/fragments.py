"""Register tiles of fragments that the model compares, and their cycles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from convsmith.machine.costs import Costs
from convsmith.schedule.product_shape import ProductShape


def fragment_shapes(most: int) -> list[tuple[int, int]]:
    """Return numbers of fragments of sums, down the pixels and along the channels, ``most`` in total.

    Shapes that use most registers come first, and among them the squarest.
    """
    shapes = [(high, wide) for high in range(1, most + 1) for wide in range(1, most // high + 1)]
    return sorted(shapes, key=lambda shape: (-shape[0] * shape[1], max(shape), shape))


def fragment_tiles(
    pixels: str, size: int, lane: str, channels: int, unit: ProductShape, registers: int
) -> Iterator[dict[str, int]]:
    """Yield tiles of pixels and channels; the height of a fragment is one that divides the pixels, if there is one.

    Sums take at most half of the registers if the factors are in the same register file.
    """
    for high, wide in fragment_shapes(registers // 2 if unit.factor_file == unit.file else registers):
        if (wide - 1) * unit.lanes >= channels:
            continue
        most = min(unit.rows * high, size)
        even = next((n for n in range(most, most // 2, -1) if not size % n), most)
        for height in {most, even}:
            yield {pixels: height, lane: wide * unit.lanes}


class Panels(NamedTuple):
    """Bytes that register tiles read: per ``pixel``, and per ``column`` of fragments, over the whole sum.

    ``source`` and ``weights`` are the total bytes. Consecutive tiles have the same pixels, unless ``weights_stay``
    while pixels change. The taps of a row may read ``shared`` pixels, and windows may be ``copied`` just before.
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


def fragment_cycles(
    tiles: list[tuple[int, int, int]], steps: int, unit: ProductShape, costs: Costs, panels: Panels, kept: int,
    terms: defaultdict[str, float] | None = None,
) -> float:  # fmt: skip
    """Return the cycles of ``tiles``, each given as (pixels, fragments along the channels, number of such tiles).

    The first-level cache holds ``kept`` bytes: one tile of the operand that stays, all tiles of the other operand. The
    cycles are added to ``terms`` by cause.
    """
    cycles = 0.0
    usual = _height(tiles[0][0], unit.rows)
    for pixels, wide, count in tiles:
        high = -(-pixels // unit.rows)
        near = (
            (panels.source if panels.weights_stay else pixels * panels.pixel) <= kept,
            (wide * panels.column if panels.weights_stay else panels.weights) <= kept,
        )
        source, weights = (costs.fragment_move if x else costs.fragment_move_far for x in near)
        step = max(high * wide * costs.fragment_product, high * source + wide * weights)
        finish = high * wide * costs.fragment_move + pixels * wide * costs.fragment_finish
        is_begun = near[1] and not (panels.weights_stay or panels.shared or panels.copied)
        finish += pixels * costs.fragment_pixel * is_begun
        again = panels.weights_stay and _height(pixels, unit.rows) != usual
        turn = costs.fragment_turn + again * costs.fragment_configuration
        cycles += count * (steps * step + finish + turn)
        if terms is not None:
            bound = "products" if step == high * wide * costs.fragment_product else "loads of fragments"
            terms[bound] += count * steps * step
            terms["write-back"] += count * finish
            terms["calls"] += count * turn
    return cycles


def _height(pixels: int, most: int) -> int:
    """Return the rows of the fragments that ``pixels`` are divided into; each height needs its own configuration."""
    return -(-pixels // -(-pixels // most))
