"""Copies of the source: its padded copy, and the copy of windows, in which all terms of a pixel are contiguous."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var, is_false
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.layout.layout import Layout
from convsmith.passes.window_copy import Windows
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loop, Loops, fused_dims, names
from convsmith.schedule.nest import Nest
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.schedule import Copy
from convsmith.statement.statement import Statement, view_steps

FEW_CHANNELS = 8
"""Pixels with at most this many channels are copied row by row, because a pixel fills only part of a vector."""


def has_rows_of_channels(layout: Layout) -> bool:
    """Return whether pixels of few channels, all of which a row of memory holds, are copied row by row."""
    few = layout.is_plain and len(layout.shape) > 2 and layout.shape[1] <= FEW_CHANNELS
    return few and layout.strides[1] == 1 and layout.strides[-1] == layout.shape[1]


def is_copied(st: Statement, config: Config) -> bool:
    """Return whether A is staged through a copy, padded or of windows, that is made within the kernel."""
    if is_packed(st, config) or is_false(st.a.mask):
        return False
    return config.realise == "pad_copy" or has_windows(config)


def is_packed(st: Statement, config: Config) -> bool:
    """Return whether A is packed, before each call or at a loop."""
    return st.a.name in config.packed


def shared_taps(st: Statement, config: Config) -> dict[tuple[str, str], int]:
    """Return the loops over a tap and over a pixel that together index one dim of packed A, with its length; None
    unless A is the source of a gradient of the weights, the loop over the tap is whole, and the loop over the pixel is
    whole or in cache tiles of equal size.

    The rows that a tap meets are the rows of another tap, shifted.
    """
    if len(st.factors) < 2 or st.constant or not is_packed(st, config):
        return {}
    sizes, kinds = st.extents, {d.name: d.kind for d in st.dims}
    cut = {config.lane, *(n for n, _ in (*config.tiles_at("register"), *config.tiles_at("k_step")))}
    cut |= {n for n, size in config.tiles_at("cache") if kinds.get(n) != "k" or sizes[n] % size}
    cut |= {n for pair in config.fuse for n in pair}
    found = {}
    for coord in st.a.coords:
        moving = [(v, step) for v, step in coord.terms if not (isinstance(v, Var) and kinds.get(str(v)) == "batch")]
        steps = {str(v): step for v, step in moving if isinstance(v, Var)}
        pair = tuple(sorted(steps, key=lambda n: kinds[n] == "k"))
        if len(moving) != 2 or [kinds[n] for n in pair] != ["m", "k"] or cut & steps.keys():
            continue
        near, far = sorted(map(abs, steps.values()))
        if near == 0 or far % near or min(steps.values()) < 0:
            continue
        tap, pixel = pair
        found[tap, pixel] = 1 + sum((sizes[n] - 1) * steps[n] // near for n in pair)
    return found


def copied_type(st: Statement, nest: Nest) -> str:
    """Return the type of the elements of the padded copy of A: that of an instruction on widened bytes, or the type of
    the sums if each element would otherwise be converted before each of its products. The copy converts vectors, once.
    With lanes along pixels, conversions to the type of sums work on vectors in any case.
    """
    if nest.unit.copied:
        return nest.unit.copied
    floats = dtype(st.a.dtype).kind == "float" and len(st.factors) > 1 and not st.a.filled
    return st.acc if floats and nest.unit.converts and nest.lane.role == "n" else st.a.dtype


def has_windows(config: Config) -> bool:
    """Return whether the terms of each pixel are contiguous in a copy of A."""
    return config.realise == "window_copy"


def window_dims(config: Config) -> tuple[str, ...]:
    """Return the dims over the terms of each pixel in a copy of windows, outermost first."""
    return fused_dims(config, config.tiles_at("k_step")[0][0])


def empty_terms(st: Statement, config: Config) -> int:
    """Return the terms of the last instruction on a window that the copy pads with zeros."""
    ((joined, terms),) = config.tiles_at("k_step")
    sizes = st.extents
    return -prod(sizes[n] for n in fused_dims(config, joined)) % terms


def short_terms(st: Statement, config: Config, nest: Nest) -> bool:
    """Return whether the padded copy of A has zeros for the missing terms of the last instruction: of one on fragments,
    or of a dot product of channels.
    """
    if not nest.unit.dot or not is_copied(st, config) or has_windows(config):
        return False
    loop, sizes = config.tiles_at("k_step")[0][0], st.extents
    is_filled = bool(nest.rows) or Var(loop) in st.a.coords
    return is_filled and prod(sizes[n] for n in fused_dims(config, loop)) % nest.unit.terms > 0


def has_terms_apart(st: Statement, unit: ProductShape, lanes: Iterable[str]) -> bool:
    """Return whether the instruction ``unit`` adds up terms that lie apart in A, of lanes along the dims ``lanes`` that
    are adjacent there: taps of channels that are groups of their own.
    """
    steps = view_steps(st.a)
    return unit.dot and unit.rows == 1 and any(steps.get(Var(n)) == 1 for n in lanes)


def has_groups_apart(st: Statement, config: Config) -> bool:
    """Return whether lanes are groups whose elements lie apart in memory: a copy makes them adjacent."""
    groups = {d.name for d in st.of("batch")}
    return config.lane in groups and abs(view_steps(st.a).get(Var(config.lane), 1)) != 1


def room_for_terms(st: Statement, config: Config) -> tuple[int, int]:
    """Return the dim of A along which the terms of an instruction lie, and the elements that the last one reads beyond
    those that exist, for terms that lie apart.
    """
    ((loop, _),) = config.tiles_at("k_step")
    dim = next(n for n, x in enumerate(st.a.coords) if Var(loop) in variables_of(x))
    step = dict(st.a.coords[dim].terms)[Var(loop)]
    return dim, empty_terms(st, config) * abs(step)


def pixels_of_terms(st: Statement, config: Config) -> tuple[str, int, int] | None:
    """Return the loop over pixels that step along the terms of an instruction, which lie apart, the number of adjacent
    pixels of a register tile that can multiply the same terms, and the terms from a pixel to the next one. None if a
    pixel's terms are its own.
    """
    ((loop, terms),) = config.tiles_at("k_step")
    steps = dict(st.a.coords[room_for_terms(st, config)[0]].terms)
    pixel = next((x.name for x in st.of("m") if Var(x.name) in steps), "")
    if not pixel or config.staged("pack") != (st.b.name,):
        return None
    away, apart = divmod(steps[Var(pixel)], steps[Var(loop)])
    if apart or away <= 0 or st.extents[loop] > terms:
        return None
    count = min(config.size(pixel), (terms - st.extents[loop]) // away + 1)
    return (pixel, count, away) if count > 1 else None


def restricted(config: Config) -> tuple[str, ...]:
    """Return the loops over taps of a padded copy that leave out the taps which meet padding."""
    return config.restrict if config.realise == "pad_copy" else ()


def check_restricted(st: Statement, loops: Loops, config: Config, nest: Nest) -> None:
    """Raise ConfigError if a loop over taps that the config restricts has iterations which cannot be left out."""
    legal = restrictable(st, loops, config)
    if restricted(config) and (nest.rows or not legal.issuperset(config.restrict)):
        raise ConfigError(
            "restrict", f"--restrict={','.join(config.restrict)}: legal are loops over taps that meet padding, along "
            f"an axis of no loop of a register tile of vectors: {', '.join(sorted(legal)) or 'none here'}",
        )  # fmt: skip


def restrictable(st: Statement, loops: Loops, config: Config) -> frozenset[str]:
    """Return the reduction loops over taps whose iterations meet padding alone, or none, in the whole register tile. An
    absent element must be zero, and each class of a stride must have all taps.
    """
    tiled = {n for n, _ in (*config.tiles_at("register"), *config.tiles_at("k_step"))} | {config.lane}
    axes = {a for n in tiled for a in loops.axes[n]}
    if st.residues or st.sizes or st.a.filled or st.a.flipped:
        return frozenset()
    masked = variables_of(st.a.mask)
    taps = (n for n in loops.of("k") if loops.axes[n] and loops.dims[n] == (n,) and Var(n) in masked)
    return frozenset(n for n in taps if not axes & {*loops.axes[n]})


def restricted_dims(st: Statement, config: Config) -> tuple[int, ...]:
    """Return the dims of A along which the taps that the config restricts lie."""
    taps = {Var(n) for n in restricted(config)}
    return tuple(dim for dim, x in enumerate(st.a.coords) if taps & variables_of(x))


def window_borders(st: Statement, config: Config, nest: Nest, copy: Copy) -> tuple[Loop, ...]:
    """Return the loops of a ``copy`` of windows that may read padding: over rows, pixels, and all dims but channels."""
    rank, pixels = len(st.a.coords), fused_dims(config, _row_loop(nest))
    moved = {Var(n) for n in (*pixels, *window_dims(config))}
    rows = (copy.loops[dim] for dim, x in enumerate(st.a.coords) if not moved & variables_of(x))
    return (*rows, *copy.loops[rank:])


def _row_loop(nest: Nest) -> str:
    """Return the loop along a row of pixels that the register tile contains."""
    pixels = nest.rows or nest.pixels
    return pixels[-1].of if pixels else [x for x in nest.around if x.role == "m"][-1].of


def window_place(
    st: Statement, loops: Loops, config: Config, nest: Nest
) -> tuple[tuple[Loop, ...], tuple[Windows, Windows, bool]]:
    """Return the loops around the copy of windows, which is made in the last of them, and the arguments of the copy.

    That loop is the innermost loop around the pixels of a row in whose iterations taps do not read a row twice; for
    rows that several taps read, it is the loop over cache tiles. A loop that runs once counts only if all loops do. The
    padding zeros of the copy are written once before the loop.
    """
    if not config.tiles_at("k_step") or st.residues:
        raise ConfigError(
            "stage", "--realise=window_copy: needs --k_step of a reduction loop, and strides that divide no loop"
        )
    joined, pixel = config.tiles_at("k_step")[0][0], _row_loop(nest)
    sizes = st.extents
    pixels, terms = (
        Windows(
            tuple((n, sizes[n]) for n in loops.dims[of]),
            tuple((x.name, x.tile) for x in nest.loops if x.of == of),
            sum((x.extent - 1) * x.tile for x in nest.loops if x.of == of) + 1,
        )
        for of in (pixel, joined)
    )
    shared = {axis for n in loops.of("k") if n != joined for axis in loops.axes[n]}
    places = [
        n for n, x in enumerate(nest.around)
        if x.role != "n" and x.of != pixel
        and (not shared & set(loops.axes[x.of]) or any(y.of == x.of for y in nest.around[n + 1 :]))
    ]  # fmt: skip
    repeated = [n for n in places if nest.around[n].extent > 1 or nest.around[n].of in loops.symbolic]
    around = nest.around[: (repeated or places)[-1] + 1] if places else ()
    if not around or any(x.of == pixel for x in around):
        raise ConfigError(
            "stage", f"--realise=window_copy: needs loop {pixel} of the register tile within a loop over images or "
            f"rows, not {', '.join(names(nest.around))}",
        )  # fmt: skip
    return around, (pixels, terms, config.threads == 1)
