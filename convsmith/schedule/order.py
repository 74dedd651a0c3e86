"""The rewrites that order the loops of a nest and make its register tile."""

from __future__ import annotations

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.passes.block_reduction import block_reduction
from convsmith.passes.fission import fission
from convsmith.passes.reorder import INNERMOST, reorder
from convsmith.passes.rfactor import rfactor
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loop
from convsmith.schedule.nest import Nest
from convsmith.schedule.schedule import Schedule


def is_drained(config: Config, nest: Nest) -> bool:
    """Return whether accumulators are stored to memory, from which separate loops write the result."""
    return bool(nest.rows) or (config.spill_sums and bool(nest.accumulators) and not nest.along_k)


def tile_registers(s: Schedule, config: Config, nest: Nest, sums: Buffer | None = None) -> dict[Loop, Loop]:
    """Form the register tile of an ordered nest by fission and sinking, and return, for each loop over drained
    accumulators, the loop that writes the result.

    ``sums``, if given, is the parameter that keeps partial sums between cache tiles of a reduction loop, in the order
    of the iterations of the lane loop.
    """
    written: dict[Loop, Loop] = {}
    if nest.accumulators:
        s.run(fission, nest.accumulators, nest.widths)
    s.run(reorder, nest.register, INNERMOST)
    s.run(reorder, (*nest.reduce, *nest.terms))
    if nest.terms:
        s.run(reorder, nest.term_order)
    if nest.taps_of_rows:
        s.run(reorder, nest.taps_of_rows)
    if nest.along_k:
        s.run(rfactor, nest.lane, nest.lanes)
    elif is_drained(config, nest):
        written = s.drain((*nest.pixels, *nest.vectors, *nest.rows))
        if nest.rows and nest.vectors:
            # The vectors of a pixel are adjacent in memory.
            s.run(reorder, tuple(written[x] for x in (*nest.rows, *nest.vectors)))
    if nest.depth is not None and nest.within:
        place = (_position(nest, config.lane),) if sums is not None else ()
        s.run(block_reduction, nest.depth, nest.within, sums, place)
    return written


def _position(nest: Nest, of: str) -> Index:
    """Return the iteration of the loop ``of`` of the statement as an index over the loops of the nest."""
    return sum((Var(x.name) * x.tile for x in (*nest.around, *nest.register) if x.of == of), as_index(0))
