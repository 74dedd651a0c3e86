"""The rewrites that order the loops of a nest, bind them to groups of threads, and form the tile of its sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from convsmith.ir.index import Index, Var, as_index
from convsmith.passes.bind import bind
from convsmith.passes.block_reduction import block_reduction
from convsmith.passes.fission import fission
from convsmith.passes.reorder import INNERMOST, reorder
from convsmith.passes.rfactor import rfactor
from convsmith.passes.rotate import rotate
from convsmith.passes.stage_results import stage_results
from convsmith.passes.start_sums import start_sums
from convsmith.schedule.config import Config
from convsmith.schedule.engine_copies import bring_tiles
from convsmith.schedule.group_fragments import FragmentLoops, ProductLoops, tile_products, tile_sums
from convsmith.schedule.hardware import HardwareTile, group_tile
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.library.warp_groups import warp_groups
from convsmith.schedule.loops import Loop
from convsmith.schedule.nest import Nest
from convsmith.schedule.schedule import Copy, Schedule
from convsmith.schedule.transposed_results import transposed_along


class TileLoops(NamedTuple):
    """The loops that forming the tile of sums has made: the loops that write the result of drained accumulators, by
    the loop over accumulators; the loop over the threads of a group; and the loops over the fragments of a warp, the
    first ``parts`` of which run over parts of its columns, and over their products.
    """

    written: Mapping[Loop, Loop]
    thread: Loop | None = None
    fragments: tuple[Loop, ...] = ()
    products: ProductLoops | None = None
    parts: int = 0


def order_loops(s: Schedule, nest: Nest) -> None:
    """Put the loops over the result into the order of ``nest``."""
    s.run(reorder, (*nest.around, *nest.threads, *nest.accumulators))


def is_drained(config: Config, nest: Nest) -> bool:
    """Return whether accumulators are stored to memory, from which separate loops write the result."""
    return bool(nest.rows) or (config.spill_sums and bool(nest.accumulators) and not nest.along_k)


def starts_sums(k: KernelPlan) -> bool:
    """Return whether sums start at their zero points: vectors in registers that are not split along the reduction."""
    nest = k.nest
    return bool(k.statement.sums) and nest.has_lanes and not (nest.rows or nest.along_k or nest.depth)


def tile_registers(s: Schedule, k: KernelPlan) -> TileLoops:
    """Form the tile of sums of an ordered nest: each statement of the nest gets its own loops over the sums, within the
    loops over the reduction. Groups of threads share the loops of a grid.
    """
    nest = k.nest
    if k.brought is not None:
        assert k.machine.device is not None
        return _bring_operands(s, k.brought, k.config.buffers, k.machine.device.grid, k.config.staged("resident"))
    bind_groups(s, nest)
    thread = s.fuse(nest.threads, "t") if nest.threads else None
    own = () if thread is None else (thread,)
    sums = nest.accumulators
    fragments: FragmentLoops | None = None
    if nest.warp is not None:
        fragments = tile_sums(s, nest.warp)
        sums = fragments.loops
    if own or sums:
        if starts_sums(k):
            s.run(start_sums, sums)
        s.run(fission, (*own, *sums), nest.widths)
    if nest.has_lanes:
        s.run(reorder, nest.register, INNERMOST)
    s.run(reorder, (*nest.reduce, *own, *nest.terms, *(sums if own else ())))
    if nest.has_lanes:
        return TileLoops(_keep_sums(s, k))
    if nest.warp is None or fragments is None:
        return TileLoops({}, thread)
    return TileLoops({}, thread, fragments.outer, tile_products(s, nest.warp, fragments), len(fragments.parts))


def bind_groups(s: Schedule, nest: Nest) -> None:
    """Bind the loops of an ordered nest over groups and over their threads, if there are any. Groups that sum parts of
    the reduction add them to the result.
    """
    if nest.parts:
        s.run(reorder, (*nest.parts, *nest.steps, *nest.terms))
        s.add_atomically(nest.parts, (*nest.threads, *nest.accumulators))
    if nest.threads:
        s.run(bind, nest.grid, "grid")
        s.run(bind, nest.threads, "group" if nest.warp is None else "warp")


def _bring_operands(
    s: Schedule, made: HardwareTile, slots: int, most: Sequence[int], resident: Sequence[str]
) -> TileLoops:  # fmt: skip
    """Form the tile of groups of warps whose operands a copy engine brings, to as many ``slots``; ``most`` are the
    largest numbers of groups along the dims of a launch. Operands that are ``resident`` are brought once.
    """
    tiled, kept = group_tile(made.nest), list[Copy]()

    def bring(loop: Loop) -> None:
        copies = bring_tiles(s, loop, made.copies)
        kept.extend(copy for copy, x in zip(copies, made.copies) if x.mapped.name in resident)
        if made.stored is not None:
            s.run(stage_results, made.stored)
        for over_phases, longest in made.uneven.items():  # tiles with more steps come first
            s.run(rotate, over_phases, longest)

    warp_groups(s, tiled, bring, slots, made.residing, bool(made.uneven), most, kept)
    return TileLoops({}, None, (tiled.fragments,), ProductLoops(tiled.steps, tiled.inner, made.row))


def _keep_sums(s: Schedule, k: KernelPlan) -> dict[Loop, Loop]:
    """Order the terms of a register tile, and keep its sums during the reduction: in registers, or in memory between
    cache tiles of a reduction loop. Return, for each loop over drained accumulators, the loop that writes the result.

    The array ``sums`` of a plan keeps them in the order of the iterations of the lane loop.
    """
    config, nest = k.config, k.nest
    written: dict[Loop, Loop] = {}
    if nest.terms:
        s.run(reorder, nest.term_order)
    if nest.taps_of_rows:
        s.run(reorder, nest.taps_of_rows)
    if nest.along_k:
        s.run(rfactor, nest.lane, nest.lanes)
    elif is_drained(config, nest):
        written = s.drain((*nest.pixels, *nest.vectors, *nest.rows))
        if nest.rows and nest.vectors and not transposed_along(k, nest.rows):
            # The vectors of a row are adjacent in memory.
            columns = [x for x in nest.vectors if x.of == nest.lane.of]
            fragments = [x for x in nest.vectors if x not in columns]
            s.run(reorder, tuple(written[x] for x in (*fragments, *nest.rows, *columns)))
    if nest.depth and nest.within:
        place = (_position(nest, config.lane),) if k.sums is not None else ()
        s.run(block_reduction, nest.depth, nest.within, k.sums, place)
    return written


def _position(nest: Nest, of: str) -> Index:
    """Return the iteration of the loop ``of`` of the statement as an index over the loops of the nest."""
    return sum((Var(x.name) * x.tile for x in (*nest.around, *nest.register) if x.of == of), as_index(0))
