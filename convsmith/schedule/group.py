"""The plan of one statement for a machine with groups of threads: from its naive nest to straight lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace as with_fields
from math import inf, prod
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import is_false
from convsmith.machine.base import Machine
from convsmith.passes.ask_once import ask_once
from convsmith.passes.async_copies import async_copies
from convsmith.passes.bind import bind
from convsmith.passes.block_messages import block_messages
from convsmith.passes.contract import contract
from convsmith.passes.cse import cse
from convsmith.passes.fission import fission
from convsmith.passes.flatten import flatten
from convsmith.passes.gather_allocs import gather_allocs
from convsmith.passes.hoist import hoist
from convsmith.passes.hold_fragments import hold_fragments
from convsmith.passes.load_matrices import load_matrices
from convsmith.passes.manager import Step
from convsmith.passes.multiple_buffers import multiple_buffers
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.pad_rows import pad_rows
from convsmith.passes.preload import preload
from convsmith.passes.reorder import reorder
from convsmith.passes.replace import replace
from convsmith.passes.simplify import simplify
from convsmith.passes.speculate import speculate
from convsmith.passes.split_barriers import split_barriers
from convsmith.passes.swizzle import swizzle
from convsmith.passes.to_threads import to_threads
from convsmith.passes.unroll import unroll
from convsmith.passes.unused_let import unused_let
from convsmith.passes.vectorise import vectorise
from convsmith.schedule.config import Config
from convsmith.schedule.group_fragments import FragmentLoops, ProductLoops, lane_row, tile_products, tile_sums
from convsmith.schedule.group_limits import (
    check_join,
    check_limits,
    check_names,
    check_parts,
    check_rows,
    copy_width,
    innermost,
    loaded_vector,
    shared_bytes,
    taken,
)
from convsmith.schedule.group_nest import GRID_DIMS, GroupNest, group_nest
from convsmith.schedule.group_packing import pack_operands, packed_statement
from convsmith.schedule.group_plan import GroupPlan
from convsmith.schedule.hardware import hardware_plan, hardware_row
from convsmith.schedule.loops import Loop, Loops, loops_after_fusing, names
from convsmith.schedule.schedule import Copy, Schedule
from convsmith.statement.statement import Statement, View

RUNS = (2, 4, 8, 16)
"""Neighbouring elements of a fragment that a lane has, which it accesses as vectors."""
UNROLLED = 256
"""Maximum number of products in a straight line."""
ADDING = 128
"""Threads of a group that only moves or adds up entries."""


class GroupReads(NamedTuple):
    """What threads of a group read instead of memory, and the loops over fragments.

    By operand, ``shared`` are the copies in shared memory, and ``loaded`` those in registers of a thread, each with the
    loop along which it is loaded at once, if there is one. The loops ``zeroed`` are those of the kernel that sets the
    result to zero, where groups add parts to it.
    """

    shared: dict[str, Copy]
    loaded: dict[str, tuple[Copy, Loop | None]]
    products: ProductLoops | None = None
    fragments: tuple[Loop, ...] = ()
    zeroed: tuple[Loop, ...] = ()


def order_group(s: Schedule, st: Statement, config: Config, loops: Loops, nest: GroupNest, access: int) -> GroupReads:
    """Bring a nest to loops over the threads of a group, one after the other, each of which moves at most ``access``
    bytes at once; return what they read.
    """
    around = (*nest.threads, *nest.registers)
    zeroed: tuple[Loop, ...] = ()
    s.run(reorder, (*(x for x in nest.grid if x not in nest.parts), *around))
    for x in nest.parts:
        s.run(reorder, (x, *nest.steps, *nest.terms))
        zeroed = s.add_atomically(x, around[0], len(st.c.coords))
    warp = nest.warp
    tiled: FragmentLoops | None = None
    products: ProductLoops | None = None
    s.run(bind, nest.grid, "grid")
    s.run(bind, nest.threads, "group" if warp is None else "warp")
    thread = s.fuse(nest.threads, "t")
    sums = nest.registers
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
    elif nest.registers:
        loaded = _load_operands(s, st, config, loops, nest, shared)
    if config.preload:
        s.run(preload, config.preload, "register" if warp is None else "fragment")
    if len(nest.grid) > GRID_DIMS:
        s.fuse(nest.grid[GRID_DIMS - 1 :], "x")
    if config.buffers > 1 and shared:
        s.run(gather_allocs, place)
        ahead = config.buffers - 1 if config.copies == "async" else 1
        s.run(multiple_buffers, place, tuple(shared.values()), config.buffers, ahead)
    s.run(simplify)
    return GroupReads(shared, loaded, products, () if tiled is None else tiled.outer, zeroed)


def _share_operands(
    s: Schedule, st: Statement, config: Config, loops: Loops, nest: GroupNest, place: Loop, thread: Loop, access: int
) -> dict[str, Copy]:
    """Copy what each iteration of ``place`` reads of operands to shared memory, and return the copies, which all
    threads fill.
    """
    views = [v for v in st.factors if v.name in config.shared and not is_false(st.a.mask)]
    masked = config.realise == "mask" or _reads_slack(st, config)
    if views:  # parts of fused loops move a coordinate less far once divisions are simplified
        s.run(simplify)
    copies: dict[str, Copy] = {}
    for view in views:
        last = innermost(st, view, nest, config)
        copies[view.name] = s.stage(view.array, place, len(view.coords), last, 0, "shared", 1, False, masked)
        for layout, rows in ((pad_rows, config.pad), (swizzle, config.swizzle)):
            if view.name in dict(rows):
                s.run(layout, copies[view.name], dict(rows)[view.name])
    for view in views:
        copy, width = copies[view.name], copy_width(st, view, loops, config, nest, access)
        in_memory = tuple(copy.loops[d] for d in _as_in_memory(view))
        copies[view.name] = s.cooperate(copy, nest.size, thread, in_memory, width)
    return copies


def _load_operands(
    s: Schedule, st: Statement, config: Config, loops: Loops, nest: GroupNest, shared: Mapping[str, Copy]
) -> dict[str, tuple[Copy, Loop | None]]:
    """Load what a thread reads into registers, once for all of its sums; return the copies in them, and the loop along
    which each is loaded at once.
    """
    vectors = {v: loaded_vector(st, v, loops, config, nest) for v in st.factors}
    loaded: dict[str, tuple[Copy, Loop | None]] = {}
    for v, vector in sorted(vectors.items(), key=lambda x: x[1] not in nest.terms):
        terms = [x for x in nest.terms if x is vector]
        array = shared[v.name].name if v.name in shared else v.array
        loaded[v.name] = (s.load_once(array, (*terms, *nest.registers), vector), vector)
    return loaded


def lower_group(
    s: Schedule, st: Statement, nest: GroupNest, staged: GroupReads, machine: Machine, config: Config
) -> None:
    """Bring loops over threads to straight lines of each thread."""
    warp, products = nest.warp, staged.products
    straight = _straight(nest) if products is None else [products.steps, *staged.fragments]
    s.run(bind, tuple(straight), "unrolled")
    s.run(flatten)
    s.run(simplify)
    s.run(contract, machine.scalar_types)
    if warp is not None and products is not None:
        s.run(replace, (warp.row,), products.inner)
        if warp.loads:
            s.run(load_matrices, (warp.row,), warp.loads)
        neighbours = s.spread_lanes((warp.row,), RUNS)
        s.run(simplify)
        if machine.messages:
            s.run(block_messages, machine.messages)
        for x in neighbours:
            s.run(vectorise, x, x.extent, False)
    for x in (x for x in nest.vectors if x in nest.registers):
        s.run(ask_once, x)
        s.run(vectorise, x, x.extent, False)
    for view in st.factors:
        copy, vector = staged.loaded.get(view.name, (None, None))
        if copy is not None and vector is not None:
            s.run(vectorise, copy.lane, vector.extent, False)
    for copy in staged.shared.values():
        if copy.lane is not None and copy.lane.extent > 1:
            s.run(vectorise, copy.lane, copy.lane.extent, False)
    s.run(to_threads)
    if config.barriers == "split":
        s.run(split_barriers)
    if config.copies == "async":
        s.run(async_copies)
    finish_group(s)


def finish_group(s: Schedule) -> None:
    """Give indices the width that they need, and make straight lines short."""
    s.run(narrow_index)
    s.run(simplify, False)
    for rewrite in (unused_let, hoist, cse, unroll):
        s.run(rewrite)


def _straight(nest: GroupNest) -> list[Loop]:
    """Return the loops of a thread that become straight lines: those of its sums, and of the terms that fit."""
    products, found = prod(x.extent for x in nest.registers), [*nest.registers]
    for x in reversed(nest.terms):
        products *= x.extent
        if products > UNROLLED:
            break
        found.append(x)
    return found


def group_plan(st: Statement, config: Config, machine: Machine) -> GroupPlan:
    """Return the plan of ``st`` under its own ``config``."""
    if config.realise == "hardware":
        if config.preload:
            raise ConfigError(
                "preload", f"--preload={','.join(config.preload)}: --realise=hardware has the registers of a lane for "
                "sums alone; legal is none",
            )  # fmt: skip
        read = packed_statement(st, config, machine)
        check_join(config, hardware_row(read, config, machine))
        made = hardware_plan(read, config, machine)
        s = Schedule()
        pack_operands(s, read)
        return with_fields(made, statement=st, order=(*s.steps, *made.order))
    loops = loops_after_fusing(st, config)
    check_names(st, loops, config, machine)
    check_parts(st, loops, config)
    read = packed_statement(st, config, machine)
    s = Schedule(d.name for d in st.dims)
    pack_operands(s, read)
    nest = group_nest(s, read, loops, config, lane_row(st, loops, config, machine), machine.matrix_loads)
    check_join(config, None if nest.warp is None else nest.warp.row)
    shared = shared_bytes(read, loops, config, nest)
    check_limits(machine, nest, taken(shared))
    check_rows(read, loops, config, nest)
    assert machine.device is not None
    staged = order_group(s, read, config, loops, nest, machine.device.access)
    order = tuple(s.steps)
    lower_group(s, read, nest, staged, machine, config)
    zeroing = filling(staged.zeroed) if staged.zeroed else ()
    return GroupPlan(st, config, loops, nest, shared, order, tuple(s.steps[len(order) :]), zeroing)


def adding_config(st: Statement, machine: Machine) -> Config:
    """Return the config of a statement that only adds up entries: a thread for each sum."""
    lane = max((d for d in st.dims if d.kind != "k"), key=lambda d: d.size).name
    size = min(ADDING, max(d.size for d in st.dims if d.name == lane))
    return Config(machine.name, lane, group=((lane, size),), pack=(), realise="mask")


def filling_groups(elements: int, threads: int = ADDING) -> int:
    """Return the number of groups of ``threads`` that store to ``elements`` elements, one for each thread."""
    return -(-elements // threads)


def fill(s: Schedule, loops: Sequence[Loop], threads: int = ADDING) -> None:
    """Run a nest of ``loops`` that stores to all of their places: a thread for each place."""
    outer, inner = zip(*(s.tile(x, 1, "oi", ("grid", "register")) for x in loops))
    s.run(reorder, (*outer, *inner))
    whole = s.extend(s.fuse(outer, "x"), threads)
    groups, thread = s.tile(whole, threads, "gt", ("grid", "group"))
    s.run(simplify, False)
    s.run(bind, (groups,), "grid")
    s.run(bind, (thread,), "group")
    for rewrite in (flatten, simplify, to_threads, narrow_index, hoist, cse):
        s.run(rewrite)


def filling(loops: Sequence[Loop]) -> tuple[Step, ...]:
    """Return the rewrites of a kernel of such a nest alone."""
    s = Schedule(names(loops))
    fill(s, loops)
    return tuple(s.steps)


def _reads_slack(st: Statement, config: Config) -> bool:
    """Return whether a step of the reduction may read elements that blocked layouts add, which may hold anything."""
    uneven = any(d.size % config.group_size(d.name) or d.name in st.residues for d in st.of("k"))
    return uneven and any(v.layout.padded_shape != v.layout.shape for v in st.factors)


def _as_in_memory(view: View) -> list[int]:
    """Return the dims of a view in the order in which it lies in memory."""
    nearest = {b.dim: b.stride for b in view.layout.blocks if b.size > 1}
    return sorted(range(len(view.coords)), key=lambda d: (-nearest.get(d, inf), d))
