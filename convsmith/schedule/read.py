"""The rewrites that decide how a scheduled nest reads its operands: packing, realised views, split-off remainders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from itertools import chain, takewhile
from math import gcd, prod

from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.ir.index import Var, is_false, is_true, parts_of
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.passes.bind import bind
from convsmith.passes.box_copy import BoxCopy
from convsmith.passes.clip import clip
from convsmith.passes.fill_terms import fill_terms
from convsmith.passes.partition import partition
from convsmith.passes.pieces import border_name, pieces
from convsmith.passes.rebase import rebase
from convsmith.passes.restrict import restrict
from convsmith.passes.round_up import round_up
from convsmith.passes.share_terms import share_terms
from convsmith.passes.simplify import simplify
from convsmith.passes.window_copy import Windows
from convsmith.schedule.config import Config
from convsmith.schedule.copies import (
    check_restricted,
    copied_type,
    has_groups_apart,
    has_rows_of_channels,
    has_terms_apart,
    has_windows,
    is_copied,
    pixels_of_terms,
    restricted,
    restricted_dims,
    room_for_terms,
    short_terms,
    window_borders,
    window_dims,
    window_place,
)
from convsmith.schedule.dynamic import has_masked_pixels
from convsmith.schedule.dynamic_table import tap_bounds
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.loops import Loop, Loops, down_to, names
from convsmith.schedule.near_copies import NearCopy, near_place, stage_near
from convsmith.schedule.nest import Nest
from convsmith.schedule.order import TileLoops
from convsmith.schedule.packed_operands import pack_operands
from convsmith.schedule.pointers import indirect
from convsmith.schedule.schedule import Copy, Schedule
from convsmith.schedule.thread_copies import load_registers, share_operands
from convsmith.schedule.transposed_copies import TransposedTiles
from convsmith.schedule.transposed_results import transposed_along
from convsmith.schedule.turned_copies import turned_copy
from convsmith.statement.epilogue import top_bit
from convsmith.statement.statement import Statement, View
from convsmith.statement.views import IMAGES


@record(frozen=True)
class Reads:
    """The copies from which a nest reads its operands.

    ``packed`` are copies that are made before the kernel runs, ``resident`` copies in registers, ``source`` is the
    padded copy of A or the copy of its windows. Threads of a group read the ``shared`` copies, which they fill in each
    iteration of the loop ``place``, and the copies in registers that are ``loaded`` as vectors along a loop. Copies
    ``near`` are packed in each iteration of a loop. ``tile`` are the loops of the tile of sums. Host threads may share
    the ``parallel`` loops.
    """

    tile: TileLoops
    packed: Mapping[str, Copy] = field(default_factory=dict)
    resident: tuple[Copy, ...] = ()
    source: Copy | None = None
    parallel: tuple[Loop, ...] = ()
    place: Loop | None = None
    shared: Mapping[str, Copy] = field(default_factory=dict)
    loaded: tuple[tuple[Copy, Loop], ...] = ()
    near: Mapping[str, NearCopy] = field(default_factory=dict)
    turned: TransposedTiles | None = None

    def name(self, operand: str) -> str:
        """Return the name under which the innermost loops read an operand."""
        if operand in self.near:
            return self.near[operand].copy.name
        return self.packed[operand].name if operand in self.packed else operand


def stage_operands(s: Schedule, k: KernelPlan, tile: TileLoops) -> Reads:
    """Pack and copy operands as the config of ``k`` says; return the copies, and the loops that threads may share."""
    st, config, nest = k.columns, k.config, k.nest
    place, shared = share_operands(s, k, tile)
    if not nest.has_lanes:
        return Reads(tile, place=place, shared=shared)
    units = nest.units
    packed = pack_operands(s, st, config, k.machine, nest)
    before = tuple(takewhile(lambda x: x not in units, k.outside))
    parallel = before if prod(x.extent for x in before) >= config.threads else k.outside
    near = stage_near(s, k)
    for copy in near.values():
        parallel = tuple(x for x in down_to(nest.to_tile, copy.place) if x in parallel)
    resident = []
    for operand in config.staged("resident"):
        last = _resident_place(k, operand)
        parallel = tuple(x for x in nest.around[: last + 1] if x in k.outside)
        array = packed[operand].name if operand in packed else operand
        resident.append(s.stage(array, nest.around[last], 0, BoxCopy(width=nest.lanes), "register"))
    source = None
    if is_copied(st, config):
        source, around = _copy_source(s, k)
        parallel = tuple(x for x in around if x in parallel)
    return Reads(tile, packed, tuple(resident), source, parallel, near=near)


def check_reads(k: KernelPlan) -> None:
    """Raise ConfigError if an operand cannot be packed, held in registers or copied where the config of ``k`` says."""
    for operand, of in k.config.staged_at("pack_at"):
        near_place(k.columns, k.config, k.nest, operand, of)
    for operand in k.config.staged("resident"):
        _resident_place(k, operand)
    if k.nest.has_lanes and is_copied(k.columns, k.config):
        _source_place(k)


def _resident_place(k: KernelPlan, operand: str) -> int:
    """Return the position of the loop in whose iterations registers hold an operand; ConfigError if there is none."""
    st, loops, config, nest = k.columns, k.loops, k.config, k.nest
    check_resident(st, config, operand)
    moving = [n for n, loop in enumerate(nest.around) if _moves(st, loops, config, operand, loop.of)]
    last = moving[-1] if moving else 0
    if last == len(nest.around) - 1 or nest.rows:
        raise ConfigError(
            "resident",
            f"--resident={operand}: loops around a register tile of vectors that do not move {operand} must be "
            f"innermost, they are {', '.join(names(nest.around))}",
        )  # fmt: skip
    if nest.along_k:
        raise ConfigError(
            "resident", f"--resident={operand}: lanes lie along the reduction loop {config.lane}; legal are others"
        )
    sizes = st.extents
    lanes = {Var(dim) for dim in nest.lane.dims if sizes[dim] > 1}
    view = _view(st, operand)
    if not any(lanes & variables_of(x) for x in view.coords):
        raise ConfigError(
            "resident",
            f"--resident={operand}: all lanes along {config.lane} read one element of {operand}; legal is a "
            "lane loop that moves it",
        )  # fmt: skip
    if operand not in config.staged("pack") and not lanes & variables_of(view.coords[view.layout.blocks[-1].dim]):
        raise ConfigError(
            "resident",
            f"--resident={operand}: lanes along {config.lane} are not innermost in the memory of {operand}, "
            f"along which registers hold its vectors; legal is to pack it: --pack={operand}",
        )  # fmt: skip
    if long := ", ".join(n for n in loops.of("k") if _moves(st, loops, config, operand, n)):
        raise ConfigError("resident", f"--resident={operand}: needs register tiles of all of {long}")
    return last


def _source_place(k: KernelPlan) -> tuple[tuple[Loop, ...], tuple[Windows, Windows, bool] | None]:
    """Return the loops around the copy of A, which is made in the last of them, and the arguments of a copy of windows,
    None for a padded copy. ConfigError if A cannot be copied.
    """
    st, loops, config, nest = k.columns, k.loops, k.config, k.nest
    if st.shifted:
        raise ConfigError(
            "stage", f"--realise=pad_copy: {st.a.name} has a zero point; legal are peel, mask, and --offsets=sums"
        )
    if has_windows(config):
        return window_place(st, loops, config, nest)
    check_restricted(st, loops, config, nest)
    return _stage_place(st, loops, config, nest.around), None


def _copy_source(s: Schedule, k: KernelPlan) -> tuple[Copy, tuple[Loop, ...]]:
    """Copy A, padded or as windows; return the copy, and the loops around it, which may be parallel."""
    st, config, nest = k.columns, k.config, k.nest
    rank, (around, windows) = len(st.a.coords), _source_place(k)
    absent = top_bit(st.a) if st.a.flipped else 0
    if windows is not None:
        return s.stage_windows(st.a.name, around[-1], rank, *windows, absent), around
    neighbours = _neighbours(st, config, nest)
    innermost = neighbours[0] if neighbours else None
    layout = BoxCopy(innermost, absent, convert=nest.unit.copied)
    if not nest.unit.copied and copied_type(st, nest) != st.a.dtype:
        layout = BoxCopy(innermost, convert=True)
    if short_terms(st, config, nest):
        layout = replace(layout, multiple=nest.unit.terms, count=st.a.layout.shape[neighbours[0]])
    if has_terms_apart(st, nest.unit, nest.lane.dims):
        beyond, more = room_for_terms(st, config)
        layout = BoxCopy(innermost, absent, beyond=beyond, more=more)
    layout = replace(layout, inside=restricted_dims(st, config))
    return s.stage(st.a.name, around[-1], rank, layout), around


def fill_tiles(s: Schedule, k: KernelPlan, reads: Reads) -> None:
    """Round short tiles up to whole vectors, and their terms to those of an instruction, if that is safe."""
    st, config, nest = k.columns, k.config, k.nest
    if not nest.has_lanes:
        return
    if not nest.along_k:
        s.run(round_up, (*nest.vectors, nest.lane), (*nest.widths, (nest.lane, nest.filled)))
    is_short = short_terms(st, config, nest)
    if nest.unit.dot and (not nest.rows or has_windows(config) or st.a.name in config.packed or is_short):
        filled: tuple[str, ...] = ()
        if reads.source is not None and (has_windows(config) or is_short):
            filled = (reads.source.name,)
        elif nest.rows or config.staged_at("pack_at"):
            filled = tuple(reads.name(v.name) for v in st.factors if v.name in config.packed)
        for x in nest.terms:
            s.run(fill_terms, x, x.extent, filled)
    if reads.source is not None and has_terms_apart(st, nest.unit, nest.lane.dims):
        if (shared := pixels_of_terms(st, config)) is not None:
            pixel, count, away = shared
            (loop,) = (x for x in nest.pixels if x.of == pixel)
            inner = (*nest.vectors, nest.lane)[0]
            s.run(share_terms, reads.name(st.b.name), loop, nest.terms[-1], count, away, inner)


def fill_registers(s: Schedule, k: KernelPlan, reads: Reads) -> Reads:
    """Load what the threads of a group read in a step into registers; return the copies with these."""
    return replace(reads, loaded=tuple(load_registers(s, k, reads.tile, reads.place, reads.shared)))


def peels(k: KernelPlan) -> bool:
    """Return whether some terms are absent, some are not, and loops are split so that no test remains: where the
    config says so, and where register tiles have pixels whose number is known at the call.
    """
    st, config = k.columns, k.config
    tiled = {x.of for x in k.nest.around if x.is_tiled} & k.loops.symbolic
    splits = config.realise == "peel" or (config.realise == "mask" and bool(tiled))
    return not is_true(st.a.mask) and not is_false(st.a.mask) and splits


def has_empty_classes(k: KernelPlan) -> bool:
    """Return whether pixels of residue classes, of which some may have no tap, are in fragments or read a copy that has
    the absent elements.
    """
    is_whole = bool(k.nest.rows) or k.config.realise == "pad_copy"
    return k.nest.has_lanes and bool(k.columns.residues) and is_whole


def cut_remainders(s: Schedule, k: KernelPlan, reads: Reads) -> None:
    """Bind the loops of a nest, and split off iterations that differ: borders, and short tiles."""
    st, loops, config, nest = k.columns, k.loops, k.config, k.nest
    written, products = reads.tile.written, reads.tile.products
    straight = nest.unrolled if products is None else (products.steps, *reads.tile.fragments)
    columns = [written[x] for x in nest.vectors] if nest.rows and written else []
    s.run(bind, (*straight, *columns), "unrolled")
    if not nest.has_lanes:
        return
    if config.threads > 1 and reads.parallel:
        s.run(bind, _shared(st, loops, reads.parallel), "parallel")
    if peels(k):
        _restrict_taps(s, k)
    if present := restricted(config):
        s.run(restrict, tuple(x for x in nest.reduce if x.of in present))
    cut = _cut_short(st, nest) if nest.along_k and peels(k) else set()
    held = {x.of for x in nest.register}
    # The end of a block without a register tile, and the taps of its rows, are bounds of loops, also at borders.
    tiled = (x for x in nest.around if (x.is_tiled and x.of in held) or x in nest.classes or x in cut)
    vectors = (x for x in (*nest.pixels, *nest.vectors) if x.of == config.lane or x in cut)
    _cut_pieces(s, k, written)
    drained: tuple[Loop, ...] = nest.vectors if written else ()
    exact: tuple[Loop, ...] = (nest.lane,)
    if written and nest.rows and (nest.units or transposed_along(k, nest.rows)):
        # A tile that is transposed has constant bounds, as has one whose rows in memory are told from those of others.
        drained, exact = (*nest.pixels, *nest.vectors), (nest.lane, *(written[x] for x in nest.rows))
    s.run(partition, (*tiled, *nest.reduce, *vectors, *(written[x] for x in drained)), config.pieces, exact)
    if cut:
        s.run(rebase, nest.lane)
    if loops.symbolic and indirect(st, config):
        taps = {d.name: d.axis for d in st.of("k") if d.sort == "taps" and d.size > 1}
        whole = (x for x in nest.reduce if x.name in taps and not x.is_tiled)
        s.run(clip, tuple((x.name, *tap_bounds(taps[x.name])) for x in whole))


def cut_copy(s: Schedule, k: KernelPlan, source: Copy) -> tuple[Copy, TransposedTiles | None]:
    """Split the loops of the copy of A at the borders of the image; return the copy with the loops that are to become
    one of vectors, or with a loop over lanes, or the tiles that an instruction transposes.
    """
    st, config, nest = k.columns, k.config, k.nest
    if has_windows(config):
        s.run(partition, window_borders(st, config, nest, source))
        return replace(source, loops=source.loops[-len(window_dims(config)) :]), None
    if rows := _row_loops(st, config, nest, source):
        s.run(partition, source.loops[2:])
        return replace(source, loops=rows), None
    if (tiles := turned_copy(s, k, source, 1)) is not None:
        return replace(source, loops=(), lane=None), tiles
    lanes = nest.lanes * nest.unit.terms if has_terms_apart(st, nest.unit, nest.lane.dims) else nest.lanes
    vectors, lane = s.tile(source.loops[1], _whole_lanes(k, source, lanes), "ol", ("copy", "copy"))
    s.run(partition, (*source.loops[2:], vectors))
    return replace(source, loops=(), lane=lane, vectors=(vectors,)), None


def _whole_lanes(k: KernelPlan, source: Copy, lanes: int) -> int:
    """Return the lanes of vectors that copy adjacent channels: ``lanes``, or those of a whole register of narrow
    elements where such vectors divide the channels.
    """
    inner = k.columns.a.layout.contiguous
    adjacent = gcd(inner.size, source.loops[1].extent) if inner is not None and inner.dim == 1 else 1
    most = k.machine.lanes(max(dtype(x).bits for x in (k.columns.a.dtype, copied_type(k.columns, k.nest))))
    while 2 * lanes <= most and adjacent % (2 * lanes) == 0:
        lanes *= 2
    return lanes


def _shared(st: Statement, loops: Loops, parallel: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """Return the loops that threads share: a loop in pieces, and the loops in it, stay within a task, unless an image
    has no other loop.
    """
    return tuple(takewhile(lambda x: x.of not in loops.symbolic or not x.is_tiled or len(st.axes) <= 1, parallel))


def _cut_pieces(s: Schedule, k: KernelPlan, written: Mapping[Loop, Loop]) -> None:
    """Cut loops whose extents are known at the call into whole register tiles and a remainder."""
    st, loops, config, nest = k.columns, k.loops, k.config, k.nest
    row, taps = st.of("m")[-1].name, [x for x in nest.unrolled if x.role == "k" and x.level == "register"]
    cut = [x for x in nest.around if x.of in loops.symbolic and x.is_tiled]
    shared, masked = _shares_row(k), has_masks(k)
    has_borders = peels(k) and not shared
    serial: list[Loop] = []
    for x in cut:
        rest = dict(config.tails()).get(x.of, x.tile)
        beside = [y for y in taps if loops.axes[y.of] == loops.axes[x.of]]
        borders = tuple(beside) if has_borders else None
        serial += () if masked else beside
        if x.of == config.lane:
            (vector,) = (y for y in nest.vectors if y.of == x.of)
            again = x.role == "m"
            s.run(pieces, x, vector, nest.lane, (x.tile, rest, nest.lanes), (), False, again, borders, masked)
            continue
        (inner,) = (y for y in (*nest.pixels, *nest.vectors) if y.of == x.of)
        drained = (written[inner],) if written else ()
        if x.of == row:
            s.run(pieces, x, "", inner, (x.tile, rest, x.tile), drained, shared, False, borders)
        else:  # few kinds of pieces, because each of them has all pieces of the loops within it
            s.run(pieces, x, "", inner, (x.tile, x.tile, x.tile), drained, False, True, borders, masked)
    if cut and has_borders:
        s.run(simplify)
        others = (x for x in nest.reduce if x not in nest.classes and x not in taps)
        s.run(restrict, (*others, *map(_at_border, serial)))


def has_masks(k: KernelPlan) -> bool:
    """Return whether vectors of pixels at borders have masks that depend on the sizes of a call: an instruction has one
    term.
    """
    is_plain = not k.nest.unit.dot and k.nest.has_lanes and k.nest.lane.role == "m"
    cut = is_plain and bool(k.loops.symbolic) and peels(k) and not _shares_row(k)
    return cut and has_masked_pixels(k.columns, k.machine)


def has_guards(k: KernelPlan) -> bool:
    """Return whether tests of terms remain in a tile: those of masks, and those of taps of the tile where parts of the
    sums divide the pixels of their axis, since a part decides which taps exist.
    """
    split = k.config.tiles_at("split")
    if not (split and k.nest.has_lanes and peels(k)):
        return has_masks(k)
    axes = k.loops.axes
    divided = {axes.get(n, "") for n, _ in split} - {""}
    tiled = {axes[x.of] for x in k.nest.register if x.role != "k" and x.extent > 1}
    return has_masks(k) or bool(divided & tiled)


def _shares_row(k: KernelPlan) -> bool:
    """Return whether threads share one loop, which has no pieces beside it."""
    return k.config.threads > 1 and len(k.columns.axes) <= 1


def _at_border(loop: Loop) -> str:
    return border_name(loop.name)


def _restrict_taps(s: Schedule, k: KernelPlan) -> None:
    """Restrict the loops over taps to the taps that exist."""
    nest, axes = k.nest, k.loops.axes
    tiled_axes = {a for x in nest.register for a in axes[x.of]}
    inner = (x for x in nest.reduce if x not in nest.classes and _is_free(axes[x.of], tiled_axes))
    s.run(restrict, (*inner, nest.lane) if nest.along_k else tuple(inner))




def _view(st: Statement, operand: str) -> View:
    return next(v for v in st.factors if v.name == operand)


def _moves(st: Statement, loops: Loops, config: Config, operand: str, of: str) -> bool:
    """Return whether an operand depends on the loop ``of``; a loop that runs once, in one class, does not count."""
    view = _view(st, operand)
    indexes = any(Var(dim) in variables_of(x) for x in view.coords for dim in loops.dims[of])
    return indexes and (loops.extents[of] > config.size(of) or of in loops.residues)


def check_resident(st: Statement, config: Config, name: str) -> None:
    """Raise ConfigError if registers cannot hold the operand of that name in any nest."""
    if name not in (v.name for v in st.factors) or (name == st.a.name and config.realise == "pad_copy"):
        raise ConfigError(
            "resident", f"--resident={name}: legal are operands that are not copied first, {st.b.name} say"
        )
    if name not in config.staged("pack") and not _view(st, name).layout.is_plain:
        raise ConfigError("resident", f"--resident={name}: its layout has blocks; legal is to pack it: --pack={name}")


def _neighbours(st: Statement, config: Config, nest: Nest) -> tuple[int, ...]:
    """Return the dim of A that is contiguous in the copy, if it is not the innermost one of A: that whose elements one
    instruction adds up, unless elements of adjacent lanes are, or that of groups that are lanes.
    """
    is_near = nest.unit.dot and not has_terms_apart(st, nest.unit, nest.lane.dims)
    loops = {Var(n) for n, _ in config.tiles_at("k_step")} if is_near else set()
    if has_groups_apart(st, config):
        loops = {Var(config.lane)}
    return tuple(dim for dim, x in enumerate(st.a.coords) if loops & variables_of(x))[-1:]


def _stage_place(
    st: Statement, loops: Loops, config: Config, around: tuple[Loop, ...]
) -> tuple[Loop, ...]:  # fmt: skip
    """Return the loops around the padded copy, which may be parallel; the copy is made in the last of them.

    Groups share no element: if their loops are outermost, each group is copied before it is read. Otherwise one thread
    copies an image at a time. Several threads copy the rows that each of them needs, or the images of a cache tile
    where rows have none.
    """
    images = {d.name for d in st.dims if d.sort == "images"}
    blocks = [n for n, _ in config.tiles_at("cache")]
    of_images = any(images.issuperset(loops.dims[n]) for n in blocks) and not any(loops.axes[n] for n in blocks)
    apart = list(takewhile(lambda x: images.issuperset(x.dims) or _is_group(x, st, config), around))
    if apart and _is_group(apart[-1], st, config):
        return tuple(apart)
    rows: Iterator[Loop] = (x for x in around if loops.axes.get(x.of))
    whole = (x for x in around if images.issuperset(x.dims))
    place = next(whole if config.threads == 1 or of_images else chain(rows, whole), None)
    if place is None:
        raise ConfigError(
            "stage", f"--realise=pad_copy needs loop {IMAGES} or a loop over rows around the tile, not "
            f"{', '.join(names(around))}",
        )  # fmt: skip
    return around[: around.index(place) + 1]


def _is_group(loop: Loop, st: Statement, config: Config) -> bool:
    """Return whether a loop steps over groups, each of which reads its own part of A. Lanes along groups share rows of
    memory, unless groups lie apart.
    """
    return loop.role == "batch" and (loop.of != config.lane or has_groups_apart(st, config))


def _row_loops(st: Statement, config: Config, nest: Nest, copy: Copy) -> tuple[Loop, ...]:
    """Return the loops of the copy that run along a row of memory, if rows are copied and not channels.

    In channels first, pixels of a row are contiguous, also in the copy unless an instruction adds up other neighbours.
    In channels last, a few channels lie between them.
    """
    layout, last = st.a.layout, len(st.a.coords) - 1
    if not layout.is_plain or last < 2:
        return ()
    pixels, channels = copy.loops[last], copy.loops[1]
    if layout.strides[last] == 1 and _neighbours(st, config, nest) in ((), (last,)):
        return (pixels,)
    return (pixels, channels) if has_rows_of_channels(layout) else ()


def _cut_short(st: Statement, nest: Nest) -> set[Loop]:
    """Return the loops over the result that decide which lanes along a reduction loop have terms."""
    lane = {Var(dim) for dim in nest.lane.dims}
    masks = (variables_of(part) for part in parts_of(st.a.mask))
    dims = {str(v) for used in masks if used & lane for v in used}
    return {x for x in (*nest.around, *nest.pixels) if dims & set(x.dims)}


def _is_free(axes: str, tiled: set[str]) -> bool:
    """Return whether a reduction loop runs along axes, and no loop of the register tile along the same ones."""
    return bool(axes) and not tiled & set(axes)
