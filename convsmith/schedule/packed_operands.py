"""Operands that kernels before the main one pack: their order in memory, and the rewrites that pack them.

The nest that reads an operand determines its order. Where the tiles of the operand must be boxes of an array, as the
threads of a group and a copy engine read them, that nest is the one before tiling, in the order of :func:`_order`.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import dense
from convsmith.ir.index import Var, true
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.layout.layout import Layout
from convsmith.layout.tags import MAX_DIMS
from convsmith.machine.base import Machine
from convsmith.passes.share_taps import share_taps
from convsmith.schedule.buffers import packed_type
from convsmith.schedule.config import Config
from convsmith.schedule.copies import shared_taps
from convsmith.schedule.loops import Loop
from convsmith.schedule.nest import Nest
from convsmith.schedule.schedule import Copy, Schedule
from convsmith.statement.statement import Dim, Statement, View, view_steps


def packable(st: Statement) -> list[str]:
    """Return the operands that a device packs: those equal in all calls, whose entries no kernel of a call adds up."""
    return [v.name for v in st.factors if v.constant and not any(x.adds == v.name for x in st.sums)]


def packed_statement(st: Statement, config: Config, machine: Machine) -> Statement:
    """Return ``st`` with the operands that ``config`` packs, or unfolds, as arrays before tiling; ConfigError if one
    cannot be packed.
    """
    packed = config.staged("pack")
    if machine.device is None:
        return _with_unfolded(st, config)
    if not packed:
        return st
    legal = packable(st)
    if not set(packed) <= set(legal):
        raise ConfigError(
            "pack",
            f"--pack={','.join(packed)}: {machine.name} packs operands that are equal in all calls, "
            f"whose entries no kernel of a call adds up; legal are {', '.join(legal) or 'none here'}",
        )
    factors = tuple(_packed(st, v, config) if v.name in packed else v for v in st.factors)
    return replace(st, factors=factors)


def _with_unfolded(st: Statement, config: Config) -> Statement:
    """Return ``st`` with the operands that ``config`` unfolds as arrays; ConfigError if one cannot be unfolded."""
    unfolded = config.staged("unfold")
    if not unfolded:
        return st
    is_even = not (st.residues or st.sizes)
    legal = [v.name for v in unfoldable(st) if v.name in config.staged("pack") and is_even]
    if not set(unfolded) <= set(legal):
        raise ConfigError(
            "unfold",
            f"--unfold={','.join(unfolded)}: legal are packed operands that change in each call, that at most "
            f"{MAX_DIMS} loops of known sizes and without residue classes index: {', '.join(legal) or 'none here'}",
        )
    return replace(st, factors=tuple(_unfolded(st, v) if v.name in unfolded else v for v in st.factors))


def unfoldable(st: Statement) -> list[View]:
    """Return the operands that change in each call, and that few enough loops index for an array."""
    indexes = {v.name: {x.name for c in v.coords for x in variables_of(c)} for v in st.factors}
    return [v for v in st.factors if not v.constant and len(indexes[v.name]) <= MAX_DIMS]


def _unfolded(st: Statement, view: View) -> View:
    """Return the view of an array with a dim for each loop that indexes ``view``: taps outermost, and the terms of sums
    adjacent to each other, inside or outside the channels as in memory.
    """
    moving = [d for d in st.dims if any(Var(d.name) in variables_of(x) for x in view.coords)]
    steps = view_steps(view)
    terms = sorted((d for d in moving if d.kind == "k"), key=lambda d: st.reduce.index(d.name))
    taps = [d for d in moving if d.kind != "k" and d.axis]
    channels = [d for d in moving if d.kind != "k" and not d.axis]
    inside = bool(channels) and steps.get(Var(channels[-1].name), 1) < steps.get(Var(terms[-1].name), 1)
    order = [*taps, *(terms if inside else channels), *(channels if inside else terms)]
    shape = tuple(d.size for d in order)
    coords = tuple(Var(d.name) for d in order)
    return replace(view, layout=Layout(shape, dense(shape)), coords=coords, masks=(true(),) * len(order), packed=True)


def _packed(st: Statement, view: View, config: Config) -> View:
    """Return the packed view, with one dim for each loop that indexes it."""
    order = _order(st, view, config)
    if len(order) > MAX_DIMS:
        raise ConfigError(
            "pack", f"--pack={view.name}: {', '.join(d.name for d in order)} index it; legal is an operand that at "
            f"most {MAX_DIMS} loops index",
        )  # fmt: skip
    shape = tuple(d.size for d in order)
    coords = tuple(Var(d.name) for d in order)
    masks = (true(),) * len(order)
    return replace(view, layout=Layout(shape, dense(shape)), coords=coords, masks=masks, packed=True)


def _order(st: Statement, view: View, config: Config) -> list[Dim]:
    """Return the dims that index ``view``, outermost first.

    Dims of the reduction have the order of the steps and are inside the channels, so that terms are contiguous; they
    are outside if adjacent threads have adjacent channels.
    """
    read = variables_of(view.mask).union(*map(variables_of, view.coords))
    moving = [d for d in st.dims if Var(d.name) in read]
    outer = [d for d in moving if d.kind == "batch" and d.name != config.lane]
    terms = sorted((d for d in moving if d.kind == "k"), key=lambda d: _place(d.name, config.reduce, st.reduce))
    free = sorted((d for d in moving if d.kind != "k" and d not in outer), key=lambda d: d.name == config.lane)
    is_along_lanes = not config.instruction and any(d.name == config.lane for d in free)
    return [*outer, *terms, *free] if is_along_lanes else [*outer, *free, *terms]


def _place(name: str, first: tuple[str, ...], others: tuple[str, ...]) -> int:
    """Return the position of a loop among the loops named ``first``, followed by the ``others``."""
    return [*first, *(n for n in others if n not in first)].index(name)


def pack_operands(
    s: Schedule, st: Statement, config: Config, machine: Machine, nest: Nest | None = None
) -> dict[str, Copy]:  # fmt: skip
    """Pack the operands of ``st``, before tiling or in the order in which ``nest`` reads them, at the place of the two
    at which ``machine`` has them packed; return the packed operands by name. Units of scalable vectors are adjacent.
    """
    packed: dict[str, Copy] = {}
    unfolded = config.staged("unfold")
    if nest is None:
        for view in (v for v in st.factors if v.packed and (machine.device is not None or v.name in unfolded)):
            order, fills = tuple(map(str, view.coords)), machine.device is None
            packed[view.name] = s.pack((view.name,), (), False, (), fills, order)
        return packed
    adjacent = adjacent_units(nest)
    for name in config.staged("pack") if machine.device is None else ():
        options: tuple[object, ...] = (*(adjacent or ((),)), True) if is_filled(st, name, config) else adjacent
        array = (v.array for v in st.factors if v.name == name and name in unfolded)
        operands = (next(array, name), *_added(st, name), *_beside(st, name))
        if columns := _single_column(st, nest, name):
            options = ((), False, (), columns)
        packed[name] = s.pack(operands, nest.packed_widths, _conversion(st, nest, name, machine), *options)
    for tap, pixel in shared_taps(st, config) if st.a.name in packed else ():
        s.run(share_taps, packed[st.a.name], *(x for name in (tap, pixel) for x in nest.loops if x.of == name))
    return packed


def is_filled(st: Statement, name: str, config: Config) -> bool:
    """Return whether an operand that is packed holds zeros in place of absent elements, which are multiplied."""
    return name == st.a.name and config.realise == "pad_copy"


def _single_column(st: Statement, nest: Nest, name: str) -> tuple[Loop, ...]:
    """Return the loops over columns of fragments that operand ``name`` must have, although the statement has a single
    column, which no loop steps through; empty if there are more.
    """
    single = name == st.b.name and bool(nest.rows) and st.constant and st.extents[st.n] == 1
    return tuple(x for x in nest.loops if single and x.role == "n")


def adjacent_units(nest: Nest) -> tuple[tuple[Loop, ...], ...]:
    """Return the loops whose elements are contiguous in packed operands if vectors of ``nest`` are scalable: the loop
    over units, and the loop over lanes.
    """
    return ((*nest.units, nest.lane),) if nest.units else ()


def _conversion(st: Statement, nest: Nest, name: str, target: Machine) -> bool | str:
    """Return whether the packed operand ``name`` holds converted factors instead of the original ones, or the type to
    which packing converts them.

    Bytes stay bytes if they are multiplied as words, so that LLVM can see that a word holds each factor, and if loads
    extend them at no cost.
    """
    if name == st.b.name and (held := packed_type(st, nest)):
        return held
    plain = multiplies_words(st, target)
    own = (v for v in st.factors if v.name == name)
    are_bytes = any(dtype(v.dtype).bytes == 1 and not (v.requantised or v.flipped) for v in own)
    as_bytes = (plain or target.extends_bytes) and are_bytes
    return nest.unit.converts and not as_bytes and not _beside(st, name)


def multiplies_words(st: Statement, target: Machine) -> bool:
    """Return whether bytes that no dot product multiplies are multiplied as pairs of words, of which one is zero.

    One factor of such a pair must be unsigned, and no zero point subtracted from it.
    """
    unsigned = any(v.dtype == "u8" for v in st.factors)
    return st.acc == "s32" and not st.shifted and target.has_word_products and unsigned


def _added(st: Statement, name: str) -> tuple[str, ...]:
    """Return the array whose entries are added to the entries of an operand, if there is one."""
    made = (v.requantised for v in st.factors if v.name == name)
    return tuple(x.rest for x in made if x is not None and x.rest)


def _beside(st: Statement, name: str) -> tuple[str, ...]:
    """Return the arrays that form one stream with an operand, such as its bias, in memory order."""
    return next((v.beside for v in st.factors if v.name == name), ())
