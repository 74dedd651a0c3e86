"""Copies of operands in the shared memory of a group: their boxes, which dim is contiguous, and their layouts."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from convsmith.arith.ranges import interval
from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import FloorDiv, Index, Var
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.passes.buffer_layouts import BufferLayout, InnerBlocks, LongRows, RotatedRows
from convsmith.passes.footprint import dense_blocks
from convsmith.schedule.config import Config
from convsmith.schedule.group_fragments import WarpTile
from convsmith.schedule.loops import Loops, fused_dims, tile_of
from convsmith.schedule.nest import Nest
from convsmith.statement.statement import Statement, View


def shared_bytes(st: Statement, loops: Loops, config: Config, nest: Nest) -> dict[str, int]:
    """Return the bytes of shared memory for the copy of each operand: the box of elements that a group tile reads.
    ConfigError if a copy cannot have its layout.
    """
    found = {}
    for view in (v for v in st.factors if v.name in config.staged("shared")):
        shape = copy_shape(st, view, loops, config)
        blocks = dense_blocks(view.layout.blocks, shape, innermost(st, view, nest, config))
        copy = Buffer(view.array, dtype(view.dtype), tuple(shape), blocks, "shared")
        if (layout := copy_layout(st, view, loops, config, nest)) is not None:
            copy, _ = layout.of(copy)
        found[view.name] = copy.nbytes * config.buffers
    return found


def copy_layout(st: Statement, view: View, loops: Loops, config: Config, nest: Nest) -> BufferLayout | None:
    """Return the layout of a view's copy that ``config`` names, None without one; ConfigError if it cannot have it."""
    given = next((x.layout for x in config.stagings if (x.scope, x.operand) == ("shared", view.name)), None)
    if given is None:
        return None
    kind, elements = given
    if kind != "fragments":
        return LongRows(elements) if kind == "pad" else RotatedRows(elements)
    found = fragment_blocks(st, view, loops, config, nest)
    if isinstance(found, InnerBlocks) and nest.warp is not None and elements == nest.warp.row.terms:
        return found
    why = found if isinstance(found, str) else f"legal are the terms of the instruction, {nest.unit.terms}"
    raise ConfigError("fragments", f"--fragments={view.name}:{elements}: {why}")


def fragment_blocks(st: Statement, view: View, loops: Loops, config: Config, nest: Nest) -> InnerBlocks | str:
    """Return the layout of a view's copy in which block messages find the registers of fragments side by side, or the
    reason why it has none.

    Blocks of the right factor have terms and columns, those of the left factor terms alone: a row follows the row
    before it, also where these are pixels with a halo. Pixels that a stride skips lie elsewhere.
    """
    warp = nest.warp
    if warp is None or not warp.by_blocks:
        return "needs an --instruction= on fragments whose registers a message loads"
    columns = {Var(d) for x in warp.columns for d in x.dims}
    is_right = any(columns & variables_of(x) for x in view.coords)
    along = {1 - is_right: warp.terms[-1]} | ({1: warp.columns[-1]} if is_right else {})
    tiles = group_tiles(loops, config, {Var(d.name): d.size for d in st.dims})
    found = []
    for coordinate, size in warp.row.operands[1 + is_right].layout.digits:
        if coordinate not in along:
            continue
        loop = along[coordinate]
        dim = next((n for n, x in enumerate(view.coords) if Var(loop.dims[-1]) in variables_of(x)), None)
        if dim is None:
            return f"no dim of {view.name} follows {loop.dims[-1]}, the innermost part of {loop.of}"
        moving = [(a, step) for a, step in view.coords[dim].terms if any(tiles[v] > 1 for v in variables_of(a))]
        whole = warp.row.operands[1 + is_right].shape[coordinate]
        if moving != [(Var(loop.dims[-1]), 1)] or loop.extent % whole:
            return (
                f"a fragment has {whole} iterations of {loop.of} in a row of {view.name}, the loop has {loop.extent}, "
                f"and {view.coords[dim]} is the place of an element"
            )  # fmt: skip
        found.append((dim, size))
    return InnerBlocks(tuple(found), () if is_right else _skipped(view, warp))


def registers_together(st: Statement, loops: Loops, config: Config, nest: Nest) -> tuple[int, int]:
    """Return the registers of a fragment of the left factor, and of the right one, that lie side by side in the copies
    of ``config``: of the left factor, rows along the innermost loop of a warp's rows, and along the next one where no
    halo lies between them.
    """
    assert nest.warp is not None
    blocked = {name for name, _ in config.layouts("fragments")}
    columns = {Var(d) for x in nest.warp.columns for d in x.dims}
    found = [1, 1]
    for view in (v for v in st.factors if v.name in blocked):
        is_right = any(columns & variables_of(x) for x in view.coords)
        count = nest.warp.row.operands[1 + is_right].layout.registers
        found[is_right] = count if is_right else gcd(_adjacent_rows(st, view, loops, config, nest.warp), count)
    return found[0], found[1]


