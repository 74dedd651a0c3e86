"""The rewrites that decide how a scheduled nest reads its operands: packing, realised views, split-off remainders."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, takewhile
from math import prod

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var, is_false, is_true, parts_of
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.passes.bind import bind
from convsmith.passes.copy_windows import copy_windows
from convsmith.passes.derive_packing import derive_packing
from convsmith.passes.fill_terms import fill_terms
from convsmith.passes.lift import lift
from convsmith.passes.manager import Step
from convsmith.passes.pack_near import pack_near
from convsmith.passes.partition import partition
from convsmith.passes.pieces import pieces
from convsmith.passes.rebase import rebase
from convsmith.passes.restrict import restrict
from convsmith.passes.round_up import round_up
from convsmith.passes.share_taps import share_taps
from convsmith.passes.simplify import simplify
from convsmith.passes.skip_zero import skip_zero
from convsmith.passes.stage import stage
from convsmith.passes.tile import tile
from convsmith.schedule.config import Config
from convsmith.schedule.copies import (
    copied_type,
    copy_name,
    has_windows,
    is_copied,
    is_packed,
    shared_taps,
    short_terms,
    window_borders,
    window_place,
)
from convsmith.schedule.loops import Loop, Loops, names
from convsmith.schedule.order import Nest, is_drained, written_name
from convsmith.schedule.pointers import indirect
from convsmith.statement.epilogue import top_bit
from convsmith.statement.statement import Statement, View
from convsmith.statement.views import IMAGES

FEW_CHANNELS = 8
"""Pixels with at most this many channels are copied row by row, because a pixel fills only part of a vector."""


def read_steps(
    st: Statement, loops: Loops, config: Config, nest: Nest, outside: tuple[Loop, ...], target: Machine
) -> tuple[list[Step], list[Step]]:
    """Return the rewrites that pack operands and realise the views, and those that bind loops and split off remainders.

    Threads share the loops ``outside``, the outermost ones of the nest.  Units of scalable vectors lie side by side in
    packed operands.
    """
    units = nest.units
    adjacent = (names((*units, nest.lane)),) if units else ()
    steps = []
    for name in config.pack:
        options = (*(adjacent or ((),)), True) if name == st.a.name and config.realise == "pad_copy" else adjacent
        operands, converted = (name, *_added(st, name), *_beside(st, name)), _conversion(st, nest, name, target)
        steps.append(Step(derive_packing, operands, f"{name}_p", nest.widths, converted, *options))
    steps += [Step(share_taps, f"{st.a.name}_p", *pair) for pair in shared_taps(st, config)]
    masked = _is_masked(st)
    before = tuple(takewhile(lambda x: x not in units, outside))
    parallel = before if prod(x.extent for x in before) >= config.threads else outside
    for operand, of in config.near:
        position = _near_place(st, config, nest, operand, of)
        steps.append(Step(pack_near, operand, nest.around[position].name, nest.widths, *adjacent))
        parallel = tuple(x for x in nest.around[: position + 1] if x in parallel)
    for operand, name in resident(st, config).items():
        moving = [n for n, loop in enumerate(nest.around) if _moves(st, loops, config, operand, loop.of)]
        last = moving[-1] if moving else 0
        if last == len(nest.around) - 1 or nest.rows:
            raise ConfigError(
                "hold", f"--hold={operand}: loops around a register tile of vectors that do not move {operand} must be "
                f"innermost, they are {', '.join(names(nest.around))}",
            )  # fmt: skip
        if nest.along_k:
            raise ConfigError(
                "hold", f"--hold={operand}: lanes lie along the reduction loop {config.lane}; legal are others"
            )
        sizes = {d.name: d.size for d in st.dims}
        lanes = {Var(dim) for dim in nest.lane.dims if sizes[dim] > 1}
        if not any(lanes & variables_of(x) for x in _view(st, operand).coords):
            raise ConfigError(
                "hold", f"--hold={operand}: all lanes along {config.lane} read one element of {operand}; legal is a "
                "lane loop that moves it",
            )  # fmt: skip
        view = _view(st, operand)
        if operand not in config.pack and not lanes & variables_of(view.coords[view.layout.blocks[-1].dim]):
            raise ConfigError(
                "hold", f"--hold={operand}: lanes along {config.lane} are not innermost in the memory of {operand}, "
                f"along which registers hold its vectors; legal is to pack it: --pack={operand}",
            )  # fmt: skip
        if long := ", ".join(n for n in loops.of("k") if _moves(st, loops, config, operand, n)):
            raise ConfigError("hold", f"--hold={operand}: needs register tiles of all of {long}")
        parallel = tuple(x for x in nest.around[: last + 1] if x in outside)
        steps.append(Step(stage, name, nest.around[last].name, None, 0, "register", nest.lanes))
    if is_copied(st, config):
        if st.shifted:
            raise ConfigError(
                "stage", f"--realise=pad_copy: {st.a.name} has a zero point; legal are peel, mask, and --offsets=sums"
            )
        if has_windows(config):
            place, around, windows = window_place(st, loops, config, nest)
        else:
            place, around = _stage_place(st, loops, config, nest.around)
        parallel = tuple(x for x in around if x in parallel)
        neighbours = _neighbours(st, config, nest)
        filled = (*(neighbours or (None,)), top_bit(st.a)) if st.a.flipped else neighbours
        if copied_type(st, nest) != st.a.dtype:
            filled = (None, 0, "cache", 1, False, False, True)
        if short_terms(st, config, nest):
            count = st.a.layout.shape[neighbours[0]]
            filled = (*neighbours, 0, "cache", 1, False, False, False, nest.unit.terms, count)
        steps.append(Step(copy_windows, st.a.name, place, *windows) if has_windows(config) else
                     Step(stage, st.a.name, place, *filled))
    if masked and config.realise == "peel":
        steps.append(Step(skip_zero))
    if not nest.along_k:
        lane = (nest.lane.name, nest.filled)
        steps.append(Step(round_up, (*names(nest.vectors), nest.lane.name), (*nest.widths, lane)))
    is_short = short_terms(st, config, nest)
    if nest.unit.dot and (not nest.rows or has_windows(config) or is_packed(st, config) or is_short):
        filled = (copy_name(st),) if has_windows(config) or is_short else (f"{st.a.name}_p",) if nest.rows else ()
        steps += [Step(fill_terms, x.name, x.extent, filled) for x in nest.terms]
    steps.append(Step(simplify))
    if indirect(st, config):
        steps.append(Step(lift))
    beside = tuple(written_name(x.name) for x in nest.vectors) if nest.rows else ()
    cutting = [Step(bind, (*names(nest.unrolled), *beside), "unrolled")]
    if config.threads > 1 and parallel:
        cutting.append(Step(bind, names(_shared(st, loops, parallel)), "parallel"))
    cutting += _border_steps(st, loops, config, nest) if masked and config.realise == "peel" else []
    cut = _cut_short(st, nest) if masked and nest.along_k and config.realise == "peel" else set()
    tiled = (x for x in nest.around if x.is_tiled or x in nest.classes or x in cut)
    vectors = names(x for x in (*nest.pixels, *nest.vectors) if x.of == config.lane or x in cut)
    written = (written_name(x.name) for x in nest.vectors) if is_drained(config, nest) else ()
    cutting += _piece_steps(st, loops, config, nest)
    split = (*names((*tiled, *nest.reduce)), *vectors, *written)
    cutting.append(Step(partition, split, config.pieces, (nest.lane.name,)))
    if cut:
        cutting.append(Step(rebase, nest.lane.name))
    if is_copied(st, config):
        copied = [Step(partition, window_borders(st, config, nest))] if has_windows(config) else []
        cutting += copied or _copy_steps(st, config, nest)
    return steps, cutting


def _conversion(st: Statement, nest: Nest, name: str, target: Machine) -> bool | str:
    """Return whether the packed operand ``name`` holds factors as they are multiplied, not as they are given; or the
    type to which the instruction has packing widen them.

    Bytes stay bytes where the machine multiplies words: LLVM sees then that a word holds each factor. One factor of a
    pair of words whose second one is zero must be unsigned.
    """
    if nest.unit.widens and name == st.b.name:
        return nest.unit.widens
    plain = st.acc == "s32" and not st.shifted and target.has_word_products and any(v.dtype == "u8" for v in st.factors)
    are_bytes = any(dtype(v.dtype).bytes == 1 and not (v.fewer or v.flipped) for v in st.factors if v.name == name)
    return not (nest.unit.dot or _beside(st, name) or (plain and are_bytes))


def _near_place(st: Statement, config: Config, nest: Nest, operand: str, of: str) -> int:
    """Return the position of the loop whose iterations pack what they read; ConfigError where none can."""
    legal = [v.name for v in st.factors if v.name not in config.pack and is_true(v.mask)]
    if operand not in legal or is_copied(st, config):
        raise ConfigError(
            "near", f"--near={operand}+{of}: legal are operands that are neither packed nor copied before, and of "
            f"which no element is absent: {', '.join(legal) or 'none here'}",
        )  # fmt: skip
    places = [n for n, x in enumerate(nest.around) if x.of == of]
    if not places:
        raise ConfigError(
            "near", f"--near={operand}+{of}: no loop {of} is around the register tile; legal are "
            f"{', '.join(dict.fromkeys(x.of for x in nest.around))}",
        )  # fmt: skip
    return places[-1]


def _shared(st: Statement, loops: Loops, parallel: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """Return the loops that threads share: one in pieces stays within a task, unless an image has no other loop."""
    return tuple(x for x in parallel if x.of not in loops.symbolic or not x.is_tiled or len(st.axes) <= 1)


def _piece_steps(st: Statement, loops: Loops, config: Config, nest: Nest) -> list[Step]:
    """Cut loops whose extents are known at the call into whole register tiles and a remainder."""
    steps = []
    for x in (x for x in nest.around if x.of in loops.symbolic and x.is_tiled):
        rest = dict(config.remainder).get(x.of, x.tile)
        if x.of == config.lane:
            (vector,) = (y for y in nest.vectors if y.of == x.of)
            steps.append(Step(pieces, x.name, vector.name, nest.lane.name, (x.tile, rest, nest.lanes)))
            continue
        (inner,) = (y for y in nest.pixels if y.of == x.of)
        drained = (written_name(inner.name),) if config.drain else ()
        shared = config.threads > 1 and len(st.axes) <= 1
        steps.append(Step(pieces, x.name, "", inner.name, (x.tile, rest, x.tile), drained, shared))
    return steps


def _border_steps(st: Statement, loops: Loops, config: Config, nest: Nest) -> list[Step]:
    """Restrict the loops over taps to those that exist."""
    tiled_axes = {a for x in nest.register for a in loops.axes[x.of]}
    inner = (x for x in nest.reduce if x not in nest.classes and _is_free(loops.axes[x.of], tiled_axes))
    return [Step(restrict, (*names(inner), nest.lane.name) if nest.along_k else names(inner))]


def _is_masked(st: Statement) -> bool:
    """Return whether some terms are absent, and some are not."""
    return not is_true(st.a.mask) and not is_false(st.a.mask)


def _added(st: Statement, name: str) -> tuple[str, ...]:
    """Return the array whose entries are added to those of an operand, where there is one."""
    return tuple(v.fewer.rest for v in st.factors if v.name == name and v.fewer is not None and v.fewer.rest)


def _beside(st: Statement, name: str) -> tuple[str, ...]:
    """Return the arrays that make one stream with an operand, as they lie in memory: its bias, say."""
    return next((v.beside for v in st.factors if v.name == name), ())


def _view(st: Statement, operand: str) -> View:
    return next(v for v in st.factors if v.name == operand)


def _moves(st: Statement, loops: Loops, config: Config, operand: str, of: str) -> bool:
    """Return whether loop ``of`` moves an operand; one that runs once, in one class, moves none."""
    view = _view(st, operand)
    indexes = any(Var(dim) in variables_of(x) for x in view.coords for dim in loops.dims[of])
    return indexes and (loops.extents[of] > config.size(of) or of in loops.residues)


def resident(st: Statement, config: Config) -> dict[str, str]:
    """Return the operands that stay in registers, with the names under which they are read."""
    for name in config.hold:
        if name not in (v.name for v in st.factors) or (name == st.a.name and config.realise == "pad_copy"):
            raise ConfigError("hold", f"--hold={name}: legal are operands that are not copied first, {st.b.name} say")
        if name not in config.pack and not _view(st, name).layout.is_plain:
            raise ConfigError("hold", f"--hold={name}: its layout has blocks; legal is to pack it: --pack={name}")
    return {name: f"{name}_p" if name in config.pack else name for name in config.hold}


def _neighbours(st: Statement, config: Config, nest: Nest) -> tuple[int, ...]:
    """Return the dim of A whose elements one instruction adds up, if any: they are contiguous in the copy."""
    loops = {Var(n) for n, _ in config.terms} if nest.unit.dot else set()
    return tuple(dim for dim, x in enumerate(st.a.coords) if loops & variables_of(x))[-1:]


def _stage_place(
    st: Statement, loops: Loops, config: Config, around: tuple[Loop, ...]
) -> tuple[str, tuple[Loop, ...]]:
    """Return the loop in which the padded copy is made, and the loops around it, which are those that may be parallel.

    Groups share no element: where they are outermost, each is copied before it is read. Else one thread copies an image
    at a time; several copy the rows that they need, each its own.
    """
    images = {d.name for d in st.dims if d.sort == "images"}
    apart = list(takewhile(lambda x: images.issuperset(x.dims) or _is_group(x, config), around))
    if apart and _is_group(apart[-1], config):
        return apart[-1].name, tuple(apart)
    rows: Iterator[Loop] = (x for x in around if loops.axes.get(x.of))
    whole = (x for x in around if images.issuperset(x.dims))
    place = next(whole if config.threads == 1 else chain(rows, whole), None)
    if place is None:
        raise ConfigError(
            "stage", f"--realise=pad_copy needs loop {IMAGES} or a loop over rows around the tile, not "
            f"{', '.join(names(around))}",
        )  # fmt: skip
    return place.name, around[: around.index(place) + 1]


def _is_group(loop: Loop, config: Config) -> bool:
    """Return whether a loop steps from group to group, each of which reads its own part of A."""
    return loop.role == "batch" and loop.of != config.lane


def _copy_steps(st: Statement, config: Config, nest: Nest) -> list[Step]:
    """Split the copy at the borders of the image, and copy vectors of channels."""
    channels = f"{copy_name(st)}1"
    others = [f"{copy_name(st)}{n}" for n in range(2, len(st.a.coords))]
    if row_loops(st, config, nest):
        return [Step(partition, tuple(others))]
    return [
        Step(tile, channels, nest.lanes, channels + ".o", channels + ".l"),
        Step(partition, (*others, channels + ".o")),
    ]


def row_loops(st: Statement, config: Config, nest: Nest) -> tuple[str, ...]:
    """Return the loops of the copy that run along a row of memory, where rows are copied and not channels.

    In channels first, pixels of a row are contiguous. In channels last, a few channels lie between them.
    """
    layout, last = st.a.layout, len(st.a.coords) - 1
    if not layout.is_plain or last < 2:
        return ()
    pixels, channels = f"{copy_name(st)}{last}", f"{copy_name(st)}1"
    if layout.strides[last] == 1 and not _neighbours(st, config, nest):
        return (pixels,)
    few = layout.shape[1] <= FEW_CHANNELS and layout.strides[1] == 1 and layout.strides[last] == layout.shape[1]
    return (pixels, channels) if few else ()


def _cut_short(st: Statement, nest: Nest) -> set[Loop]:
    """Return the loops over the result that decide which lanes along a reduction loop have terms."""
    lane = {Var(dim) for dim in nest.lane.dims}
    masks = (variables_of(part) for part in parts_of(st.a.mask))
    dims = {str(v) for used in masks if used & lane for v in used}
    return {x for x in (*nest.around, *nest.pixels) if dims & set(x.dims)}


def _is_free(axes: str, tiled: set[str]) -> bool:
    """Return whether a reduction loop runs along axes, and no loop of the register tile along one of them."""
    return bool(axes) and not tiled & set(axes)
