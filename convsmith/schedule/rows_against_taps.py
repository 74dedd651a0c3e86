"""Rows of a register tile that run against their taps."""

from __future__ import annotations

from convsmith.ir.index import Var
from convsmith.schedule.loops import Loop
from convsmith.schedule.nest import Nest
from convsmith.statement.statement import Statement, view_steps


def rows_against_taps(st: Statement, nest: Nest) -> list[tuple[Loop, Loop]]:
    """Return the loops over the rows of a register tile, each with its loop over taps, where lanes are pixels and the
    next tap is that of the row before, as in a deconvolution. LLVM's scheduler keeps what the next row reads in
    registers if the rows run the other way.
    """
    steps, axes = view_steps(st.a), {d.name: d.axis for d in st.dims}
    rows = nest.taps_of_rows and [x for x in nest.vectors if x.role == "m" and x.of != nest.lane.of]
    taps = {axes[x.of]: x for x in nest.at("register", k=True) if axes.get(x.of)}
    pairs = [(x, taps[axes[x.of]]) for x in rows if axes.get(x.of) in taps]
    return [(x, tap) for x, tap in pairs if steps.get(Var(x.of), 0) * steps.get(Var(tap.of), 0) < 0]