def _adjacent_rows(st: Statement, view: View, loops: Loops, config: Config, warp: WarpTile) -> int:
    """Return the number of a warp's rows that follow each other in the copy of a view."""
    shape, classes, rows = copy_shape(st, view, loops, config), dict(_skipped(view, warp)), 1
    for x in reversed(warp.rows):
        rows *= x.extent
        dims = [n for n, c in enumerate(view.coords) if Var(x.dims[-1]) in variables_of(c)]
        if any(-(-shape[n] // classes.get(n, 1)) != x.extent for n in dims):
            break
    return rows


def _skipped(view: View, warp: WarpTile) -> tuple[tuple[int, int], ...]:
    """Return the dims of a view along which adjacent rows of a warp are further apart than one, with the distance."""
    rows = {Var(x.dims[-1]) for x in warp.rows}
    steps = [(dim, abs(step)) for dim, x in enumerate(view.coords) for a, step in x.terms if a in rows]
    return tuple({dim: step for dim, step in steps if step > 1}.items())


def copy_shape(st: Statement, view: View, loops: Loops, config: Config) -> list[int]:
    """Return the extents of the box of a view that a group tile reads."""
    sizes = {Var(d.name): d.size for d in st.dims}
    tiles, apart = group_tiles(loops, config, sizes), loops.residues
    reached = (
        interval(x, {v: (0, (n - 1) * apart.get(v.name, 1)) for v, n in _moving(x, tiles, sizes, apart).items()})
        for x in view.coords
    )
    return [hi - lo + 1 for lo, hi in reached]


def group_tiles(loops: Loops, config: Config, sizes: Mapping[Var, int]) -> dict[Var, int]:
    """Return the iterations of each dim, of these ``sizes``, in the tile of a group.

    A tile of a fused loop covers a part of the innermost dim that it divides, or whole inner dims and a part of the
    next dim if they divide it, or otherwise all iterations. Dims of one iteration are constant.
    """
    found: dict[Var, int] = dict.fromkeys(sizes, 1)
    for n, dims in loops.dims.items():
        outermost, *inner = [d for d in dims if sizes[Var(d)] > 1] or dims[-1:]
        tile = tile_of(loops, config, n)[0]
        beyond, is_even = -(-loops.extents[n] // tile) * tile, True
        for dim in reversed(inner):
            size = sizes[Var(dim)]
            beyond = -(-beyond // size)
            is_even = is_even and not (size % tile and tile % size)
            found[Var(dim)] = min(size, tile) if is_even else size
            tile = max(tile // size, 1)
        found[Var(outermost)] = tile if is_even else beyond
    return found


def _moving(
    coordinate: Index, tiles: Mapping[Var, int], sizes: Mapping[Var, int], apart: Mapping[str, int]
) -> Mapping[Var, int]:
    """Return the distance by which each variable moves a coordinate of a copy: through its tile, or over the full range
    if steps from tile to tile are divided with a remainder. Iterations of a residue class have the distance ``apart``.
    """
    whole: dict[Var, int] = {}
    for atom, _ in coordinate.terms:
        if isinstance(atom, FloorDiv):
            for v, c in atom.num.terms:
                if isinstance(v, Var) and tiles[v] < sizes[v] and c * tiles[v] * apart.get(v.name, 1) % atom.den:
                    whole[v] = -(-sizes[v] // tiles[v]) * tiles[v]
    return {**tiles, **whole}


def innermost(st: Statement, view: View, nest: Nest, config: Config) -> int | None:
    """Return the dim along which the elements of a view's copy are contiguous: the lanes, the terms of fragments, or
    the contiguous dim of memory if loads of matrices transpose it.
    """
    if nest.warp is None:
        lanes = along_lanes(view, config)
        vectors = [Var(fused_dims(config, n)[-1]) for n, _ in config.tiles_at("vectors")]
        found = (n for n, x in enumerate(view.coords) if any(v in variables_of(x) for v in vectors))
        return next(found, None) if lanes is None else lanes
    nearest = view.layout.contiguous
    rows = nest.warp.transposed.get(dtype(view.dtype).name)
    if nearest is not None and rows is not None:
        moving = {Var(d): x.extent for x in (*nest.warp.rows, *nest.warp.columns) for d in x.dims}
        terms = view.coords[nearest.dim].terms
        if len(terms) == 1 and not moving.get(terms[0][0], 1) % rows and not view.coords[nearest.dim].const:  # type: ignore[call-overload]
            return nearest.dim
    last = Var(nest.warp.terms[-1].dims[-1])
    return next((n for n, x in enumerate(view.coords) if last in variables_of(x)), None)


def along_lanes(view: View, config: Config) -> int | None:
    """Return the dim of a view along which adjacent threads read, or None."""
    dims = fused_dims(config, config.lane)
    return next((n for n, x in enumerate(view.coords) if Var(dims[-1]) in variables_of(x)), None)
