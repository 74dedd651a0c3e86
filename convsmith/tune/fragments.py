"""Register tiles of fragments: which are worth a look, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator

from convsmith.machine.costs import Costs
from convsmith.plan.loops import Unit

SHAPES = ((2, 2), (1, 4), (4, 1), (1, 3), (3, 1), (1, 2), (2, 1), (1, 1))
"""Fragments of sums: down the pixels, along the channels."""


def fragment_tiles(pixels: str, size: int, lane: str, channels: int, unit: Unit) -> Iterator[dict[str, int]]:
    """Tiles of pixels and channels; fragments are as high as divides the pixels best."""
    for high, wide in SHAPES:
        if (wide - 1) * unit.lanes >= channels:
            continue
        most = min(unit.rows * high, size)
        even = next((n for n in range(most, most // 2, -1) if not size % n), most)
        for height in {most, even}:
            yield {pixels: height, lane: wide * unit.lanes}


def fragment_cycles(tiles: list[tuple[int, int, int]], steps: int, unit: Unit, costs: Costs) -> float:
    """Cycles of register tiles, each given as (pixels, fragments along the channels, how many there are)."""
    cycles = 0.0
    for pixels, wide, count in tiles:
        high = -(-pixels // unit.rows)
        step = max(high * wide * costs.fragment_product, (high + wide) * costs.fragment_move)
        finish = high * wide * costs.fragment_move + pixels * wide * costs.fragment_finish
        cycles += count * (steps * step + finish + costs.fragment_turn)
    return cycles
