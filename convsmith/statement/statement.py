"""Views: a virtual tensor over the dims of a loop nest, mapped into a tensor that exists.

A view says, for each point of the nest, which element of the tensor is meant (``coords``, one index for each
tensor dim) and whether it is there at all (``masks``, one condition for each tensor dim).  Where a mask is false
the term is absent: nothing is loaded, a store is dropped.  A view is the only place that knows what a convolution
is; a matrix product is the view without masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm
from typing import NamedTuple

from convsmith.diag.forking import cached_property
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Eq0, Index, Mod, Var, conj, parts_of
from convsmith.ir.types import dtype
from convsmith.layout.indirection import Axis
from convsmith.layout.layout import Layout
from convsmith.passes.flatten import offset

KINDS = ("batch", "n", "m", "k")
"""Roles of dims, in the order in which schedules nest them, outermost first."""

FLIPPED = {"u8": "s8", "s8": "u8"}
"""What bytes become when their top bit is turned over."""


@dataclass(frozen=True)
class Dim:
    """A dim of the nest: ``kind`` is its role in ``C[m, n] += A[m, k] * B[k, n]`` (``batch`` is in all three).

    ``axis`` is the letter of the spatial axis that the dim runs along, or nothing.
    """

    name: str
    size: int
    kind: str
    axis: str = ""


class Fewer(NamedTuple):
    """Entries of fewer bits than 8, of type ``factor``; ``rest`` is the array of what is added to each, or empty."""

    bits: int
    factor: str
    rest: str


@dataclass(frozen=True)
class View:
    """``tensor[coords]`` where all of ``masks`` hold; ``dtype`` is the tensor's.

    Of a ``flipped`` view, what is multiplied has the top bit turned over: u8 becomes s8 and 128 less, s8 the reverse.
    Of a ``filled`` one, an element that is not there reads as the tensor's zero point, and its term is a term like any.
    A ``packed`` one is read in the order of the nest, from memory of its own. Entries of one with ``fewer`` bits are
    requantised before they are multiplied, s8 ones as those 128 more. A ``constant`` one stays the same in all calls.
    """

    name: str
    dtype: str
    layout: Layout
    coords: tuple[Index, ...]
    masks: tuple[Cond, ...]
    flipped: bool = False
    filled: bool = False
    packed: bool = False
    fewer: Fewer | None = None
    constant: bool = False

    @property
    def factor(self) -> str:
        """The type of what is multiplied."""
        if self.fewer is not None:
            return self.fewer.factor
        return FLIPPED[self.dtype] if self.flipped else self.dtype

    @property
    def mask(self) -> Cond:
        """All masks at once."""
        return conj(self.masks)


WHEN = ("packing", "before", "loop", "main", "after")
"""When a statement runs: while an operand is packed, or in each call, as the main statement, before or after it, or at
a loop of it."""

FINISHES = ("epilogue", "sum", "centred")
"""The last step of a statement: the problem's epilogue, a conversion to the result's type, or that after the source's
zero point is subtracted once for each term."""


@dataclass(frozen=True)
class Statement:
    """``c = finish(sum over k of the product of factors)`` over the dims of the nest, in the order of the naive nest.

    ``factors`` are the views A and B, or A alone where the statement only adds up entries. The masks are those of A.
    ``axes`` are the axes of the window that A is read through, outermost first; a matrix product has none. ``reduce``
    names the reduction loops in the order in which they read memory best, outermost first. ``acc`` is the data type of
    the sums. Where ``shifted`` is set, zero points are subtracted from the factors. Else ``sums`` are the views of the
    sums of entries of A and B by which the epilogue subtracts them. A statement with ``whole_`` computes a part of each
    sum of that statement, or finishes the parts.
    """

    dims: tuple[Dim, ...]
    factors: tuple[View, ...]
    c: View
    reduce: tuple[str, ...]
    acc: str
    shifted: bool = False
    sums: tuple[View, ...] = ()
    axes: tuple[Axis, ...] = ()
    name: str = "conv"
    when: str = "main"
    finish: str = "epilogue"
    whole_: Statement | None = None

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
        return self if self.whole_ is None else self.whole_

    @property
    def n(self) -> str:
        """The dim of channels of N."""
        return self.of("n")[-1].name

    @property
    def constant(self) -> bool:
        """Whether B stays the same from call to call."""
        return self.b.constant

    @cached_property
    def residues(self) -> dict[str, int]:
        """The number of residue classes of each loop that a stride must divide: the mask is the same within a class.

        ``e % s == 0`` does not change when a variable with the coefficient ``c`` in ``e`` moves by ``s / gcd(s, c)``.
        """
        found: dict[str, int] = {}
        for part in parts_of(self.a.mask):
            for atom, _ in part.arg.terms if isinstance(part, Eq0) else ():
                if isinstance(atom, Mod):
                    for v, c in atom.num.terms:
                        if isinstance(v, Var) and (m := atom.den // gcd(atom.den, c)) > 1:
                            found[v.name] = lcm(m, found.get(v.name, 1))
        return found

    def of(self, *kinds: str) -> tuple[Dim, ...]:
        """The dims in these roles."""
        return tuple(d for d in self.dims if d.kind in kinds)


def view_steps(view: View) -> dict[Index, int]:
    """Elements that each variable moves a view by."""
    buffer = Buffer(view.name, dtype(view.dtype), view.layout.shape, view.layout.blocks)
    return dict(offset(buffer, view.coords).terms)
