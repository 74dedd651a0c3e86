"""Nests of gradients of the weights on fragments, whose factors are packed in each call.

The terms of a fragment are pixels. They come from one row, or from fused rows; the last instruction is padded with
zeros. A factor through which fused rows do not step evenly, or some of whose pixels are absent, is unfolded before it
is packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convsmith.ir.index import is_true
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops, fused_chain
from convsmith.schedule.packed_operands import unfoldable
from convsmith.schedule.product_shape import ProductShape
from convsmith.statement.statement import Statement, View, steps_evenly, view_steps
from convsmith.tune.costs.model import Model
from convsmith.tune.nests import Nests


class GradientNests(Nests):
    """The nests whose terms are the innermost reduction loops, ``pixels_joined``.

    One side of a fragment are channels of the result, the other side channels of the source, or the fused loops
    ``rows_joined``, taps of a row and channels. Lanes lie along either side.
    """

    def __init__(
        self, model: Model, joined: tuple[str, ...], rows_joined: tuple[str, ...], unfolded: tuple[str, ...]
    ) -> None:
        super().__init__(model)
        self.pixels_joined, self.rows_joined, self.unfolded = joined, rows_joined, unfolded

    def lane_choices(self) -> Iterator[tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]]:
        """Yield the loops along channels as lanes, with the fusions of pixels and of rows."""
        fused = (*self.chain(self.pixels_joined), *self.chain(self.rows_joined))
        yield self.n, fused, self.pixels_joined
        yield fused_chain(self.rows_joined)[0], fused, self.pixels_joined

    def realisation(self, lane: str, joined: bool, loops: Loops, tile: dict[str, int]) -> str:
        """Return how the source is read: its packed or unfolded form has zeros beyond the borders."""
        return "peel" if is_true(self.st.a.mask) or self.st.a.name in self.unfolded else "pad_copy"

    def packed(self, lane: str) -> tuple[str, ...]:
        """Return both factors."""
        return self.st.a.name, self.st.b.name

    def order(self, loops: Loops, lane: str, threads: int = 1) -> tuple[str, ...]:
        """Return the order of loops: taps of a row outermost, because each reads its own elements, and taps that share
        rows innermost; the other loops are in between, in the result's order in memory.
        """
        names = [n for n in loops.extents if loops.kinds[n] != "k"]
        taps = [d.name for d in self.st.of("m") if d.axis]
        return tuple(sorted(names, key=lambda n: (n in taps[:-1], n not in taps, -self.model.stride_of(n))))

    def complete(self, loops: Loops, config: Config) -> Config:
        """Return ``config`` unchanged, because threads share the loops over the result."""
        return config


def gradient_nests(problem: Problem, st: Statement, target: Machine) -> list[GradientNests]:
    """Return the nests of a gradient of the weights on fragments: terms along a row, and along joined rows, and the
    rows of fragments from channels, and from taps with them.
    """
    if len(st.factors) < 2 or st.constant or dtype(st.a.dtype).kind != "float":
        return []
    types = st.a.factor, st.b.factor, st.acc
    rows = target.fragment_rows(*types) or tuple(row for row in target.vector_rows(*types) if row.terms > 1)
    if not rows:
        return []
    sizes = st.extents
    along = [d.name for d in st.of("m")][-2:]
    found = []
    for first in range(len(st.reduce)):
        joined = st.reduce[first:]
        terms = prod(sizes[name] for name in joined)
        row = min(rows, key=lambda row: (-(-terms // row.terms), row.terms))
        # A single row with borders has a padded copy.
        uneven = (v.name for v in unfoldable(st) if len(joined) > 1 and not _is_even(v, joined, sizes))
        unfolded = tuple(uneven) if row.rows > 1 else ()
        if len(joined) > 1 and not is_true(st.a.mask) and st.a.name not in unfolded:
            continue
        # Fragments have many rows to fill; joining taps and channels makes packing slower.
        for of_rows in (along[-1:], along) if row.rows > 1 and sizes[along[0]] > 1 else (along[-1:],):
            # With few rows, most of each fragment would be empty.
            if terms > 1 and prod(sizes[name] for name in of_rows) >= row.rows // 2:
                model = Model(problem, st, target, ProductShape.of_row(row))
                found.append(GradientNests(model, joined, tuple(of_rows), unfolded))
    return found


def _is_even(view: View, joined: tuple[str, ...], sizes: dict[str, int]) -> bool:
    """Return whether the ``joined`` loops step evenly through all elements of an operand, none of which is absent."""
    return is_true(view.mask) and steps_evenly(view_steps(view), joined, sizes)
