"""Register tiles of vectors: families of sizes, and one generator of the tiles that fit the registers.

A family says which loops a tile has, which of them are unrolled completely, and which sizes of the others are tried.
Registers hold the sums of a tile and the vectors that it loads besides. A depthwise convolution multiplies each loaded
element by few weights, so loads dominate: a tile of several pixels in several rows loads the window of the image once
for all its taps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import inf, prod
from typing import NamedTuple

from convsmith.ir.index import Index
from convsmith.schedule.loops import Loops
from convsmith.tune.costs.windows import distinct_elements, elements_at_once, taps_apart

Tile = dict[str, int]
"""The size of each loop of a tile; along the lanes in elements."""

MAX_TAPS = 25
"""Maximum number of taps that are unrolled."""
TILE_ROWS, TILE_COLUMNS = (1, 2, 3, 4), (2, 3, 4, 5, 7, 8, 14)
"""Pixels of a window tile along the two innermost axes."""
VECTORS = (1, 2)
"""Vectors of channels per window tile: one, or the number that the caches fetch at once."""
MAX_RUN_OF_TAPS = 11
"""Maximum number of taps of a row that are unrolled where there are more than `MAX_TAPS`."""
MAX_RUNS_OF_TAPS = 4
"""Maximum number of such runs where images have one axis: tiles at borders take long for each run."""
FEW_TAPS = 9
"""Maximum number of taps that are unrolled where source lanes come from several groups."""
GATHERED = 4
"""Maximum number of pixels of a tile with gathered lanes; with more, gathered sources are spilled."""
ROWS_OF_VECTORS = (2, 3, 4, 5, 6, 7, 8, 10, 14)
"""Rows of a tile whose vectors run along pixels."""
MAX_PRODUCTS = 200
"""Maximum number of unrolled multiply-adds of a tile whose vectors run along pixels."""
MAX_VECTORS = 8
"""Maximum number of vectors of a tile along the lanes."""
WIDTHS = (4, 5, 6, 7, 8, 12, 14, 16, 28)
"""Pixels of a tile that are tried besides the numbers that fill the registers."""
NARROW = (1, 2)
"""Further numbers of pixels of a tile whose vectors are terms of its sums."""
SHORT_ROW = 5
"""Maximum number of pixels of a row, if a tile has several rows."""


class Family(NamedTuple):
    """Tiles of each combination of ``sizes``; a tile loads ``loaded`` vectors besides its sums.

    Tiles have at most ``products`` unrolled multiply-adds of vectors.
    """

    sizes: Mapping[str, Sequence[int]]
    loaded: Callable[[Tile], float]
    products: float = inf


def fitting(families: Iterable[Family], loops: Loops, lane: str, lanes: int, registers: int) -> Iterator[Tile]:
    """Yield the tiles of ``families``, for vectors of ``lanes`` along ``lane``, that ``registers`` hold."""
    for sizes, loaded, most in families:
        taps = prod(sizes[n][0] for n in sizes if loops.kinds[n] == "k" and n != lane)
        for values in product(*sizes.values()):
            tile, products = dict(zip(sizes, values)), prod(values) // (lanes if lane in sizes else 1)
            if products <= most and products // taps + loaded(tile) < registers:
                yield tile


def _vectors(loops: Loops, lane: str, lanes: int, counts: Iterable[int]) -> list[int]:
    """Return the elements along ``lane`` of each of the ``counts`` of vectors that leaves no vector empty."""
    return [v * lanes for v in counts if (v - 1) * lanes < loops.extents[lane]]


def _within(sizes: Sequence[int], extent: int) -> list[int]:
    return [size for size in sizes if size <= extent]


def windows(
    loops: Loops, lane: str, lanes: int, steps: Mapping[Index, int], in_turn: bool = False
) -> Iterator[Family]:  # fmt: skip
    """Yield tiles of rows and columns with all taps of both axes; registers hold the elements that rows share, or the
    weights of a row of taps if the sums of a row of pixels are made ``in_turn``.
    """
    pixels, pairs = _pixels_with_taps(loops)
    if not pairs or len(pairs) < len(pixels) or not 1 < prod(loops.extents[t] for _, t in pairs) <= MAX_TAPS:
        return
    (column, along), above = pairs[-1], [n for n, _ in pairs[:-1]]
    sizes = {n: _within(TILE_ROWS, loops.extents[n]) for n in above}
    sizes |= {column: _within(TILE_COLUMNS, loops.extents[column]), lane: _vectors(loops, lane, lanes, VECTORS)}
    sizes |= {t: [loops.extents[t]] for _, t in pairs if loops.extents[t] > 1}
    step = taps_apart(loops, steps, column, along)

    def shared(tile: Tile) -> int:
        if in_turn and all(tile[n] == 1 for n in above):
            return loops.extents[along] + 1
        return prod(tile[n] for n in above) * distinct_elements(tile[column], loops.extents[along], step)

    yield Family(sizes, shared)


def _pixels_with_taps(loops: Loops) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the loops over pixels of the two innermost axes, and those that have taps, each with its taps."""
    pixels = [n for n in loops.of("m") if len(loops.axes[n]) == 1][-2:]
    taps = {loops.axes[n]: n for n in loops.of("k") if loops.axes[n] and n not in loops.residues}
    return pixels, [(n, taps[loops.axes[n]]) for n in pixels if loops.axes[n] in taps]


