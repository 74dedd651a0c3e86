"""Phases: pixels of equal residue modulo a stride, treated as columns of the product.

In a gradient of the source or a deconvolution with stride ``s``, the pixel ``x = X * s + r`` reads only taps ``k = K *
s + (r + p) % s``: its sum is the reduction over ``K`` of ``A[X - K + (r + p) // s] * B[k]``.  The phase ``r`` selects
weights and results but not the source, like an output channel.  With a large stride, neighbouring phases fill the
vector lanes that few channels leave empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise

from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.ir.index import Eq0, FloorDiv, Var, conj, floordiv, mod, parts_of
from convsmith.ir.rewrite import substitute
from convsmith.ir.walk import variables_of
from convsmith.statement.statement import Dim, Statement


@record(frozen=True)
class Phase:
    """The phases of a pixel loop: the tap loop that they select from, the stride, and the shift due to pads.

    ``runs`` are the lengths of runs of neighbouring phases that read the same source pixels and taps and have equally
    many pixels.
    """

    pixel: str
    tap: str
    stride: int
    moved: int
    runs: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of phases that have pixels."""
        return sum(self.runs)

    @property
    def name(self) -> str:
        """Name of the loop over the phases."""
        return "r" + self.pixel[1:]

    @property
    def cuts(self) -> tuple[int, ...]:
        """The phase after each run, that is, the ends of the runs."""
        return tuple(accumulate(self.runs))


def phases(st: Statement) -> dict[str, Phase]:
    """Return the phases of each pixel loop along which a stride divides the taps and taps are not dilated."""
    sizes = st.extents
    classes = st.residues.keys()
    phases_by_loop = {}
    for coord in st.a.coords:
        atoms = [a for a, c in coord.terms if isinstance(a, FloorDiv) and c == 1]
        if len(atoms) != 1 or len(coord.terms) != 1:
            continue
        num, stride = atoms[0].num, atoms[0].den
        moved = num.const + coord.const * stride
        names = {c: v.name for v, c in num.terms if isinstance(v, Var)}
        if len(num.terms) == 2 and names.keys() == {1, -1} and set(names.values()) <= classes:
            runs = tuple(_runs(stride, moved, sizes[names[-1]], sizes[names[1]]))
            phases_by_loop[names[1]] = Phase(names[1], names[-1], stride, moved, runs)
    return phases_by_loop


def _runs(stride: int, moved: int, taps: int, pixels: int) -> Iterator[int]:
    """Yield the lengths of runs of equivalent phases."""
    count = min(stride, pixels)
    starts = {0, -moved % stride, (taps - moved) % stride, pixels % stride, count}
    for a, b in pairwise(sorted(n for n in starts if n <= count)):
        yield b - a


def phased(st: Statement, names: tuple[str, ...]) -> Statement:
    """Return the statement with the phases of the pixel loops ``names`` as columns. ConfigError if a loop has no
    phases.
    """
    remaining, whole = phases(st), st
    for name in names:
        if name not in remaining:
            raise ConfigError(
                "phases", f"--phases={','.join(names)}: legal, once each, are pixel loops that a stride divides, where "
                f"taps are not dilated: {', '.join(phases(whole)) or 'none here'}",
            )  # fmt: skip
        st = _phased(st, remaining.pop(name))
    return st


def _phased(st: Statement, p: Phase) -> Statement:
    """Return the statement with an additional loop over phases, and correspondingly fewer pixels and taps."""
    pixel, tap, phase = Var(p.pixel), Var(p.tap), Var(p.name)
    counts = {d.name: -(-d.size // p.stride) for d in st.dims if d.name in (p.pixel, p.tap)}
    dims = [replace(d, size=counts.get(d.name, d.size)) for d in st.dims]
    channel = next(n for n, d in enumerate(dims) if d.name == st.n)
    dims.insert(channel, Dim(p.name, p.count, "n"))
    away = phase + p.moved
    replacements = {pixel: pixel * p.stride + phase, tap: tap * p.stride + mod(away, p.stride)}
    a_coords, a_masks = [], []
    for coord, mask in zip(st.a.coords, st.a.masks):
        meets = pixel in variables_of(coord)
        a_coords.append(pixel - tap + floordiv(away, p.stride) if meets else coord)
        a_masks.append(substitute(conj(c for c in parts_of(mask) if not (meets and isinstance(c, Eq0))), replacements))
    b, c = st.b.at(replacements), st.c.at(replacements)
    a = replace(st.a, coords=tuple(a_coords), masks=tuple(a_masks))
    return replace(st, dims=tuple(dims), factors=(a, b), c=c)
