"""The elements that neighbouring pixels of a register tile share under their windows, and the registers for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from convsmith.arith.evaluate import evaluate
from convsmith.ir.index import Index, Var
from convsmith.ir.walk import variables_of
from convsmith.schedule.loops import Loops

STRIDE = 2
"""Maximum distance of neighbouring pixels whose vector is loaded from two vectors."""


def distinct_elements(pixels: int, taps: int, step: int) -> int:
    """Return the distinct elements along an axis that ``pixels`` pixels and ``taps`` taps read, for pixels ``step``
    taps apart.
    """
    return min(pixels * taps, (pixels - 1) * step + taps)


def fraction_read(pixels: int, taps: int, across: int, by: int) -> float:
    """Return the fraction of the reads of ``pixels`` pixels by ``taps`` taps that read an element for the first time;
    pixels are ``across`` elements apart, and taps ``by`` elements.
    """
    across, by = abs(across), abs(by)
    if across and by and not across % by:
        return distinct_elements(pixels, taps, across // by) / (pixels * taps)
    if across and by and not by % across:
        return distinct_elements(taps, pixels, by // across) / (pixels * taps)
    return 1.0


def taps_apart(loops: Loops, steps: Mapping[Index, int], pixel: str, tap: str) -> int:
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
            part *= distinct_elements(pixels, taps, taps_apart(loops, steps, pixel, tap)) / (pixels * taps)
    return part


def merged_taps(
    loops: Loops, tile: Mapping[str, int], steps: Mapping[Index, int], terms: int, guarded: Collection[str]
) -> tuple[float, float]:  # fmt: skip
    """Return the instructions of straight-line code that adds up ``terms`` taps of a loop at once, and the distinct
    vectors of such terms, as fractions of its products: for the loop over taps that leaves the fewest of both. A
    condition of each tap separates those along the axes of ``guarded`` pixels, unless the tile has several.
    """
    found = [(1.0, 0.0)]
    for tap in (n for n, size in tile.items() if loops.kinds[n] == "k" and size >= terms):
        axis, taps = loops.axes[tap], tile[tap]
        pixel = next((n for n in loops.of("m") if loops.axes[n] == axis), "")
        pixels, apart = tile.get(pixel, 1), taps_apart(loops, steps, pixel, tap)
        if pixel in guarded and pixels == 1:
            continue
        starts = {n * apart + group * terms for n in range(pixels) for group in range(taps // terms)}
        again = first_reads(loops, {n: size for n, size in tile.items() if loops.axes[n] != axis}, steps, "")
        found.append(((taps // terms + taps % terms) / taps, len(starts) / (pixels * taps) * again))
    return min(found)


def first_reads_of_pixels(
    loops: Loops, tile: Mapping[str, int], pixels: Sequence[tuple[str, int]], steps: Mapping[Index, int]
) -> float:  # fmt: skip
    """Return the fraction of the reads of A that load an element for the first time in a step of a gradient of the
    weights, which has some ``pixels`` of a loop in straight lines; ``tile`` has the taps.
    """
    part = 1.0
    for pixel, count in pixels:
        taps = [n for n, size in tile.items() if size > 1 and loops.axes[n] and loops.axes[n] == loops.axes[pixel]]
        for tap in taps:
            part *= fraction_read(count, tile[tap], steps.get(Var(pixel), 0), steps.get(Var(tap), 0))
    return part


def elements_at_once(pixels: int, taps: int, step: int) -> int:
    """Return the maximum number of elements that a row of a window tile keeps at a time, tap by tap: those that later
    taps read again, of pixels ``step`` elements apart.
    """
    return min(distinct_elements(pixels, taps, step), (pixels - 1) * step + 1)


def live_vectors(
    loops: Loops, tile: Mapping[str, int], vectors: int, steps: Mapping[Index, int], is_held: bool,
    is_extended: bool = False, in_turn: bool = False,
) -> int:  # fmt: skip
    """Return the number of vectors that straight-line code of a window tile keeps for later: sums, elements that other
    taps read again, and, if ``is_held``, the weights of all taps. Beside these, a multiply-add reads elements of other
    rows from memory, unless ``is_extended`` says that they are converted before. Where the sums of a row are made
    ``in_turn``, the weights of a row of taps stay, and no elements.
    """
    taps = {loops.axes[n]: n for n, size in tile.items() if loops.kinds[n] == "k" and size > 1}
    pixels = [n for n in loops.of("m") if loops.axes[n]]
    if not pixels or loops.axes[pixels[-1]] not in taps:
        return 0
    column, along = pixels[-1], taps[loops.axes[pixels[-1]]]
    row = distinct_elements(tile.get(column, 1), tile[along], taps_apart(loops, steps, column, along))
    sums, rows = prod(tile.get(n, 1) for n in pixels), prod(tile.get(n, 1) for n in pixels[:-1])
    if in_turn and rows == 1:
        return (sums + tile[along]) * vectors + 1
    if is_held:
        return (sums + prod(tile[n] for n in taps.values())) * vectors + (rows if is_extended else 1) * row
    return (sums + rows * row) * vectors + 1


def elements_at_a_border(
    loops: Loops, tile: Mapping[str, int], coords: Sequence[Index], shape: Sequence[int], most: int
) -> tuple[int, int]:
    """Return the taps of a row that have code of their own in a register tile at a border, where some pixels are
    absent, and the elements of the row that they read, if loops run over the taps; zeros if there are more than
    ``most`` such taps. ``coords`` are the coordinates of A, whose sizes are ``shape``.
    """
    pixel = loops.of("m")[-1]
    tap = next((n for n in loops.of("k") if loops.axes[n] and loops.axes[n] == loops.axes[pixel]), "")
    along = next((d for d, x in enumerate(coords) if {Var(pixel), Var(tap)} <= variables_of(x)), None)
    if along is None or tap in loops.residues:
        return 0, 0
    names, count = variables_of(coords[along]), loops.extents[pixel]
    starts = (evaluate(coords[along], {v: int(v.name == of) for v in names}) for of in ("", pixel, tap))
    start, *nexts = (int(x) for x in starts)
    across, by = (x - start for x in nexts)
    width, size, found = min(tile.get(pixel, 1), count), shape[along], (0, 0)
    for first in {0, count - width}:
        at = [start + across * first, start + across * (first + width - 1)]
        low, high = min(at), max(at)
        cut = [t for t in range(loops.extents[tap]) if low + by * t < 0 or high + by * t >= size]
        if len(cut) + 1 == loops.extents[tap]:
            cut = [*range(loops.extents[tap])]
        if len(cut) <= most:
            read = {at[0] + across * n + by * t for t in cut for n in range(width)}
            found = max(found, (len(cut), len(read.intersection(range(size)))))
    return found


def weights_fit(
    loops: Loops, tile: Mapping[str, int], vectors: int, registers: int, steps: Mapping[Index, int],
    is_extended: bool = False,
) -> bool:  # fmt: skip
    """Return whether the weights of every tap fit in registers beside a window's sums and the elements that it keeps.
    """
    is_whole = all(loops.extents[n] <= tile.get(n, 1) and n not in loops.residues for n in loops.of("k"))
    live = live_vectors(loops, tile, vectors, steps, is_held=True, is_extended=is_extended)
    return is_whole and 0 < live <= registers


def spilled_by_taps(loops: Loops, tile: Mapping[str, int], lane: str, sums: tuple[int, int], registers: int) -> int:
    """Return the sums that a tile of ``sums`` rows by vectors of pixels stores and loads again in a step, because its
    code keeps rows, or the weights of all taps, for the taps across the rows. The fewer of both are kept.
    """
    m, v = sums
    taps = {n: tile.get(n, 1) for n in loops.of("k") if loops.axes[n]}
    along = prod(size for n, size in taps.items() if loops.axes[n] == loops.axes[lane])
    across = prod(taps.values()) // along
    kept = min(min(across, m) * along * v, prod(taps.values()))
    return max(m * v + kept + 1 - registers, 0) if across > 1 else 0
