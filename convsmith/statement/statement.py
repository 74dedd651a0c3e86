"""Views: a virtual tensor over the dims of a loop nest, mapped into a tensor that exists.

A view says, for each point of the nest, which element of the tensor is meant (``coords``, one index for each
tensor dim) and whether it is there at all (``masks``, one condition for each tensor dim).  Where a mask is false
the term is absent: nothing is loaded, a store is dropped.  A view is the only place that knows what a convolution
is; a matrix product is the view without masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Index, conj
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
    requantised before they are multiplied, s8 ones as those 128 more.
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


@dataclass(frozen=True)
class Statement:
    """``c = finish(sum over k of a * b)`` over the dims of the nest, in the order of the naive nest.

    ``axes`` are those of the window that A is read through, outermost first; a matrix product has none.
    ``reduce`` names the reduction loops in the order in which they read memory best, outermost first; ``acc`` is the
    type of the sums; ``shifted`` says that zero points are taken off the factors; else ``sums`` of entries of A and B
    at a point of the result are what they are taken off by; the masks are those of ``a``.
    Of a statement in parts, each sum is a part of one of the statement ``parts_of``, which finishes it.
    """

    dims: tuple[Dim, ...]
    a: View
    b: View
    c: View
    reduce: tuple[str, ...]
    acc: str
    shifted: bool = False
    sums: tuple[View, ...] = ()
    axes: tuple[Axis, ...] = ()
    parts_of: Statement | None = None

    @property
    def whole(self) -> Statement:
        """The statement whose result is finished."""
        return self if self.parts_of is None else self.parts_of

    @property
    def n(self) -> str:
        """The dim of channels of N."""
        return self.of("n")[-1].name

    @property
    def constant(self) -> bool:
        """Whether B are weights, which stay the same from call to call."""
        return self.b.name == "wei"

    def of(self, *kinds: str) -> tuple[Dim, ...]:
        """The dims in these roles."""
        return tuple(d for d in self.dims if d.kind in kinds)


def view_steps(view: View) -> dict[Index, int]:
    """Elements that each variable moves a view by."""
    buffer = Buffer(view.name, dtype(view.dtype), view.layout.shape, view.layout.blocks)
    return dict(offset(buffer, view.coords).terms)
