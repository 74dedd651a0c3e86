"""Views: a virtual tensor over the dims of a loop nest, mapped into a tensor that exists.

A view maps each point of the nest to an element of the tensor (``coords``, one index per tensor dim), and states
whether the element exists (``masks``, one condition per tensor dim).  If a mask is false, the term is absent: nothing
is loaded, and a store is dropped.  Only views know what a convolution is; a matrix product has views whose masks are
true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import gcd, lcm, prod
from typing import Literal, NamedTuple

from convsmith.arith.evaluate import holds
from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Eq0, Index, Mod, Var, conj, is_true, parts_of
from convsmith.ir.rewrite import substitute
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.layout.indirection import Axis
from convsmith.layout.layout import Layout
from convsmith.passes.flatten import offset

KINDS = ("batch", "n", "m", "k")
"""Roles of dims, in the order in which schedules nest them, outermost first."""

MAX_TESTED = 4096
"""Maximum number of elements for which one condition is tested."""
FLIPPED = {"u8": "s8", "s8": "u8"}
"""Types of bytes after their top bit is inverted."""


@record(frozen=True)
class Dim:
    """A dim of the nest: ``kind`` is its role in ``C[m, n] += A[m, k] * B[k, n]`` (``batch`` is in all three).

    ``axis`` is the letter of the spatial axis that the dim runs along, or empty. ``sort`` is "images" or "taps" if the
    dim runs over images or over taps of a window, and empty otherwise.
    """

    name: str
    size: int
    kind: str
    axis: str = ""
    sort: str = ""


class Requantised(NamedTuple):
    """Entries of fewer than 8 bits, of type ``factor``; ``rest`` is the array of rounding terms, or empty."""

    bits: int
    factor: str
    rest: str


@record(frozen=True)
class View:
    """``tensor[coords]`` where all of ``masks`` hold; ``dtype`` is the tensor's.

    The factor of a ``flipped`` view has its top bit inverted: u8 becomes s8 and 128 less, s8 the reverse. An absent
    element of a ``filled`` view reads as the tensor's zero point, and its term is present. A ``packed`` view is read
    from memory in the order of the nest. Entries of a ``requantised`` view are requantised to fewer bits before they
    are multiplied, s8 entries after adding 128. Each byte of a ``narrow`` view holds a number of that type in its lower
    half, and packing may put two of them into a byte. A ``constant`` view has the same contents in all calls. ``adds``
    names the view whose entries are summed in this view. The arrays ``beside`` are packed into one stream with it.
    """

    name: str
    dtype: str
    layout: Layout
    coords: tuple[Index, ...]
    masks: tuple[Cond, ...]
    flipped: bool = False
    filled: bool = False
    packed: bool = False
    requantised: Requantised | None = None
    constant: bool = False
    adds: str = ""
    beside: tuple[str, ...] = ()
    narrow: str = ""

    @property
    def array(self) -> str:
        """The name of the array that a kernel reads."""
        return f"{self.name}_p" if self.packed else self.name

    @property
    def factor(self) -> str:
        """Type of the factor."""
        if self.requantised is not None:
            return self.requantised.factor
        return FLIPPED[self.dtype] if self.flipped else self.dtype

    @property
    def bytes(self) -> int:
        """The bytes of the elements, without those that blocks add."""
        return prod(self.layout.shape) * dtype(self.dtype).bytes

    def at(self, variables: Mapping[Var, Index]) -> View:
        """Return the view with ``variables`` replaced in its coordinates and masks."""
        coords = tuple(substitute(x, variables) for x in self.coords)
        return replace(self, coords=coords, masks=tuple(substitute(m, variables) for m in self.masks))

    @cached_property
    def mask(self) -> Cond:
        """The conjunction of all masks."""
        return conj(self.masks)

    @cached_property
    def _steps(self) -> Mapping[Index, int]:
        """The elements by which each variable moves the view."""
        buffer = Buffer(self.name, dtype(self.dtype), self.layout.shape, self.layout.blocks)
        return dict(offset(buffer, self.coords).terms)


When = Literal["packing", "before", "loop", "main", "after"]
"""Times at which a statement runs: while an operand is packed; in each call, as the main statement or before or after
it; or inside a loop of the main statement."""

Finish = Literal["epilogue", "sum", "centred"]
"""The last step of a statement: the problem's epilogue, a conversion to the result's type, or a conversion after the
source's zero point is subtracted once for each term."""


