"""Register tiles of fragments: those that the model compares, and their cycles."""

from __future__ import annotations

from collections.abc import Iterator

from convsmith.machine.costs import Costs
from convsmith.plan.unit import Unit

SHAPES = ((2, 2), (1, 4), (4, 1), (1, 3), (3, 1), (1, 2), (2, 1), (1, 1))
"""Shapes of a register tile: fragments of sums down the pixels, and along the channels."""


def fragment_tiles(pixels: str, size: int, lane: str, channels: int, unit: Unit) -> Iterator[dict[str, int]]:
    """Yield tiles of pixels and channels; the height of a fragment is one that divides the pixels, if there is one."""
    for high, wide in SHAPES:
        if (wide - 1) * unit.lanes >= channels:
            continue
        most = min(unit.rows * high, size)
        even = next((n for n in range(most, most // 2, -1) if not size % n), most)
        for height in {most, even}:
            yield {pixels: height, lane: wide * unit.lanes}


def fragment_cycles(tiles: list[tuple[int, int, int]], steps: int, unit: Unit, costs: Costs) -> float:
    """Return the cycles of ``tiles``, each given as (pixels, fragments along the channels, number of such tiles)."""
    cycles = 0.0
    for pixels, wide, count in tiles:
        high = -(-pixels // unit.rows)
        step = max(high * wide * costs.fragment_product, (high + wide) * costs.fragment_move)
        finish = high * wide * costs.fragment_move + pixels * wide * costs.fragment_finish
        cycles += count * (steps * step + finish + costs.fragment_turn)
    return cycles
