"""Nests whose source is packed in each call, in the terms that an instruction adds up, with pixels along the lanes.

In channels first, the terms of an instruction lie an image apart, and channels as lanes would scatter the result. A
source that is read once is packed in pairs or fours of channels, once for all channels of the result: in front of the
nest, or beside the tiles that read it.
"""

from __future__ import annotations

from collections.abc import Iterator

from convsmith.ir.index import Var, is_true
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.loops import Loops
from convsmith.schedule.product_shape import ProductShape, fragment_rows
from convsmith.statement.statement import Statement
from convsmith.tune.costs.model import Model
from convsmith.tune.nests import Nests


class PackedSourceNests(Nests):
    """The nests with lanes along pixels of a packed source."""

    packs_source = True

    def lane_choices(self) -> Iterator[tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]]:
        """Yield the innermost loop over pixels, with the fusions that make it long."""
        yield self.innermost(self.pixels()), self.fusions(), ()

    def realisation(self, lane: str, joined: bool, loops: Loops, tile: dict[str, int]) -> str:
        """Return how the source is read: as it lies in memory, by packing."""
        return "peel"

    def packed(self, lane: str) -> tuple[str, ...]:
        """Return both factors."""
        return self.st.a.name, self.st.b.name


def packed_source_nests(problem: Problem, st: Statement, target: Machine) -> list[PackedSourceNests]:
    """Return the nests of a packed source, if its channels lie apart and each of its elements is read once."""
    units = [unit for unit in ProductShape.choices(st, target) if unit.dot and unit.rows == 1][:1]
    rows = [row for row in fragment_rows(st, target, turned=True) if not row.widens]
    if rows and not st.shifted and st.a.factor == st.a.dtype:
        channels = next(d.size for d in st.dims if d.name == st.reduce[-1])
        row = min(rows, key=lambda row: (-(-channels // row.terms), row.terms))
        units.append(ProductShape.of_row(row))
    if not units or not st.constant or not is_true(st.a.mask) or st.a.requantised is not None:
        return []
    models = [Model(problem, st, target, unit) for unit in units]
    model = models[0]
    if not model.reads_once() or model.src.get(Var(model.k)) == 1 or model.classes or model.phases:
        return []
    return [PackedSourceNests(model) for model in models]