@record(frozen=True)
class Statement:
    """``c = finish(sum over k of the product of factors)`` over the dims of the nest, in the order of the naive nest.

    ``factors`` are the views A and B, or A alone where the statement only adds up entries. The masks are those of A.
    ``axes`` are the axes of the window that A is read through, outermost first; empty for a matrix product. ``reduce``
    names the reduction loops in the order that reads memory sequentially, outermost first. ``acc`` is the data type of
    the sums. Where ``shifted`` is set, zero points are subtracted from the factors. Otherwise ``sums`` are the views of
    the sums of entries of A and B with which the epilogue subtracts zero points. ``sizes`` are the extents and pads in
    the masks that are known only at the call. A statement with ``part_of`` computes a part of each sum of that
    statement, or adds up and finishes the parts. The zero point of the source multiplies each term if the statement is
    ``weighed`` by a view of the source, at whose channel the zero point is. In a ``strict`` statement, no infinity or
    NaN of an operand may spoil a sum of which it is no factor.
    """

    dims: tuple[Dim, ...]
    factors: tuple[View, ...]
    c: View
    reduce: tuple[str, ...]
    acc: str
    shifted: bool = False
    sums: tuple[View, ...] = ()
    axes: tuple[Axis, ...] = ()
    sizes: tuple[Var, ...] = ()
    name: str = "conv"
    when: When = "main"
    finish: Finish = "epilogue"
    part_of: Statement | None = None
    weighed: View | None = None
    strict: bool = False

    @property
    def a(self) -> View:
        """The first factor."""
        return self.factors[0]

    @property
    def b(self) -> View:
        """The second factor; IndexError in a statement that has one."""
        return self.factors[1]

    @property
    def whole(self) -> Statement:
        """The statement whose result is finished."""
        return self if self.part_of is None else self.part_of

    @cached_property
    def n(self) -> str:
        """The N dim of channels."""
        return self.of("n")[-1].name

    @cached_property
    def extents(self) -> dict[str, int]:
        """The size of each dim, by name."""
        return {d.name: d.size for d in self.dims}

    @cached_property
    def constant(self) -> bool:
        """Whether B has the same contents in all calls."""
        return self.b.constant

    @cached_property
    def residues(self) -> dict[str, int]:
        """The number of residue classes of each loop that a stride must divide: the mask is the same within a class.

        Empty if a pad is known only at the call, because the pad decides which class meets the stride.

        ``e % s == 0`` does not change when a variable with the coefficient ``c`` in ``e`` moves by ``s / gcd(s, c)``.
        """
        classes: dict[str, int] = {}
        for part in () if self.sizes else parts_of(self.a.mask):
            for atom, _ in part.arg.terms if isinstance(part, Eq0) else ():
                if isinstance(atom, Mod):
                    for v, c in atom.num.terms:
                        if isinstance(v, Var) and (m := atom.den // gcd(atom.den, c)) > 1:
                            classes[v.name] = lcm(m, classes.get(v.name, 1))
        return classes

    @cached_property
    def present_by_class(self) -> bool:
        """Whether all elements of A exist that a tap meets by its stride: no pixel reads padding.

        Other conditions are monotonic in a pixel, so they hold if they hold at the first and at the last pixel of each
        residue class. Strides so long that too many classes would have to be tested count as ones that meet padding.
        """
        parts, sizes, classes = parts_of(self.a.mask), self.extents, self.residues
        strides = [part for part in parts if isinstance(part, Eq0)]
        pixels = {d.name for d in self.of("m") if d.axis}
        for part in parts:
            if is_true(part) or part in strides:
                continue
            names = sorted(v.name for v in variables_of(part))
            if self.sizes or not {*names} <= sizes.keys():
                return False
            ends = [_ends(sizes[n], classes.get(n, 1)) if n in pixels else range(sizes[n]) for n in names]
            if prod(map(len, ends)) > MAX_TESTED:
                return False
            for values in product(*ends):
                at = dict(zip(map(Var, names), values))
                met = (x for x in strides if variables_of(x) <= at.keys())
                if not holds(part, at) and all(holds(x, at) for x in met):
                    return False
        return True

    def of(self, *kinds: str) -> tuple[Dim, ...]:
        """Return the dims in these roles."""
        found = self._by_kind.get(kinds)
        if found is None:
            found = self._by_kind[kinds] = tuple(d for d in self.dims if d.kind in kinds)
        return found

    @cached_property
    def _by_kind(self) -> dict[tuple[str, ...], tuple[Dim, ...]]:
        """The dims that `of` has returned, by their kinds."""
        return {}


def _ends(size: int, classes: int) -> tuple[int, ...]:
    """Return the first and the last iteration of each residue class of a loop."""
    return tuple(sorted({*range(min(size, classes)), *range(max(size - classes, 0), size)}))


def view_steps(view: View) -> Mapping[Index, int]:
    """Return the elements by which each variable moves a view."""
    return view._steps


def steps_evenly(steps: Mapping[Index, int], dims: Sequence[str], sizes: Mapping[str, int]) -> bool:
    """Return whether ``dims`` of these ``sizes``, outermost first, step through memory as one dim: by ``steps`` each of
    them continues where the one inside it ends.
    """
    *outer, last = dims
    step = steps.get(Var(last), 0)
    for dim, inner in zip(reversed(outer), reversed(dims[1:])):
        step *= sizes[inner]
        if sizes[dim] > 1 and steps.get(Var(dim), 0) != step:
            return False
    return True
