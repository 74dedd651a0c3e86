"""Nests of kernels that copy the windows of pixels, so that their terms fill instructions on fragments.

Either the taps and channels of one row of a window become one loop, and the copy holds the windows of some rows of the
source; or all taps do, and the copy holds the windows of the pixels that pass at a time. The latter lets pixels of
several rows share a fragment, where a row fills at most half of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convsmith.ir.index import Var
from convsmith.ir.instruction import SCALARS, Instruction
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.schedule.product_shape import ProductShape
from convsmith.statement.statement import Statement, view_steps
from convsmith.tune.copied_rows import most_rows
from convsmith.tune.costs.copies import window_bytes
from convsmith.tune.costs.model import Model
from convsmith.tune.nests import Nests

PART = 4
"""Ratio of the second-level cache to the part of it that holds the windows of a block of rows."""


class WindowNests(Nests):
    """The nests that fuse the reduction loops ``taps``, which are the innermost ones, in copies of windows."""

    def __init__(self, model: Model, taps: tuple[str, ...]) -> None:
        super().__init__(model)
        self.taps = taps
        self.whole_windows = taps == model.st.reduce
        self.row = self.st.of("m")[-1].name

    def fusions(self) -> tuple[tuple[str, str], ...]:
        """Return the loop over rows and that along a row to fuse, where whole windows are copied and a row fills no
        fragment.
        """
        rows = [d.name for d in self.st.of("m") if d.sort != "images"][:-1]
        if not rows or not self.whole_windows or self.sizes[self.row] >= self.unit.rows or self.sizes[rows[-1]] < 2:
            return ()
        self.model.fuse(rows[-1], self.row)
        return ((rows[-1], self.row),)

    def lane_choices(self) -> Iterator[tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]]:
        """Yield the loop along channels as lanes, with the fusions of pixels and of taps."""
        yield self.n, (*self.fusions(), *self.chain(self.taps)), self.taps

    def realisation(self, lane: str, joined: bool, loops: Loops, tile: dict[str, int]) -> str:
        """Return how the source is read."""
        return "window_copy"

    def rows_of_fragments(self, loops: Loops) -> str:
        """Return the innermost loop over pixels, because windows are copied for each row or image."""
        return loops.of("m")[-1]

    def order(self, loops: Loops, lane: str, threads: int = 1) -> tuple[str, ...]:
        """Return the order of loops: loops whose iterations copy windows are outermost; inside them, pixels of several
        rows as the weights permit.
        """
        names = [n for n in loops.extents if loops.kinds[n] != "k"]
        fused = loops.of("m")[-1] if self.fusions() else ""
        around = [n for n in names if loops.kinds[n] != "n" and n != fused]
        within = super().order(loops, lane, threads) if fused else names
        return (*around, *(n for n in within if n not in around))

    def complete(self, loops: Loops, config: Config) -> Config:
        """Return ``config`` with tiles of rows, so that rows are copied once for most of the taps that read them."""
        if self.whole_windows or len(loops.of("m")) < 2 or loops.kinds[config.order[-3]] != "m":
            return config
        rows = config.order[-3]
        most = most_rows(self.model, rows, window_bytes(self.model, self.taps), PART)
        return config.changed(cache=((rows, most),)) if 1 < most < self.sizes[rows] else config


def window_nests(problem: Problem, st: Statement, target: Machine) -> list[WindowNests]:
    """Return the nests of kernels that copy windows, where channels alone do not fill fragments, or rows do not, or
    where they do not fill the terms of an instruction whose sums are in scalar registers.
    """
    rows = _rows(st, target) if len(st.factors) > 1 else ()
    steps, sizes = view_steps(st.a), st.extents
    if not rows or st.residues or len(st.reduce) < 2:
        return []
    adjacent = steps.get(Var(st.reduce[-1])) == 1
    short = sizes[st.of("m")[-1].name] < rows[0].rows // 2 + 1
    channels, least = sizes[st.reduce[-1]], min(row.terms for row in rows)
    few = channels % rows[0].terms != 0 if adjacent else channels < least
    joined = [st.reduce[-2:]] * (few and len(st.reduce) > 2) + [st.reduce] * (few or short)
    found = []
    for taps in joined:
        terms = prod(sizes[n] for n in taps)
        if terms <= rows[0].group:
            continue  # with one group there is no loop over groups to be padded
        row = min(rows, key=lambda row: (-(-terms // row.terms), row.terms))
        model = Model(problem, st, target, ProductShape.of_row(row))
        if model.images or not few:
            found.append(WindowNests(model, taps))
    return found


def _rows(st: Statement, target: Machine) -> tuple[Instruction, ...]:
    """Return the rows whose operands hold so many terms that few channels leave most of them empty."""
    types = (st.a.factor, st.b.factor, st.acc)
    if target.fragments:
        return target.fragment_rows(*types)
    return tuple(row for row in target.vector_rows(*types) if row.result.file == SCALARS)
