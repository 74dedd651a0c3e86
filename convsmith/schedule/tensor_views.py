"""The tensor map that realises a view: the part of the tensor that a tile of a product reads in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from convsmith.arith.ranges import interval
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, floordiv, make_sum, mod
from convsmith.ir.rewrite import substitute
from convsmith.ir.tensor_map import TensorMap
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.device_costs import CopyEngine
from convsmith.passes.tensor_copies import MappedCopy
from convsmith.statement.statement import Statement, View


class TileLoop(NamedTuple):
    """The iterations of a loop of a statement in a tile: ``size`` of them from ``start`` on.

    ``dims`` are the dims that were fused to the loop, with their sizes, outermost first.
    """

    dims: tuple[tuple[str, int], ...]
    start: Index
    size: int


def view_flaw(view: View, inner: str, engine: CopyEngine) -> ConfigError | None:
    """Return the error if no tile of ``view`` can be copied in rows along the dim ``inner``, otherwise None."""
    blocks = view.layout.blocks
    if len({b.dim for b in blocks}) < len(blocks) or any(b.size != view.layout.shape[b.dim] for b in blocks):
        return _refuse(view, "has a blocked layout")
    if len(view.coords) > engine.dims:
        return _refuse(view, f"has {len(view.coords)} dims, at most {engine.dims}")
    strides = _strides(view, engine.alignment)
    nearest, *others = sorted(range(len(view.coords)), key=lambda d: strides[d])
    if strides[nearest] != 1 or Var(inner) not in variables_of(view.coords[nearest]):
        return _refuse(view, f"does not have neighbours along {inner}")
    for nbytes in (strides[d] * dtype(view.dtype).bytes for d in others):
        if nbytes % engine.alignment:
            return _refuse(view, f"has rows {nbytes} bytes apart, no multiple of {engine.alignment}")
    return None


def mapped_copy(
    st: Statement, view: View, tiles: Sequence[TileLoop], inner: str, engine: CopyEngine
) -> MappedCopy | ConfigError:  # fmt: skip
    """Return the copy of the elements of ``view`` that a step reads, in rows along the dim ``inner`` of the statement;
    or the error if no tensor map of the ``engine`` can bring it. It has the name of the array until the copy is made.

    ``tiles`` are the tiles of all loops.
    """
    if (flaw := view_flaw(view, inner, engine)) is not None:
        return flaw
    strides = _strides(view, engine.alignment)
    order = sorted(range(len(view.coords)), key=lambda d: strides[d])
    nbytes = dtype(view.dtype).bytes
    width = next((t.size for t in tiles if (inner, t.dims[0][1]) in t.dims and len(t.dims) == 1), None)
    if width is None:
        return _refuse(view, f"has neighbours along {inner} in blocks, which no tile alone crosses")
    row = next((n // nbytes for n in engine.widths if not width * nbytes % n), 0)
    if not row:
        return _refuse(view, f"needs rows of {width * nbytes} bytes, no multiple of {engine.widths[-1]}")
    size = st.extents[inner]
    if len(view.coords[order[0]].terms) > 1 and size % width:
        return _refuse(view, f"has neighbours beyond the {size} iterations of {inner}, which a tile of {width} brings")
    first = {Var(t.dims[0][0]): t.start for t in tiles if len(t.dims) == 1}
    fused = [t for t in tiles if len(t.dims) > 1 and any(_is_moved(x, t) for x in view.coords)]
    if len(fused) > 1:
        return _refuse(view, "is moved by several loops that were fused")
    dims, steps = tuple(view.layout.shape[d] for d in order), tuple(strides[d] for d in order)
    pieces = tuple(substitute(view.coords[order[0]], first) + n * row for n in range(width // row))
    if fused:
        return _im2col(st, view, order, TensorMap(dims, steps, (row,)), pieces, fused[0], first, engine)
    box = [row]
    for d in order[1:]:
        moving = [t for t in tiles if t.size > 1 and _is_moved(view.coords[d], t)]
        if len(moving) > 1 or not all(_is_contiguous(view.coords[d], t) for t in moving):
            return _refuse(view, f"has the coordinate {view.coords[d]}")
        box.append(moving[0].size if moving else 1)
    if max(box) > engine.box:
        return _refuse(view, f"needs a tile of {max(box)} elements along a dim, at most {engine.box}")
    at = tuple(substitute(view.coords[d], first) for d in order[1:])
    return MappedCopy(view.array, TensorMap(dims, steps, tuple(box)), pieces, at)


def _im2col(
    st: Statement, view: View, order: Sequence[int], whole: TensorMap, pieces: tuple[Index, ...], pixels: TileLoop,
    first: Mapping[Var, Index], engine: CopyEngine,
) -> MappedCopy | ConfigError:  # fmt: skip
    """Return the copy of a run of the pixels of a fused loop, or the error if no tensor map can bring them; ``whole``
    is the tensor, with the channels of a copy.
    """
    _, *spatial, image = order
    inner, names, counts = len(spatial), [n for n, _ in pixels.dims], dict(pixels.dims)
    ranges = {Var(d.name): (0, d.size - 1) for d in st.dims}
    origin = view.coords[image] - Var(names[0])
    is_known = 1 <= inner <= len(engine.corners) and len(names) == inner + 1
    if not is_known or variables_of(origin) & {Var(n) for n in names}:
        return _refuse(view, f"has images at {view.coords[image]} and {inner} dims between them and channels")
    (low, high), most = engine.corners[inner - 1], engine.offsets[inner - 1]
    lower, upper, steps, starts, offsets, outer = [], [], [], [], [], 1
    for d, loop in zip(spatial, reversed(names[1:])):
        terms = dict(view.coords[d].terms)
        step = terms.pop(Var(loop), 0)
        taps = make_sum(view.coords[d].const, terms)
        lo, hi = interval(taps, ranges)
        end = lo + (counts[loop] - 1) * step - (view.layout.shape[d] - 1)
        if not 1 <= step <= engine.steps or variables_of(taps) & {Var(n) for n in names}:
            return _refuse(view, f"has the coordinate {view.coords[d]}, of steps beyond 1 to {engine.steps}")
        if not (low <= lo <= high and low <= end <= high) or hi - lo > most:
            return _refuse(
                view, f"has corners {lo} and {end} and offsets up to {hi - lo}, beyond {low} to {high} and {most}"
            )
        lower.append(lo)
        upper.append(end)
        steps.append(step)
        offsets.append(substitute(taps - lo, first))
        starts.append(mod(floordiv(pixels.start, outer), counts[loop]) * step + lo)
        outer *= counts[loop]
    starts.append(floordiv(pixels.start, outer) + substitute(origin, first))
    if pixels.size > engine.pixels:
        return _refuse(view, f"needs {pixels.size} pixels in a copy, at most {engine.pixels}")
    made = TensorMap(whole.dims, whole.strides, whole.box, pixels.size, tuple(lower), tuple(upper), tuple(steps))
    return MappedCopy(view.array, made, pieces, tuple(starts), tuple(offsets))


def _refuse(view: View, why: str) -> ConfigError:
    return ConfigError("tensor-map", f"{view.name} {why}")


def _is_moved(coordinate: Index, tile: TileLoop) -> bool:
    return any(Var(n) in variables_of(coordinate) for n, _ in tile.dims)


def _is_contiguous(coordinate: Index, tile: TileLoop) -> bool:
    """Return whether a tile brings a run of elements along ``coordinate``, and nothing beyond the ends of its loop if
    other loops move the coordinate too.
    """
    (name, size), *others = tile.dims
    own, beside = Var(name), dict(coordinate.terms)
    if others or beside.pop(own, 0) != 1 or any(own in variables_of(x) for x in beside):
        return False
    return not beside or not size % tile.size


def _strides(view: View, alignment: int) -> dict[int, int]:
    """Return the stride of each dim of a tensor without blocks. A dim of one element gets a stride beyond all others, a
    multiple of ``alignment``.
    """
    found = {b.dim: b.stride for b in view.layout.blocks}
    reach = max((found[d] * n for d, n in enumerate(view.layout.shape) if n > 1), default=alignment)
    reach = -(-reach // alignment) * alignment
    alone = [d for d, n in enumerate(view.layout.shape) if n == 1]
    return {**found, **{d: reach * (n + 1) for n, d in enumerate(alone)}}
