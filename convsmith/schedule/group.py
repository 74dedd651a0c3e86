"""The plan of one statement for a machine with groups of threads: from its naive nest to straight lines."""

from __future__ import annotations

from dataclasses import replace as with_fields
from math import inf, prod

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import is_false
from convsmith.machine.base import Machine
from convsmith.passes.add_atomically import ZERO, add_atomically
from convsmith.passes.ask_once import ask_once
from convsmith.passes.async_copies import async_copies
from convsmith.passes.bind import bind
from convsmith.passes.block_messages import block_messages
from convsmith.passes.contract import contract
from convsmith.passes.cooperate import cooperate
from convsmith.passes.cse import cse
from convsmith.passes.extend import extend
from convsmith.passes.fission import fission
from convsmith.passes.flatten import flatten
from convsmith.passes.fuse import fuse
from convsmith.passes.gather_allocs import gather_allocs
from convsmith.passes.hoist import hoist
from convsmith.passes.hold_fragments import hold_fragments
from convsmith.passes.load_matrices import load_matrices
from convsmith.passes.load_once import load_once
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
from convsmith.passes.spread_lanes import run_name, spread_lanes
from convsmith.passes.stage import stage
from convsmith.passes.swizzle import swizzle
from convsmith.passes.tile import tile
from convsmith.passes.to_threads import to_threads
from convsmith.passes.unroll import unroll
from convsmith.passes.unused_let import unused_let
from convsmith.passes.vectorise import vectorise
from convsmith.schedule.config import Config
from convsmith.schedule.group_fragments import lane_row
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
from convsmith.schedule.group_nest import GRID_DIMS, GROUP, STEP, THREAD, GroupNest, group_nest, packed
from convsmith.schedule.group_packing import packed_statement, packing
from convsmith.schedule.group_plan import GroupPlan
from convsmith.schedule.hardware import hardware_plan, hardware_row
from convsmith.schedule.loops import Loops, fused_name, loops_after_fusing, names
from convsmith.schedule.order import cut_classes
from convsmith.schedule.schedule import Schedule
from convsmith.statement.statement import KINDS, Statement, View

RUNS = (2, 4, 8, 16)
"""Neighbouring elements of a fragment that a lane has, which it accesses as vectors."""
UNROLLED = 256
"""Maximum number of products in a straight line."""
ADDING = 128
"""Threads of a group that only moves or adds up entries."""


