"""Pixels at the same place between multiples of a stride, as columns of the product.

Where a gradient of the source or a deconvolution has a stride ``s``, a pixel ``x = X * s + r`` meets only taps
``k = K * s + (r + p) % s``: its sum is one over ``K`` of ``A[X - K + (r + p) // s] * B[k]``. The phase ``r`` moves the
weights and the result, and not the source, as a channel of the result does. Where the stride is large, neighbouring
phases fill the lanes that few channels leave empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import gcd, lcm

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Eq0, FloorDiv, Mod, Var, conj, floordiv, mod, parts_of
from convsmith.ir.walk import substitute, variables_of
from convsmith.statement.statement import Dim, Statement


def residues(st: Statement) -> dict[str, int]:
    """For each loop that a stride must divide: how many classes make the mask the same within each class.

    ``e % s == 0`` does not change when a variable with the coefficient ``c`` in ``e`` moves by ``s / gcd(s, c)``.
    """
    found: dict[str, int] = {}
    for part in parts_of(st.a.mask):
        for atom, _ in part.arg.terms if isinstance(part, Eq0) else ():
            if isinstance(atom, Mod):
                for v, c in atom.num.terms:
                    if isinstance(v, Var) and (m := atom.den // gcd(atom.den, c)) > 1:
                        found[v.name] = lcm(m, found.get(v.name, 1))
    return found


@dataclass(frozen=True)
class Phase:
    """The phases of a pixel loop: the tap loop that they meet, the stride, and how far pads move them.

    ``runs`` are the lengths of neighbouring phases with the same pixels of A, the same taps and as many pixels.
    """

    pixel: str
    tap: str
    stride: int
    moved: int
    runs: tuple[int, ...]

    @property
    def count(self) -> int:
        """Phases that have pixels."""
        return sum(self.runs)

    @property
    def name(self) -> str:
        """The loop over the phases."""
        return "r" + self.pixel[1:]

    @property
    def cuts(self) -> tuple[int, ...]:
        """The phases that begin a run; the last have no pixels."""
        return tuple(accumulate(self.runs))


def phases(st: Statement) -> dict[str, Phase]:
    """The pixel loops that can have phases: those along which a stride meets taps side by side."""
    sizes = {d.name: d.size for d in st.dims}
    classes = residues(st).keys()
    found = {}
    for coord in st.a.coords:
        atoms = [a for a, c in coord.terms if isinstance(a, FloorDiv) and c == 1]
        if len(atoms) != 1 or len(coord.terms) != 1:
            continue
        num, stride = atoms[0].num, atoms[0].den
        moved = num.const + coord.const * stride
        names = {c: v.name for v, c in num.terms if isinstance(v, Var)}
        if len(num.terms) == 2 and names.keys() == {1, -1} and set(names.values()) <= classes:
            runs = tuple(_runs(stride, moved, sizes[names[-1]], sizes[names[1]]))
            found[names[1]] = Phase(names[1], names[-1], stride, moved, runs)
    return found


def _runs(stride: int, moved: int, taps: int, pixels: int) -> Iterator[int]:
    """Lengths of runs of phases between which something differs."""
    count = min(stride, pixels)
    starts = {0, -moved % stride, (taps - moved) % stride, pixels % stride, count}
    for a, b in pairwise(sorted(n for n in starts if n <= count)):
        yield b - a


def phased(st: Statement, names: tuple[str, ...]) -> Statement:
    """The statement with phases of pixel loops as columns; ConfigError where a loop has none."""
    found, whole = phases(st), st
    for name in names:
        if name not in found:
            raise ConfigError(
                "phases", f"--phases={','.join(names)}: legal, once each, are pixel loops that a stride divides, where "
                f"taps are not dilated: {', '.join(phases(whole)) or 'none here'}",
            )  # fmt: skip
        st = _phased(st, found.pop(name))
    return st


def _phased(st: Statement, p: Phase) -> Statement:
    """The statement with another loop, of columns, and with fewer pixels and taps."""
    pixel, tap, phase = Var(p.pixel), Var(p.tap), Var(p.name)
    counts = {d.name: -(-d.size // p.stride) for d in st.dims if d.name in (p.pixel, p.tap)}
    dims = [replace(d, size=counts.get(d.name, d.size)) for d in st.dims]
    channel = next(n for n, d in enumerate(dims) if d.name == st.n)
    dims.insert(channel, Dim(p.name, p.count, "n"))
    away = phase + p.moved
    moved = {pixel: pixel * p.stride + phase, tap: tap * p.stride + mod(away, p.stride)}
    a_coords, a_masks = [], []
    for coord, mask in zip(st.a.coords, st.a.masks):
        meets = pixel in variables_of(coord)
        a_coords.append(pixel - tap + floordiv(away, p.stride) if meets else coord)
        a_masks.append(substitute(conj(c for c in parts_of(mask) if not (meets and isinstance(c, Eq0))), moved))
    b, c = (replace(v, coords=tuple(substitute(x, moved) for x in v.coords)) for v in (st.b, st.c))
    return replace(st, dims=tuple(dims), a=replace(st.a, coords=tuple(a_coords), masks=tuple(a_masks)), b=b, c=c)
