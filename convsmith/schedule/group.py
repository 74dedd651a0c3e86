"""The plan of one statement for a machine with groups of threads: from its naive nest to straight-line code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as with_fields
from functools import partial
from math import inf

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import is_false
from convsmith.machine.base import Machine
from convsmith.passes.bind import bind
from convsmith.passes.box_copy import BoxCopy
from convsmith.passes.buffer_layouts import LongRows, RotatedRows
from convsmith.passes.fission import fission
from convsmith.passes.gather_allocs import gather_allocs
from convsmith.passes.hold_fragments import hold_fragments
from convsmith.passes.multiple_buffers import multiple_buffers
from convsmith.passes.preload import preload
from convsmith.passes.reorder import reorder
from convsmith.passes.set_layout import set_layout
from convsmith.passes.simplify import simplify
from convsmith.passes.speculate import speculate
from convsmith.schedule.buffers import buffers
from convsmith.schedule.config import Config
from convsmith.schedule.fill import filling
from convsmith.schedule.group_fragments import FragmentLoops, ProductLoops, tile_products, tile_sums
from convsmith.schedule.group_limits import (
    aligned_bytes,
    check_join,
    check_limits,
    check_names,
    check_parts,
    check_rows,
    copy_width,
    innermost,
    loaded_vector,
    shared_bytes,
)
from convsmith.schedule.group_lower import GroupReads, lower_group
from convsmith.schedule.hardware import decided_hardware, hardware_row
from convsmith.schedule.kernel_plan import DecidedKernel, KernelPlan
from convsmith.schedule.loops import Loop, Loops, loops_after_fusing
from convsmith.schedule.nest import GRID_DIMS, Nest, nest_of
from convsmith.schedule.packed_operands import pack_operands, packed_statement
from convsmith.schedule.schedule import Copy, Schedule
from convsmith.statement.statement import Statement, View


def order_group(s: Schedule, st: Statement, config: Config, loops: Loops, nest: Nest, access: int) -> GroupReads:
    """Turn a nest into consecutive loops over the threads of a group, each of which moves at most ``access`` bytes at
    once; return the copies that they read.
    """
    zeroed = bind_group(s, st, nest)
    warp = nest.warp
    tiled: FragmentLoops | None = None
    products: ProductLoops | None = None
    thread = s.fuse(nest.threads, "t")
    sums = nest.accumulators
    if warp is not None:
        tiled = tile_sums(s, warp)
        sums = tiled.loops
    s.run(fission, (thread, *sums))
    s.run(reorder, (*nest.steps, thread, *nest.terms, *sums))
    if warp is not None and tiled is not None:
        products = tile_products(s, warp, tiled)
    place = nest.steps[-1] if config.buffers == 1 else s.fuse(nest.steps, "s")
    shared = _share_operands(s, st, config, loops, nest, place, thread, access)
    s.run(simplify)
    s.run(speculate)
    loaded: dict[str, tuple[Copy, Loop | None]] = {}
    if warp is not None and tiled is not None and products is not None:
        s.run(hold_fragments, warp.row, tiled.outer, products.inner)
    elif nest.accumulators:
        loaded = _load_operands(s, st, config, loops, nest, shared)
    if config.staged("preload"):
        s.run(preload, config.staged("preload"), "register" if warp is None else "fragment")
    if len(nest.grid) > GRID_DIMS:
        s.fuse(nest.grid[GRID_DIMS - 1 :], "x")
    if config.buffers > 1 and shared:
        s.run(gather_allocs, place)
        ahead = config.buffers - 1 if config.copies == "async" else 1
        s.run(multiple_buffers, place, tuple(shared.values()), config.buffers, ahead)
    s.run(simplify)
    return GroupReads(shared, loaded, products, () if tiled is None else tiled.outer, zeroed)


def bind_group(s: Schedule, st: Statement, nest: Nest) -> tuple[Loop, ...]:
    """Bind the loops of a nest over groups and over the threads of a group; return the loops that set the result to
    zero, if groups add parts to it.
    """
    around = (*nest.threads, *nest.accumulators)
    zeroed: tuple[Loop, ...] = ()
    s.run(reorder, (*(x for x in nest.grid if x not in nest.parts), *around))
    for x in nest.parts:
        s.run(reorder, (x, *nest.steps, *nest.terms))
        zeroed = s.add_atomically(x, around[0], len(st.c.coords))
    s.run(bind, nest.grid, "grid")
    s.run(bind, nest.threads, "group" if nest.warp is None else "warp")
    return zeroed


def _share_operands(
    s: Schedule, st: Statement, config: Config, loops: Loops, nest: Nest, place: Loop, thread: Loop, access: int
) -> dict[str, Copy]:
    """Copy the elements that each iteration of ``place`` reads of operands to shared memory; return the copies, which
    all threads fill.
    """
    views = [v for v in st.factors if v.name in config.staged("shared") and not is_false(st.a.mask)]
    masked = config.realise == "mask" or _reads_slack(st, config)
    if views:  # parts of fused loops move a coordinate by less once divisions are simplified
        s.run(simplify)
    copies: dict[str, Copy] = {}
    for view in views:
        last = innermost(st, view, nest, config)
        copies[view.name] = s.stage(view.array, place, len(view.coords), BoxCopy(last, masked=masked), "shared")
        for layout, rows in ((LongRows, config.layouts("pad")), (RotatedRows, config.layouts("swizzle"))):
            if view.name in dict(rows):
                s.run(set_layout, copies[view.name], layout(dict(rows)[view.name]))
    for view in views:
        copy, width = copies[view.name], copy_width(st, view, loops, config, nest, access)
        in_memory = tuple(copy.loops[d] for d in _as_in_memory(view))
        copies[view.name] = s.distribute_copy(copy, nest.size, thread, in_memory, width)
    return copies


def _load_operands(
    s: Schedule, st: Statement, config: Config, loops: Loops, nest: Nest, shared: Mapping[str, Copy]
) -> dict[str, tuple[Copy, Loop | None]]:
    """Load the elements that a thread reads into registers, once for all of its sums; return these copies, each with
    the loop along which it is loaded as vectors.
    """
    vectors = {v: loaded_vector(st, v, loops, config, nest) for v in st.factors}
    loaded: dict[str, tuple[Copy, Loop | None]] = {}
    for v, vector in sorted(vectors.items(), key=lambda x: x[1] not in nest.terms):
        terms = [x for x in nest.terms if x is vector]
        array = shared[v.name].name if v.name in shared else v.array
        loaded[v.name] = (s.load_once(array, (*terms, *nest.accumulators), vector), vector)
    return loaded


def decided_group(st: Statement, config: Config, machine: Machine) -> DecidedKernel:
    """Return the decisions of ``config`` for ``st`` on a device; ConfigError if ``config`` makes no kernel."""
    if config.realise == "hardware":
        if config.staged("preload"):
            raise ConfigError(
                "preload",
                f"--preload={','.join(config.staged('preload'))}: --realise=hardware has the registers of a lane for "
                "sums alone; legal is none",
            )
        read = packed_statement(st, config, machine)
        check_join(config, hardware_row(read, config, machine))
        return decided_hardware(st, read, config, machine)
    loops = loops_after_fusing(st, config)
    check_names(st, loops, config, machine)
    check_parts(st, loops, config)
    read = packed_statement(st, config, machine)
    s = Schedule(d.name for d in st.dims)
    pack_operands(s, read, config, machine)
    nest = nest_of(s, read, loops, config, machine)
    check_join(config, None if nest.warp is None else nest.warp.row)
    shared = shared_bytes(read, loops, config, nest)
    check_limits(machine, nest, aligned_bytes(shared))
    check_rows(read, loops, config, nest)
    found = KernelPlan(st, config, machine, loops, nest, s, buffers=buffers(read, config, nest, shared))
    return DecidedKernel(found, partial(_with_rewrites, found, read))


def _with_rewrites(k: KernelPlan, read: Statement) -> KernelPlan:
    """Return ``k``, whose ordering has tiled the statement ``read``, with its rewrites."""
    assert k.machine.device is not None
    s, ordering = Schedule(), Schedule()
    s.include(k.ordering)
    staged = order_group(s, read, k.config, k.loops, k.nest, k.machine.device.access)
    ordering.include(s)
    lower_group(s, read, k.nest, staged, k.machine, k.config)
    zeroing = filling(staged.zeroed) if staged.zeroed else ()
    return with_fields(k, ordering=ordering, pipeline=tuple(s.steps), zeroing=zeroing)


def _reads_slack(st: Statement, config: Config) -> bool:
    """Return whether a step of the reduction may read the padding of blocked layouts, whose contents are undefined."""
    uneven = any(d.size % config.group_size(d.name) or d.name in st.residues for d in st.of("k"))
    return uneven and any(v.layout.padded_shape != v.layout.shape for v in st.factors)


def _as_in_memory(view: View) -> list[int]:
    """Return the dims of a view in memory order."""
    nearest = {b.dim: b.stride for b in view.layout.blocks if b.size > 1}
    return sorted(range(len(view.coords)), key=lambda d: (-nearest.get(d, inf), d))
