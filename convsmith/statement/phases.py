"""Phases: pixels of equal residue modulo a stride, treated as columns of the product.

In a gradient of the source or a deconvolution with stride ``s``, the pixel ``x = X * s + r`` reads only taps ``k = K *
s + (r + p) % s``: its sum is the reduction over ``K`` of ``A[X - K + (r + p) // s] * B[k]``.  The phase ``r`` selects
weights and results but not the source, like an output channel.  With a large stride, neighbouring phases fill the
vector lanes that few channels leave empty.

Dilated taps, ``d`` pixels apart, meet a phase at every ``s / gcd(d, s)``-th of them, or not at all, and a single tap
meets one phase. Such phases are *sparse*: a kernel needs loops over taps whose ends depend on the phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from math import gcd

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
    many pixels. The ``taps`` are ``dilation`` pixels apart, and a phase meets one of ``classes`` classes of them. Some
    phases may meet no tap if they are ``sparse``.
    """

    pixel: str
    tap: str
    stride: int
    moved: int
    runs: tuple[int, ...]
    taps: int
    dilation: int
    classes: int

    @property
    def sparse(self) -> bool:
        """Whether taps are dilated, or a single one meets one phase."""
        return self.dilation != 1 or self.classes != self.stride

    @property
    def count(self) -> int:
        """Number of phases that have pixels."""
        return sum(self.runs)

    @property
    def meeting(self) -> int:
        """Number of phases that have pixels and meet a tap."""
        met = {(tap * self.dilation - self.moved) % self.stride for tap in range(self.taps)}
        return sum(phase < self.count for phase in met)

    @property
    def longest(self) -> int:
        """The phase that meets the first tap; those after it, and then those before it, meet fewer and fewer taps if
        there are as many phases as the stride and taps are not dilated. Otherwise 0.
        """
        return -self.moved % self.stride if self.count == self.stride and self.dilation == 1 else 0

    @property
    def name(self) -> str:
        """Name of the loop over the phases."""
        return "r" + self.pixel[1:]

    @property
    def cuts(self) -> tuple[int, ...]:
        """The phase after each run, that is, the ends of the runs."""
        return tuple(accumulate(self.runs))


def phases(st: Statement, sparse: bool = False) -> dict[str, Phase]:
    """Return the phases of each pixel loop along which a stride divides the taps and taps are not dilated; with
    ``sparse``, of each pixel loop that a stride divides.
    """
    sizes, classes = st.extents, st.residues
    phases_by_loop = {}
    for coord in st.a.coords:
        atoms = [a for a, c in coord.terms if isinstance(a, FloorDiv) and c == 1]
        if len(atoms) != 1:
            continue
        stride = atoms[0].den
        num = atoms[0].num + (coord - atoms[0]) * stride  # whose multiples of the stride the quotient does not have
        names = {c > 0: (v.name, abs(c)) for v, c in num.terms if isinstance(v, Var)}
        if len(num.terms) != 2 or len(names) != 2 or names[True][1] != 1 or names[True][0] not in classes:
            continue
        (pixel, _), (tap, dilation) = names[True], names[False]
        runs = tuple(_runs(stride, num.const, sizes[tap], sizes[pixel]))
        dilation = dilation if sizes[tap] > 1 else 1
        found = Phase(pixel, tap, stride, num.const, runs, sizes[tap], dilation, classes.get(tap, 1))
        if sparse or not found.sparse:
            phases_by_loop[pixel] = found
    return phases_by_loop


def _runs(stride: int, moved: int, taps: int, pixels: int) -> Iterator[int]:
    """Yield the lengths of runs of equivalent phases."""
    count = min(stride, pixels)
    starts = {0, -moved % stride, (taps - moved) % stride, pixels % stride, count}
    for a, b in pairwise(sorted(n for n in starts if n <= count)):
        yield b - a


def phased(st: Statement, names: tuple[str, ...], sparse: bool = False) -> Statement:
    """Return the statement with the phases of the pixel loops ``names`` as columns, also those that are ``sparse`` if
    that is given. ConfigError if a loop has no such phases.

    The masks hold in phases that meet no tap, too.
    """
    remaining = phases(st, sparse)
    legal = ", ".join(remaining) or "none here"
    for name in names:
        if name not in remaining:
            raise ConfigError(
                "phases", f"--phases={','.join(names)}: legal, once each, are pixel loops that a stride divides"
                f"{'' if sparse else ', where taps are not dilated'}: {legal}",
            )  # fmt: skip
        st = _phased(st, remaining.pop(name))
    return st


def _phased(st: Statement, p: Phase) -> Statement:
    """Return the statement with an additional loop over phases, and correspondingly fewer pixels and taps."""
    pixel, tap, phase = Var(p.pixel), Var(p.tap), Var(p.name)
    parts = {p.pixel: p.stride, p.tap: p.classes}
    counts = {d.name: -(-d.size // parts[d.name]) for d in st.dims if d.name in parts}
    dims = [replace(d, size=counts.get(d.name, d.size)) for d in st.dims]
    channel = next(n for n, d in enumerate(dims) if d.name == st.n)
    dims.insert(channel, Dim(p.name, p.count, "n"))
    away, common = phase + p.moved, gcd(p.dilation, p.stride)
    first = mod(floordiv(away, common) * pow(p.dilation // common, -1, p.classes), p.classes)
    replacements = {pixel: pixel * p.stride + phase, tap: tap * p.classes + first}
    apart = p.dilation * p.classes // p.stride
    start = floordiv(away - first * p.dilation if p.dilation > 1 else away, p.stride)
    a_coords, a_masks = [], []
    for coord, mask in zip(st.a.coords, st.a.masks):
        meets = pixel in variables_of(coord)
        a_coords.append(pixel - tap * apart + start if meets else coord)
        a_masks.append(substitute(conj(c for c in parts_of(mask) if not (meets and isinstance(c, Eq0))), replacements))
    b, c = st.b.at(replacements), st.c.at(replacements)
    a = replace(st.a, coords=tuple(a_coords), masks=tuple(a_masks))
    return replace(st, dims=tuple(dims), factors=(a, b), c=c)
