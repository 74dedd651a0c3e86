"""Register tiles with fully unrolled taps, in which neighbouring pixels share loads.

A depthwise convolution multiplies each loaded element by few weights, so loads dominate. A tile of several pixels in
several rows loads the window of the image once for all its taps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from convsmith.ir.index import Index, Var
from convsmith.schedule.loops import Loops

MOST_TAPS = 25
"""Maximum number of taps that are unrolled."""
TILE_ROWS, TILE_COLUMNS = (1, 2, 3, 4), (2, 3, 4, 5, 7, 8, 14)
"""Pixels of a tile along the two innermost axes."""
VECTORS = (1, 2)
"""Vectors of channels per tile: one, or the number that the caches fetch at once."""

FEW_TAPS = 9
"""Maximum number of taps that are unrolled where source lanes come from several groups."""
GATHERED = 4
"""Maximum number of pixels of a tile with gathered lanes; with more, gathered sources are spilled."""

STRIDE = 2
"""Maximum distance of neighbouring pixels whose vector is loaded from two vectors."""
ROWS_OF_VECTORS = (2, 3, 4, 5, 7, 8, 10, 14)
"""Rows of a tile whose vectors run along pixels."""
MOST_PRODUCTS = 200
"""Maximum number of unrolled multiply-adds of a tile whose vectors run along pixels."""


def _distinct(pixels: int, taps: int, step: int) -> int:
    """Return the distinct elements along an axis that ``pixels`` pixels and ``taps`` taps read, for pixels ``step``
    taps apart.
    """
    return min(pixels * taps, (pixels - 1) * step + taps)


def _step(loops: Loops, steps: Mapping[Index, int], pixel: str, tap: str) -> int:
    """Return the distance of neighbouring pixels in taps; if it is not an integer, a distance at which they share no
    elements.
    """
    moved, by = abs(steps.get(Var(pixel), 0)), abs(steps.get(Var(tap), 0))
    return moved // by if moved and by and not moved % by else loops.extents[tap]


def first_reads(loops: Loops, tile: Mapping[str, int], steps: Mapping[Index, int], lane: str) -> float:
    """Return the fraction of a tile's reads of A that load an element for the first time; ``steps`` are A's along each
    loop. A vector of pixels along ``lane`` is loaded for each tap.
    """
    part = 1.0
    for tap, taps in tile.items():
        axis = loops.axes[tap]
        pixel = next((n for n in loops.of("m") if loops.axes[n] == axis), "")
        if loops.kinds[tap] == "k" and len(axis) == 1 and pixel not in ("", lane):
            pixels = tile.get(pixel, 1)
            part *= _distinct(pixels, taps, _step(loops, steps, pixel, tap)) / (pixels * taps)
    return part


def live_vectors(
    loops: Loops, tile: Mapping[str, int], vectors: int, steps: Mapping[Index, int], is_held: bool
) -> int:  # fmt: skip
    """Return the number of vectors that straight-line code of a window tile keeps for later: sums, elements that other
    taps read again, and, if ``is_held``, the weights of all taps.
    """
    taps = {loops.axes[n]: n for n, size in tile.items() if loops.kinds[n] == "k" and size > 1}
    pixels = [n for n in loops.of("m") if loops.axes[n]]
    if not pixels or loops.axes[pixels[-1]] not in taps:
        return 0
    column, along = pixels[-1], taps[loops.axes[pixels[-1]]]
    row = _distinct(tile.get(column, 1), tile[along], _step(loops, steps, column, along))
    sums, rows = prod(tile.get(n, 1) for n in pixels), prod(tile.get(n, 1) for n in pixels[:-1])
    if is_held:
        return (sums + prod(tile[n] for n in taps.values())) * vectors + row
    return (sums + rows * row) * vectors + 1


def window_tiles(
    loops: Loops, lane: str, lanes: int, registers: int, steps: Mapping[Index, int]
) -> Iterator[dict[str, int]]:
    """Yield tiles of rows and columns with all taps of both axes whose accumulators and shared elements fit the
    registers.
    """
    pixels = [n for n in loops.of("m") if len(loops.axes[n]) == 1][-2:]
    taps = {loops.axes[n]: n for n in loops.of("k") if loops.axes[n] and n not in loops.residues}
    pairs = [(n, taps[loops.axes[n]]) for n in pixels if loops.axes[n] in taps]
    if not pairs or len(pairs) < len(pixels) or not 1 < prod(loops.extents[t] for _, t in pairs) <= MOST_TAPS:
        return
    (column, along), above = pairs[-1], pairs[:-1]
    for rows in TILE_ROWS if above else (1,):
        for columns in TILE_COLUMNS:
            if columns > loops.extents[column] or any(rows > loops.extents[n] for n, _ in above):
                continue
            row = _distinct(columns, loops.extents[along], _step(loops, steps, column, along))
            for vectors in VECTORS:
                if rows * (columns * vectors + row) + 1 > registers or (vectors - 1) * lanes >= loops.extents[lane]:
                    continue
                tile = {n: rows for n, _ in above} | {column: columns, lane: lanes * vectors}
                yield tile | {t: loops.extents[t] for _, t in pairs if loops.extents[t] > 1}


def gathered_tiles(loops: Loops, lane: str, filled: int, gathered: str) -> Iterator[dict[str, int]]:
    """Yield tiles of all taps whose pixels share the elements along ``gathered`` of ``filled`` lanes along groups."""
    *_, column = loops.of("m")
    taps = {n: loops.extents[n] for n in loops.of("k") if n != gathered and loops.axes[n] and loops.extents[n] > 1}
    if not 1 < prod(taps.values()) <= FEW_TAPS or loops.extents[column] < GATHERED or loops.residues:
        return
    for vectors in VECTORS:
        if (vectors - 1) * filled < loops.extents[lane]:
            yield {column: GATHERED, lane: filled * vectors, **taps}


def tap_tiles(loops: Loops, lane: str, lanes: int, registers: int) -> Iterator[dict[str, int]]:
    """Yield tiles of all taps of a gradient of the weights, for vectors of groups ``lane``, that fit the registers."""
    taps = {n: loops.extents[n] for n in loops.of("m") if loops.axes[n] and loops.extents[n] > 1}
    for vectors in VECTORS:
        is_short = (vectors - 1) * lanes >= loops.extents[lane]
        if len(taps) > 1 and not is_short and vectors * (prod(taps.values()) + 1) < registers:
            yield {**taps, lane: lanes * vectors}


def row_tiles(loops: Loops, lane: str, n: str, lanes: int, registers: int) -> Iterator[dict[str, int]]:
    """Yield tiles of several rows of vectors along the pixels ``lane``, for all of few channels ``n``.

    With all taps across the rows, a loaded vector serves every row whose window contains it. With all taps along the
    rows too, a tile has no loops.
    """
    above = next((x for x in reversed(loops.of("m")) if x != lane and len(loops.axes[x]) == 1), "")
    if not above:
        return
    channels, tap = loops.extents[n], next((x for x in loops.of("k") if loops.axes[x] == loops.axes[above]), "")
    taps = loops.extents[tap] if tap and tap not in loops.residues else 1
    along = next((x for x in loops.of("k") if loops.axes[x] == loops.axes[lane] and x not in loops.residues), "")
    for vectors in range(1, min(-(-loops.extents[lane] // lanes), registers) + 1):
        for rows in ROWS_OF_VECTORS:
            sums = channels * rows * vectors
            held = rows * vectors if channels > 1 else vectors
            if rows > loops.extents[above] or sums + held >= registers:
                continue
            tile = {n: channels, above: rows, lane: lanes * vectors}
            yield tile
            if taps > 1 and sums * taps <= MOST_PRODUCTS:
                yield {**tile, tap: taps}
                if loops.extents.get(along, 1) > 1 and sums * taps * loops.extents[along] <= MOST_PRODUCTS:
                    yield {**tile, along: loops.extents[along], tap: taps}


def weights_fit(
    loops: Loops, tile: Mapping[str, int], vectors: int, registers: int, steps: Mapping[Index, int]
) -> bool:
    """Return whether the weights of every tap fit in registers beside a window's sums and one row of its loads."""
    taps = {loops.axes[n]: n for n in tile if loops.kinds[n] == "k"}
    pixels = [n for n in tile if loops.kinds[n] == "m"]
    if any(loops.extents[n] > tile.get(n, 1) or n in loops.residues for n in loops.of("k")):
        return False
    if not pixels or loops.axes[pixels[-1]] not in taps:
        return False
    column, along = pixels[-1], taps[loops.axes[pixels[-1]]]
    row = _distinct(tile[column], tile[along], _step(loops, steps, column, along))
    sums, weights = prod(tile[n] for n in pixels), prod(tile[n] for n in taps.values())
    return (sums + weights) * vectors + row <= registers
