"""Operands that each iteration of a loop packs into memory that stays in a cache, before it reads them.

The loop is one around the register tile, or the loop over blocks of a reduction whose sums memory keeps. If adjacent
elements of the packed operand are far apart in the original, tiles are transposed in registers, as kernels transpose
them that pack before the main one. A source that is read through a table of pointers is packed through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, is_true, parts_of
from convsmith.ir.instruction import Instruction
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.passes.bind import bind
from convsmith.passes.fuse import fuse
from convsmith.passes.partition import partition
from convsmith.passes.reorder import reorder
from convsmith.passes.share_taps import share_taps
from convsmith.passes.vectorise import vectorise
from convsmith.schedule.buffers import indexes
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import place_of
from convsmith.schedule.copies import has_windows, shared_taps
from convsmith.schedule.copy_nest import BORDERS, CopyNest
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.loops import Loop, down_to, innermost, places
from convsmith.schedule.nest import Nest
from convsmith.schedule.packed_operands import adjacent_units, is_filled
from convsmith.schedule.pointers import indirect
from convsmith.schedule.schedule import Copy, Schedule
from convsmith.schedule.transposed_copies import (
    Tiles,
    TransposedTiles,
    lower_transposed,
    order_transposed,
    transposition,
)
from convsmith.statement.statement import Statement, View, steps_evenly, view_steps

LONG_RUN = 1 / 2
"""Part of a vector beyond which vectors copy the adjacent elements that fill it; up to it, tiles are transposed."""
SHORT_RUN = 1 / 8
"""Part of a vector beyond which vectors copy the adjacent terms of a row of a fragment; fewer are copied singly."""


class NearCopy(NamedTuple):
    """An operand that each iteration of ``place`` packs: its ``copy``, and the nest that packs it if that has loops of
    its own.

    An instruction transposes tiles, those ``found``, which are ``tiles`` once they are ordered; or the innermost loops,
    ``run``, copy adjacent elements as a vector. The loops of rows of weights have the ``order`` of the original.
    """

    copy: Copy
    place: Loop
    moved: CopyNest | None = None
    found: tuple[Tiles, Instruction] | None = None
    tiles: TransposedTiles | None = None
    run: tuple[str, ...] = ()
    order: tuple[str, ...] = ()


def near_place(st: Statement, config: Config, nest: Nest, operand: str, of: str) -> Loop:
    """Return the loop whose iterations pack the elements that they read; ConfigError if there is none."""
    is_copied = has_windows(config) or (config.realise == "pad_copy" and st.constant and not nest.rows)
    copied = {*config.staged("pack"), *((st.a.name,) if is_copied else ())}
    read = {v.name for v in st.factors if is_true(v.mask) or is_filled(st, v.name, config)}
    read |= {st.a.name} if indirect(st, config) else set()
    legal = [v.name for v in st.factors if v.name not in copied and v.name in read]
    if operand not in legal:
        raise ConfigError(
            "pack_at",
            f"--pack_at={operand}+{of}: legal are operands that are neither packed nor copied before, and of which no "
            f"element is absent, unless a table of pointers leads to a zero: {', '.join(legal) or 'none here'}",
        )
    place = innermost(nest.to_tile, *place_of(of))
    if place is None:
        raise ConfigError(
            "pack_at", f"--pack_at={operand}+{of}: no loop {of} is around the register tile; legal are "
            f"{places(nest.to_tile)}",
        )  # fmt: skip
    return place


def stage_near(s: Schedule, k: KernelPlan) -> dict[str, NearCopy]:
    """Pack the operands that the config of ``k`` packs at a loop; return them by name."""
    st, nest, found = k.columns, k.nest, {}
    for operand, of in k.config.staged_at("pack_at"):
        place = near_place(st, k.config, nest, operand, of)
        view = next(v for v in st.factors if v.name == operand)
        array = f"{operand}_at" if _is_pointed(k, operand) else operand
        together = [] if array != operand else [*_merged(k, operand, place)]
        moved, run, tiles = _ways(k, view, place, together)
        prefix = f"{operand}_n." if moved is not None else ""
        units = [x for several in adjacent_units(nest) for x in several]
        copy = s.pack_near(array, place, nest.widths, units, prefix, is_filled(st, operand, k.config))
        for merged in together:
            s.run(share_taps, copy.name, *(f"{prefix}{x.name}" for x in merged))
        order = () if moved is None or k.nest.rows or not run else _order_of_rows(k, view, moved)
        found[operand] = NearCopy(copy, place, moved, tiles, run=run, order=order)
    return found


def is_transposed(k: KernelPlan, operand: str) -> bool:
    """Return whether an instruction transposes the tiles of ``operand``, which the config of ``k`` packs at a loop."""
    place = near_place(k.columns, k.config, k.nest, operand, dict(k.config.staged_at("pack_at"))[operand])
    view = next(v for v in k.columns.factors if v.name == operand)
    return _ways(k, view, place, [*_merged(k, operand, place)])[2] is not None


def _is_pointed(k: KernelPlan, operand: str) -> bool:
    """Return whether pointers of a table lead to the elements of ``operand``, which a copy reads one by one."""
    return operand == k.columns.a.name and indirect(k.columns, k.config)


def _ways(
    k: KernelPlan, view: View, place: Loop, together: Sequence[tuple[Loop, ...]]
) -> tuple[CopyNest | None, tuple[str, ...], tuple[Tiles, Instruction] | None]:
    """Return the nest that packs an operand, with the loops over adjacent elements that it copies as a vector, or the
    tiles that an instruction transposes; None for a nest whose loops are those of its reader.
    """
    moved = None if _is_pointed(k, view.name) else _moved(k, view, place, together)
    run = () if moved is None else _run(moved, k.machine, SHORT_RUN if k.nest.rows else LONG_RUN)
    tiles = None if moved is None or run else transposition(moved, k.machine)
    # Vectors along lanes copy adjacent elements as they are read, or along the rows of the original.
    is_own = tiles is not None or (moved is not None and run and (k.nest.rows or _order_of_rows(k, view, moved)))
    return (moved if is_own else None), run if is_own else (), tiles


def order_near(s: Schedule, near: NearCopy, target: Machine) -> NearCopy:
    """Order the loops that pack an operand by the tiles that an instruction transposes, if there is one, and split
    them where elements are absent.
    """
    if near.moved is not None and near.run:
        if near.order:
            s.run(reorder, near.order)
            if straight := tuple(n for n in _adjacent(near.moved) if n not in near.run):
                s.run(bind, straight, "unrolled")
        s.run(partition, tuple(n for n in near.moved.extents if n not in near.run), BORDERS)
    if near.moved is None or near.found is None:
        return near
    return near._replace(tiles=order_transposed(s, near.moved, *near.found, target, name=near.copy.name, is_near=True))


def lower_near(s: Schedule, near: NearCopy, target: Machine) -> None:
    """Replace the tiles of flat copies by instructions that transpose them, or make vectors of adjacent elements."""
    if near.tiles is not None:
        lower_transposed(s, near.tiles, target)
    if near.run and near.moved is not None:
        *outer, last = near.run
        for name in reversed(outer):
            s.run(fuse, name, last, last, "conditions")
        s.run(vectorise, last, prod(near.moved.extents[n] for n in near.run), False)


def _merged(k: KernelPlan, operand: str, place: Loop) -> Iterator[tuple[Loop, ...]]:
    """Yield the loops over taps and pixels that together index one dim of what an iteration of ``place`` packs of A."""
    inside = [x for x in k.nest.loops if x not in down_to(k.nest.to_tile, place)]
    for tap, pixel in shared_taps(k.columns, k.config) if operand == k.columns.a.name else ():
        if any(x.of == pixel for x in inside):
            yield tuple(x for name in (tap, pixel) for x in inside if x.of == name)


def _moved(k: KernelPlan, view: View, place: Loop, together: Sequence[tuple[Loop, ...]]) -> CopyNest | None:
    """Return the nest that packs an operand in each iteration of ``place``, in which the loops ``together`` index one
    dim; None if its steps are not constant, or if its elements are also converted or packed in pairs.
    """
    st, nest = k.columns, k.nest
    if st.residues or st.sizes or view.factor != view.dtype or view.beside or nest.units:
        return None
    outside = down_to(nest.to_tile, place)
    widths = {x.name: room for x, room in nest.widths}
    inner = [x for x in nest.loops if x not in outside and indexes(st, view, x)]
    if any(x.of in k.loops.symbolic for x in inner):  # parts of a tile copy as many elements as they read
        return None
    steps = view_steps(view)
    if not all(steps_evenly(steps, x.dims, st.extents) for x in inner):
        return None
    rows = {merged[-1]: _rows(steps, merged) for merged in together}
    shared = {x for merged in together for x in merged} - rows.keys()
    inner = [x._replace(extent=rows.get(x, x.extent)) for x in inner if x not in shared]
    name = f"{view.name}_n."
    extents = {f"{name}{x.name}": max(x.extent, widths.get(x.name, 0)) for x in inner}
    moves = {f"{name}{x.name}": x.tile * steps.get(Var(x.dims[-1]), 0) for x in inner}
    ends = [frozenset(f"{name}{x.name}" for x in loops) for loops in _short(k, inner)]
    borders = [
        frozenset(f"{name}{x.name}" for x in inner if {*map(Var, x.dims)} & variables_of(part))
        for part in parts_of(view.mask)
    ]
    ending = frozenset(n for test in ends for n in test).difference(*borders)
    masked = ending.union(*borders)
    times = prod(x.extent for x in outside)
    plain = not (masked and nest.rows)
    return CopyNest(extents, moves, view.dtype, view.dtype, plain, masked, ending, (*ends, *borders), times)


def _order_of_rows(k: KernelPlan, view: View, moved: CopyNest) -> tuple[str, ...]:
    """Return the loops that pack weights in the order of the original, whose rows prefetchers follow, and whose lines
    are then read once; empty for other operands, and if the copy has that order.
    """
    order = tuple(sorted(moved.extents, key=lambda n: -moved.steps[n]))
    is_other = k.columns.constant and view.name == k.columns.b.name and order != tuple(moved.extents)
    return order if is_other else ()


def _rows(steps: Mapping[Index, int], merged: tuple[Loop, ...]) -> int:
    """Return the extent of the dim that ``merged`` loops index together."""
    moves = [x.tile * abs(steps.get(Var(x.dims[-1]), 0)) for x in merged]
    return 1 + sum((x.extent - 1) * move // min(moves) for x, move in zip(merged, moves))


def _run(moved: CopyNest, target: Machine, least: float) -> tuple[str, ...]:
    """Return the innermost loops that copy adjacent elements, which fill more than the part ``least`` of a vector;
    empty if there are none.
    """
    lanes = target.lanes(moved.bits)
    run = _adjacent(moved, lanes)
    return run if prod(moved.extents[n] for n in run) > least * lanes else ()


def _adjacent(moved: CopyNest, most: int | None = None) -> tuple[str, ...]:
    """Return the innermost loops that copy adjacent elements, of which there are at most ``most``."""
    run: list[str] = []
    count = 1
    for name in reversed(moved.extents):
        if moved.steps[name] != count or (most is not None and count * moved.extents[name] > most):
            break
        run.insert(0, name)
        count *= moved.extents[name]
    return tuple(run)


def _short(k: KernelPlan, inner: list[Loop]) -> Iterator[list[Loop]]:
    """Yield the loops over each loop of the statement whose tiles cover more than its iterations."""
    room = {x.name: n for x, n in k.nest.widths}
    for of in dict.fromkeys(x.of for x in inner):
        loops = [x for x in inner if x.of == of]
        whole = k.loops.extents[of]
        around = [x for x in k.nest.loops if x.of == of and x not in loops]
        covered = prod(max(x.extent, room.get(x.name, 0)) for x in (*around, *loops))
        if covered != whole:
            yield loops