def runs_of_taps(loops: Loops, lane: str, lanes: int, steps: Mapping[Index, int]) -> Iterator[Family]:
    """Yield tiles of columns with some taps of a row, which divide the row, where there are many taps."""
    pixels, pairs = _pixels_with_taps(loops)
    if not pairs or pairs[-1][0] != pixels[-1] or prod(loops.extents[t] for _, t in pairs) <= MAX_TAPS:
        return
    column, along = pairs[-1]
    run = _run(loops.extents[along])
    step = taps_apart(loops, steps, column, along)
    if run > 1:
        columns = _within(WIDTHS, loops.extents[column])
        sizes = {column: columns, lane: _vectors(loops, lane, lanes, VECTORS), along: [run]}
        yield Family(sizes, lambda tile: elements_at_once(tile[column], run, step))


def _run(taps: int) -> int:
    """Return the largest number of taps of a row that are unrolled and divide ``taps``."""
    return max(n for n in range(1, MAX_RUN_OF_TAPS + 1) if taps % n == 0)


def gathers(loops: Loops, lane: str, lanes: int, gathered: str) -> Iterator[Family]:
    """Yield tiles of all taps whose pixels share the elements along ``gathered`` of lanes along groups."""
    *_, column = loops.of("m")
    taps = {n: [loops.extents[n]] for n in loops.of("k") if n != gathered and loops.axes[n] and loops.extents[n] > 1}
    if 1 < prod(n for (n,) in taps.values()) <= FEW_TAPS and loops.extents[column] >= GATHERED and not loops.residues:
        yield Family({column: [GATHERED], lane: _vectors(loops, lane, lanes, VECTORS), **taps}, lambda tile: 0)


def gradients_of_taps(loops: Loops, lane: str, lanes: int) -> Iterator[Family]:
    """Yield tiles of all taps of a gradient of the weights, for vectors of groups."""
    taps = {n: [loops.extents[n]] for n in loops.of("m") if loops.axes[n] and loops.extents[n] > 1}
    if len(taps) > 1:
        yield Family({**taps, lane: _vectors(loops, lane, lanes, VECTORS)}, lambda tile: tile[lane] // lanes)


def rows_of_vectors(loops: Loops, lane: str, lanes: int, n: str, registers: int) -> Iterator[Family]:
    """Yield tiles of several rows of vectors along the pixels ``lane``, for all of few channels ``n``.

    With all taps across the rows, a loaded vector serves every row whose window contains it. With all taps along the
    rows too, a tile has no loops. Where images have no rows, a tile has some taps of their only axis.
    """
    above = next((x for x in reversed(loops.of("m")) if x != lane and len(loops.axes[x]) == 1), "")
    taps = [x for x in loops.of("k") if x not in loops.residues and loops.extents[x] > 1]
    channels, vectors = loops.extents[n], _vectors(loops, lane, lanes, range(1, registers))
    if not above:
        vectors = _vectors(loops, lane, lanes, range(1, MAX_VECTORS + 1))
        for tap in [x for x in taps if loops.axes[lane] and loops.axes[x] == loops.axes[lane]]:
            run = _run(loops.extents[tap])
            if 1 < run and loops.extents[tap] <= MAX_RUNS_OF_TAPS * run:
                yield Family({n: [channels], lane: vectors, tap: [run]}, lambda tile: tile[lane] // lanes, MAX_PRODUCTS)
        return
    across, along = ([x for x in taps if loops.axes[x] == loops.axes[of]][:1] for of in (above, lane))
    sizes = {n: [channels], above: _within(ROWS_OF_VECTORS, loops.extents[above]), lane: vectors}

    def loaded(tile: Tile) -> int:
        return (tile[above] if channels > 1 else 1) * tile[lane] // lanes

    yield Family(sizes, loaded)
    for unrolled in ([across] + [[*along, *across]] * bool(along)) if across else ():
        yield Family({**sizes, **{x: [loops.extents[x]] for x in unrolled}}, loaded, MAX_PRODUCTS)


def vectors_by_pixels(
    loops: Loops, pixels: Sequence[str], lane: str, lanes: int, n: str, along_k: bool, tap: str, registers: int,
    sums: int = 0,
) -> Iterator[Family]:  # fmt: skip
    """Yield tiles of vectors along ``lane`` by pixels of a row, or of several short rows; ``pixels`` are their loops.

    Registers of their own hold ``sums`` vectors of sums, unless that is 0.
    Where lanes are terms ``along_k``, vectors of several channels ``n`` are in a tile, and a few iterations of ``tap``.
    """
    inner = lane if lane in pixels else pixels[-1]
    size, other = loops.extents[inner], n if lane == inner else inner
    for v in range(1, min(loops.extents[n] if along_k else -(-loops.extents[lane] // lanes), MAX_VECTORS) + 1):
        widest = sums // v if sums else (registers - 1 - v) // v
        wide = min(widest, loops.extents[other])
        vectors = {n: [v]} if along_k else {lane: [v * lanes]}
        few = NARROW if along_k else ()
        widths = sorted(x for x in {wide, wide - 1, *WIDTHS, *few} if 0 < x <= wide)
        yield Family({other: widths, **vectors}, lambda tile, v=v: v)  # type: ignore[misc]
        if along_k and tap and loops.extents[tap] <= 3:
            unrolled = {other: widths, **vectors, tap: [loops.extents[tap]]}
            yield Family(unrolled, lambda tile, v=v: tile[other] + v + 1)  # type: ignore[misc]
        if wide == size <= SHORT_ROW and other == inner and len(pixels) > 1:
            rows = loops.extents[pixels[-2]]
            row = {inner: [size], **vectors}
            several = sorted(x for x in {min(rows, widest // size), 2} if 1 < x <= rows)
            yield Family({pixels[-2]: several, **row}, lambda tile, v=v: v)  # type: ignore[misc]
            if along_k and len(pixels) > 2:
                images = {pixels[-3]: [loops.extents[pixels[-3]]], pixels[-2]: [rows], **row}
                yield Family(images, lambda tile, v=v: v)  # type: ignore[misc]