def group_steps(st: Statement, config: Config, loops: Loops, nest: GroupNest, access: int) -> list[Step]:
    """Return the rewrites from the naive nest to loops over the threads of a group, one after the other; a thread
    moves at most ``access`` bytes at once.
    """
    first = sorted((d for d in st.dims if d.kind != "k"), key=lambda d: KINDS.index(d.kind))
    steps = list(packing(st))
    steps += [Step(reorder, tuple(d.name for d in first))] if len(first) > 1 and config.fuse else []
    if sum(n in pair for pair in config.fuse for n in st.reduce) > 1:
        steps.append(Step(reorder, st.reduce))
    classes = Schedule(d.name for d in st.dims)
    cut_classes(classes, st, config)
    steps += [*classes.steps, *(Step(fuse, a, b, fused_name(a, b)) for a, b in config.fuse)]
    steps += [Step(simplify), *nest.tiling]
    around = names((*nest.threads, *nest.registers))
    steps.append(Step(reorder, (*(x.name for x in nest.grid if x not in nest.parts), *around)))
    for x in nest.parts:
        steps += [Step(reorder, names((x, *nest.steps, *nest.terms))), Step(add_atomically, x.name, around[0])]
    warp = nest.warp
    kind = "group" if warp is None else "warp"
    steps += [Step(bind, names(nest.grid), "grid"), Step(bind, names(nest.threads), kind)]
    steps += packed(names(nest.threads), THREAD, 1)
    if warp is not None:
        steps += warp.sums()
    sums = names(nest.registers) if warp is None else (*warp.outer, *warp.element)
    steps.append(Step(fission, (nest.thread, *sums)))
    steps.append(Step(reorder, (*names(nest.steps), nest.thread, *names(nest.terms), *sums)))
    if warp is not None:
        steps += warp.products()
    place = nest.steps[-1].name
    if config.buffers > 1:
        steps += packed(names(nest.steps), STEP, 1)
        place = STEP if len(nest.steps) > 1 else place
    views = [v for v in st.factors if v.name in config.shared and not is_false(st.a.mask)]
    masked = config.realise == "mask" or _reads_slack(st, config)
    if views:  # parts of fused loops move a coordinate less far once divisions are simplified
        steps.append(Step(simplify))
    for view in views:
        copied = (innermost(st, view, nest, config), 0, "shared", 1, False, masked)
        steps.append(Step(stage, view.array, place, *copied))
        copy = f"{view.array}_s"
        steps += [Step(pad_rows, copy, n) for name, n in config.pad if name == view.name]
        steps += [Step(swizzle, copy, n) for name, n in config.swizzle if name == view.name]
    for view in views:
        width = copy_width(st, view, loops, config, nest, access)
        steps.append(Step(cooperate, f"{view.array}_s", nest.size, nest.thread, _as_in_memory(view), width))
    steps += [Step(simplify), Step(speculate)]
    if warp is not None:
        steps.append(Step(hold_fragments, warp.row, warp.outer, warp.inner))
    elif nest.registers:
        vectors = {v: loaded_vector(st, v, loops, config, nest) for v in st.factors}
        for v, vector in sorted(vectors.items(), key=lambda x: x[1] not in nest.terms):
            terms = [x.name for x in nest.terms if x is vector]
            read = f"{v.array}_s" if v in views else v.array
            steps.append(Step(load_once, read, (*terms, *names(nest.registers)), "" if vector is None else vector.name))
    if config.preload:
        steps.append(Step(preload, config.preload, "register" if warp is None else "fragment"))
    steps += [*packed(names(nest.grid), GROUP, GRID_DIMS)]
    if config.buffers > 1 and views:
        slots = tuple(f"{v.array}_s" for v in views)
        ahead = config.buffers - 1 if config.copies == "async" else 1
        steps += [Step(gather_allocs, place), Step(multiple_buffers, place, slots, config.buffers, ahead)]
    return [*steps, Step(simplify)]


def lower_steps(
    st: Statement, config: Config, loops: Loops, nest: GroupNest, machine: Machine, access: int
) -> list[Step]:  # fmt: skip
    """Return the rewrites from loops over threads to straight lines of each thread, which moves at most ``access``
    bytes at once.
    """
    products = prod(x.extent for x in nest.registers)
    straight = list(nest.registers)
    for x in reversed(nest.terms):
        products *= x.extent
        if products > UNROLLED:
            break
        straight.append(x)
    if nest.warp is not None:
        straight = [nest.warp.steps, *nest.warp.fragments]
    steps = [
        Step(bind, names(straight), "unrolled"), Step(flatten), Step(simplify), Step(contract, machine.scalar_types),
    ]  # fmt: skip
    if nest.warp is not None:
        row = nest.warp.row
        steps += [Step(replace, (row,), nest.warp.inner)]
        if nest.warp.loads:
            steps.append(Step(load_matrices, (row,), nest.warp.loads))
        steps += [Step(spread_lanes, (row,)), Step(simplify)]
        if machine.messages:
            steps.append(Step(block_messages, machine.messages))
        steps += [Step(vectorise, run_name(n), n, False) for n in RUNS]
    for x in (x for x in nest.vectors if x in nest.registers):
        steps += [Step(ask_once, x.name), Step(vectorise, x.name, x.extent, False)]
    for view in st.factors:
        vector = loaded_vector(st, view, loops, config, nest)
        if vector is not None:
            held = f"{view.array}{'_s' if view.name in config.shared else ''}_r.v"
            steps.append(Step(vectorise, held, vector.extent, False))
    for view in (v for v in st.factors if v.name in config.shared):
        width = copy_width(st, view, loops, config, nest, access)
        if width > 1:
            steps.append(Step(vectorise, f"{view.array}_s.v", width, False))
    steps.append(Step(to_threads))
    if config.barriers == "split":
        steps.append(Step(split_barriers))
    if config.copies == "async":
        steps.append(Step(async_copies))
    steps += [Step(narrow_index), Step(simplify, False), Step(unused_let), Step(hoist), Step(cse), Step(unroll)]
    return steps


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
        return with_fields(made, statement=st, order=(*packing(read), *made.order))
    loops = loops_after_fusing(st, config)
    check_names(st, loops, config, machine)
    check_parts(st, loops, config)
    read = packed_statement(st, config, machine)
    nest = group_nest(loops, config, lane_row(st, loops, config, machine), machine.matrix_loads)
    check_join(config, None if nest.warp is None else nest.warp.row)
    shared = shared_bytes(read, loops, config, nest)
    check_limits(machine, nest, taken(shared))
    check_rows(read, loops, config, nest)
    assert machine.device is not None
    access = machine.device.access
    order = group_steps(read, config, loops, nest, access)
    lower = lower_steps(read, config, loops, nest, machine, access)
    return GroupPlan(st, config, loops, nest, shared, tuple(order), tuple(lower))


