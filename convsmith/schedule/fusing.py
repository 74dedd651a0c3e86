"""The loops of a statement before they are tiled: cut into residue classes and phases, and fused."""

from __future__ import annotations

from convsmith.ir.index import Var
from convsmith.passes.cut import cut
from convsmith.passes.fuse import fuse
from convsmith.passes.reorder import reorder
from convsmith.passes.simplify import simplify
from convsmith.passes.solve import solve
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loop, fused_name, loop_over, with_phases
from convsmith.schedule.pointers import indirect
from convsmith.schedule.schedule import Schedule
from convsmith.statement.phases import Phase, phases
from convsmith.statement.statement import KINDS, Statement, view_steps


def fuse_dims(s: Schedule, st: Statement, config: Config) -> list[Loop]:
    """Split the loops of ``st`` into residue classes, and fuse loops as ``config`` says; return the loops over classes.
    """
    bring_together(s, st, config)
    classes = cut_classes(s, st, config)
    fuse_pairs(s, config)
    return classes


def bring_together(s: Schedule, st: Statement, config: Config) -> None:
    """Reorder the loops of ``st`` so that loops that ``config`` fuses are adjacent."""
    around = sorted((d for d in st.dims if d.kind != "k"), key=lambda d: KINDS.index(d.kind))
    if len(around) > 1 and config.fuse:
        s.run(reorder, tuple(d.name for d in around))
    if sum(n in pair for pair in config.fuse for n in st.reduce) > 1:
        s.run(reorder, st.reduce)


def fuse_pairs(s: Schedule, config: Config) -> None:
    """Fuse the loops that ``config`` fuses."""
    for a, b in config.fuse:
        s.run(fuse, a, b, fused_name(a, b))
    s.run(simplify)


def cut_classes(s: Schedule, st: Statement, config: Config) -> list[Loop]:
    """Split loops that a stride must divide into residue classes; return the loops over classes that are not phases.

    Phases are moved outside, in runs of equal ones.
    """
    classes = split_classes(s, st, config)
    by_phase = {loop: phase for loop, phase in classes.items() if phase is not None}
    if by_phase:
        columns = with_phases(st, config)
        order = [d.name for d in sorted(columns.dims, key=lambda d: KINDS.index(d.kind)) if d.kind != "k"]
        for loop, phase in by_phase.items():
            s.run(reorder, (loop, *(n for n in order if n != loop.name)))
            s.run(cut, loop, phase.cuts)
        s.run(simplify)
        s.run(reorder, tuple(order))
    return [loop for loop, phase in classes.items() if phase is None]


def split_classes(s: Schedule, st: Statement, config: Config) -> dict[Loop, Phase | None]:
    """Run each loop that a stride must divide once per residue class, and return the loops over classes, with the phase
    for loops that belong to a phase of ``config``. An element of the result reads only one class of a reduction loop.
    """
    if not st.residues:
        return {}
    dims, found = {d.name: d for d in st.dims}, phases(st, sparse=True)
    classes: dict[Loop, Phase | None] = {}
    solved: list[Loop] = []
    for n, modulus in st.residues.items():
        dim, phase = dims[n], found[n] if n in config.phases and n in found else None
        loop = s.residue(loop_over(dim), modulus, phase.name if phase else "")
        if dim.kind == "k" and not indirect(st, config):
            solved.append(loop)
        else:
            classes[loop] = phase
    for loop in solved:
        s.run(solve, loop)
    return classes


def writes_lines_by_class(st: Statement) -> bool:
    """Return whether adjacent elements of the result belong to different residue classes, each of which writes a part
    of every cache line.
    """
    steps = view_steps(st.c)
    return any(steps.get(Var(n)) == 1 for n in st.residues)
