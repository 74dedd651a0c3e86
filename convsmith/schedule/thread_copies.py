"""Copies of operands for the threads of a group: in memory that they share, and in the registers of each thread."""

from __future__ import annotations

from collections.abc import Mapping

from convsmith.ir.index import is_false
from convsmith.passes.box_copy import BoxCopy
from convsmith.passes.hold_fragments import hold_fragments
from convsmith.passes.load_ahead import load_ahead
from convsmith.passes.multiple_buffers import multiple_buffers
from convsmith.passes.preload import preload
from convsmith.passes.set_layout import set_layout
from convsmith.passes.simplify import simplify
from convsmith.passes.speculate import speculate
from convsmith.schedule.config import Config
from convsmith.schedule.copy_layouts import copy_layout, innermost
from convsmith.schedule.grid import fuse_grid
from convsmith.schedule.group_limits import as_in_memory, copies_in_parts, copy_width, loaded_vector, word_of
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.loops import Loop
from convsmith.schedule.order import TileLoops
from convsmith.schedule.schedule import Copy, Schedule
from convsmith.statement.statement import Statement, View

ROUNDS = "r"
"""Name of the loop over rounds, each of which uses every slot of the copies once."""


def share_operands(s: Schedule, k: KernelPlan, tile: TileLoops) -> tuple[Loop | None, dict[str, Copy]]:
    """Copy the elements that each step of the reduction reads of operands to shared memory; return the loop over steps,
    and the copies by operand, which all threads fill.
    """
    st, loops, config, nest, device = k.columns, k.loops, k.config, k.nest, k.machine.device
    if tile.thread is None or device is None:
        return None, {}
    place = nest.steps[-1] if config.buffers == 1 else s.fuse(nest.steps, "s")
    views = [v for v in st.factors if v.name in config.staged("shared") and not is_false(st.a.mask)]
    masked = config.realise == "mask" or _reads_slack(st, config)
    if views:  # parts of fused loops move a coordinate by less once divisions are simplified
        s.run(simplify)
    copies: dict[str, Copy] = {}
    for view in views:
        last = innermost(st, view, nest, config)
        how = BoxCopy(last, masked=masked or _spreads(st, view))
        copies[view.name] = s.stage(view.array, place, len(view.coords), how, "shared")
        if (layout := copy_layout(st, view, loops, config, nest)) is not None:
            s.run(set_layout, copies[view.name], layout)
    for view in views:
        copy, width = copies[view.name], copy_width(st, view, loops, config, nest, device.access)
        in_memory = tuple(copy.loops[d] for d in as_in_memory(view))
        word = word_of(st, view, loops, config, nest) if width > 1 else None
        rows = None if word is None else (copy.loops[word[0]], word[1])
        in_parts = copies_in_parts(st, view, loops, config, nest, device)
        copies[view.name] = s.distribute_copy(copy, nest.size, tile.thread, in_memory, width, rows, in_parts)
    return place, copies


def load_registers(
    s: Schedule, k: KernelPlan, tile: TileLoops, place: Loop | None, shared: Mapping[str, Copy]
) -> list[tuple[Copy, Loop]]:  # fmt: skip
    """Load what a step reads into registers, and fill the ``shared`` copies of the loop ``place`` over steps ahead;
    return the copies in registers that are loaded as vectors, each with the loop along which it is.
    """
    config, nest = k.config, k.nest
    if place is None:
        return []
    s.run(speculate)
    loaded: list[tuple[Copy, Loop]] = []
    if nest.warp is not None and tile.products is not None:
        s.run(
            hold_fragments, nest.warp.row, tile.fragments, tile.products.inner, tile.parts, k.statement.strict,
        )
    elif nest.accumulators:
        loaded = _load_operands(s, k, shared)
    if config.staged("preload"):
        s.run(preload, config.staged("preload"), "register" if nest.warp is None else "fragment")
    if k.machine.device is not None:
        fuse_grid(s, nest.grid, k.machine.device.grid)
    if config.buffers > 1 and shared:
        ahead = config.buffers - 1 if config.copies == "async" else 1
        rounds = (ROUNDS,) if config.rounds else ()
        s.run(multiple_buffers, place, tuple(shared.values()), config.buffers, ahead, *rounds)
    if config.load_ahead:
        s.run(load_ahead)
    s.run(simplify)
    return loaded


def _load_operands(s: Schedule, k: KernelPlan, shared: Mapping[str, Copy]) -> list[tuple[Copy, Loop]]:
    """Load the elements that a thread reads into registers, once for all of its sums; return the copies that are loaded
    as vectors, each with the loop along which it is.
    """
    st, nest = k.columns, k.nest
    vectors = {v: loaded_vector(st, v, k.loops, k.config, nest) for v in st.factors}
    loaded: list[tuple[Copy, Loop]] = []
    for v, vector in sorted(vectors.items(), key=lambda x: x[1] not in nest.terms):
        terms = [x for x in nest.terms if x is vector]
        array = shared[v.name].name if v.name in shared else v.array
        copy = s.load_once(array, (*terms, *nest.accumulators), vector)
        loaded += [(copy, vector)] if vector is not None else []
    return loaded


def _spreads(st: Statement, view: View) -> bool:
    """Return whether zeros in a copy of the weights may not stand for absent terms: an infinity of the other factor, an
    element that the term does not read, would spoil the sum. Of weights that are not finite, another kernel is run.
    """
    return st.strict and st.constant and view is st.b


def _reads_slack(st: Statement, config: Config) -> bool:
    """Return whether a step of the reduction may read the padding of blocked layouts, whose contents are undefined."""
    uneven = any(d.size % config.group_size(d.name) or d.name in st.residues for d in st.of("k"))
    return uneven and any(v.layout.padded_shape != v.layout.shape for v in st.factors)