def adding_config(st: Statement, machine: Machine) -> Config:
    """Return the config of a statement that only adds up entries: a thread for each sum."""
    lane = max((d for d in st.dims if d.kind != "k"), key=lambda d: d.size).name
    size = min(ADDING, max(d.size for d in st.dims if d.name == lane))
    return Config(machine.name, lane, group=((lane, size),), pack=(), realise="mask")


def zeroing_steps(st: Statement) -> tuple[Step, ...]:
    """Return the rewrites of the kernel that sets the result of ``st`` to zero before groups add parts to it."""
    return filling_steps(tuple(f"{ZERO}{d}" for d in range(len(st.c.coords))))


def filling_groups(elements: int, threads: int = ADDING) -> int:
    """Return the number of groups of ``threads`` that store to ``elements`` elements, one for each thread."""
    return -(-elements // threads)


def filling_steps(loops: tuple[str, ...], threads: int = ADDING) -> tuple[Step, ...]:
    """Return the rewrites of a nest of ``loops`` that stores to all of their places: a thread for each place."""
    shifted = [Step(tile, name, 1, f"{name}.o", f"{name}.i") for name in loops]
    outer = tuple(f"{name}.o" for name in loops)
    whole = GROUP if len(outer) > 1 else outer[0]
    return (
        *shifted, Step(reorder, (*outer, *(f"{name}.i" for name in loops))), *packed(outer, GROUP, 1),
        Step(extend, whole, threads), Step(tile, whole, threads, f"{GROUP}.g", THREAD), Step(simplify, False),
        Step(bind, (f"{GROUP}.g",), "grid"), Step(bind, (THREAD,), "group"), Step(flatten), Step(simplify),
        Step(to_threads), Step(narrow_index), Step(hoist), Step(cse),
    )  # fmt: skip


def _reads_slack(st: Statement, config: Config) -> bool:
    """Return whether a step of the reduction may read elements that blocked layouts add, which may hold anything."""
    uneven = any(d.size % config.group_size(d.name) or d.name in st.residues for d in st.of("k"))
    return uneven and any(v.layout.padded_shape != v.layout.shape for v in st.factors)


def _as_in_memory(view: View) -> tuple[str, ...]:
    """Return the loops over the dims of the copy of a view, in the order in which the view lies in memory."""
    nearest = {b.dim: b.stride for b in view.layout.blocks if b.size > 1}
    order = sorted(range(len(view.coords)), key=lambda d: (-nearest.get(d, inf), d))
    return tuple(f"{view.array}_s{d}" for d in order)
