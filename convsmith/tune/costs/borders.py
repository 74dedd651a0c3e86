"""The pixels of register tiles that each tap finds inside an image.

A term whose element is absent is left out, so that a tap which reaches beyond a border computes a part of a tile: of a
row of 15 pixels, 3 taps that are 7 elements apart, with a padding of 7, compute 8, 15 and 8 pixels. In tiles of 8
pixels, these are 1, 8 and 8 pixels of the first tile, and 7 and 7 of the second one. A part of a tile may take as many
cycles as the whole tile, because loads and latency do not become shorter.

Gradients of the weights count whole tiles. Taps and pixels are symmetric, but a part for each pixel is as many pieces
of code as an image has pixels beside its borders, and configs that were chosen by parts ran at half of the speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from convsmith.arith.evaluate import evaluate
from convsmith.ir.index import Index
from convsmith.ir.walk import variables_of
from convsmith.statement.statement import Statement

__all__ = ["Presence", "presence"]


MAX_RUNS = 2048
"""Maximum number of terms, in all residue classes, whose runs are listed; tiles of longer loops count as whole."""


class Presence(NamedTuple):
    """The iterations of a loop of the result whose elements are inside the image, as (first, end) for each of the
    ``terms`` iterations of the reduction along the same axis; there is none for a term that no iteration needs. The
    loop has ``extent`` iterations, of each residue class if it has several.
    """

    runs: tuple[tuple[int, int], ...]
    terms: int
    extent: int

    def cut(self, width: int, unit: int = 1) -> list[tuple[int, int, float]]:
        """Return (size, whole, number) of the parts of tiles of the size ``whole`` that a term computes, in the mean of
        all terms.

        Tiles have ``width`` vectors of ``unit`` iterations; a vector is whole if one of its iterations is present.
        """
        found: Counter[tuple[int, int]] = Counter()
        extent = -(-self.extent // unit)
        for start, stop in self.runs:
            low, high = start // unit, -(-stop // unit)
            first, last = low // width, (high - 1) // width
            found[width, width] += max(last - first - 1, 0)
            for tile in {first, last}:
                begin, end = tile * width, min((tile + 1) * width, extent)
                found[min(high, end) - max(low, begin), end - begin] += 1
        return [(size, whole, n / self.terms) for (size, whole), n in sorted(found.items()) if n]

    def mean(self) -> float:
        """Return the iterations that are present, in the mean of all terms."""
        return sum(stop - start for start, stop in self.runs) / self.terms


def presence(st: Statement) -> dict[str, Presence]:
    """Return the presence of each loop of the result of ``st`` that meets a border of A, by name."""
    if st.sizes or st.a.filled:
        return {}
    masked, found = variables_of(st.a.mask), {}
    for coordinate, size in zip(st.a.coords, st.a.layout.shape):
        own = {v.name for v in variables_of(coordinate) & masked}
        axis = next((d.axis for d in st.dims if d.axis and d.name in own), "")
        if axis:
            outer = next(d for d in st.of("m") if d.axis == axis)
            inner = next((d for d in st.of("k") if d.axis == axis), None)
            classes, terms = st.residues.get(outer.name, 1), inner.size if inner else 1
            if terms * classes > MAX_RUNS:
                continue
            names = (outer.name, inner.name if inner else "")
            runs = tuple(_runs(coordinate, size, names, (outer.size, terms), classes))
            found[outer.name] = Presence(runs, terms, -(-outer.size // classes))
    return found


def _runs(
    coordinate: Index, size: int, names: Sequence[str], counts: Sequence[int], classes: int
) -> list[tuple[int, int]]:
    """Return the runs of iterations of the loop ``names[0]`` at which ``coordinate`` is in 0 .. ``size``, for each
    iteration of the loop ``names[1]``; in each residue class, if a stride must divide the distance of both.
    """
    known = variables_of(coordinate)

    def at(*place: int) -> int:
        values = dict(zip(names, place))
        return int(evaluate(coordinate, {v: values.get(v.name, 0) for v in known}))

    runs = []
    for term in range(counts[1]):
        for residue in range(classes):
            start = at(residue, term)
            if classes > 1 and at(residue - 1, term) == start:
                continue  # the stride does not divide this distance
            step, low, high = at(residue + classes, term) - start, 0, -(-(counts[0] - residue) // classes)
            if step > 0:
                low, high = max(low, -(start // step)), min(high, (size - 1 - start) // step + 1)
            elif not 0 <= start < size:
                continue
            if low < high:
                runs.append((low, high))
    return runs
