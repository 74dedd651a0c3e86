"""The stores of a result's tiles by a copy engine, derived from the loops of a scheduled nest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.tensor_map import TensorMap
from convsmith.ir.types import dtype
from convsmith.machine.device_costs import CopyEngine
from convsmith.passes.stage_results import MappedResult, StoredPart
from convsmith.schedule.library.warp_groups import GroupTile
from convsmith.schedule.loops import Loop
from convsmith.statement.statement import Statement, View

__all__ = ["result_flaw", "stored_result"]


class _Step(NamedTuple):
    """A dim of the map of a result: iterations of loops of the statement, the elements between two of them, the part
    of a tile, and its first iteration.
    """

    size: int
    stride: int
    box: int
    start: Index


def result_flaw(st: Statement, loops: Sequence[Loop], engine: CopyEngine) -> ConfigError | None:
    """Return the error if no tiles of a result with rows and columns along ``loops`` can be stored, whatever the tile.
    """
    view, strides = st.c, _strides(st.c)
    if strides is None:
        return _refuse(view, "has a blocked layout, or elements that no loop alone moves")
    nbytes, sizes = dtype(view.dtype).bytes, st.extents
    nearest = [x.dims[-1] for x in loops if strides.get(x.dims[-1]) == 1]
    if not nearest:
        return _refuse(view, f"does not have neighbours along {' or '.join(x.dims[-1] for x in loops)}")
    for name, step in strides.items():
        if name != nearest[0] and sizes[name] > 1 and step * nbytes % engine.alignment:
            return _refuse(view, f"has rows {step * nbytes} bytes apart, no multiple of {engine.alignment}")
    for x, size in zip(view.coords, view.layout.shape):
        if sum(step * (sizes[str(v)] - 1) for v, step in x.terms) >= size:
            return _refuse(view, f"has iterations beyond its {size} elements along {x}")
    return None


def stored_result(
    st: Statement, tiled: GroupTile, engine: CopyEngine, parts: int = 1
) -> MappedResult | ConfigError:  # fmt: skip
    """Return the stores of the tiles of a result in so many ``parts`` of their columns, or the error, which names it,
    if no tensor map stores them.
    """
    view, nbytes = st.c, dtype(st.c.dtype).bytes
    row, column, _ = tiled.inner
    if tiled.parts:
        return _refuse(view, "is added up by groups")
    cut = next((x for x in (tiled.fragments, column) if not x.extent % parts and x.extent >= parts), None)
    if cut is None:
        return ConfigError(
            "store-parts", f"--store_parts={parts}: legal are divisors of {column.extent}, the columns of a product"
        )
    flaw = result_flaw(st, (row, column), engine)
    if flaw is not None:
        return flaw
    strides, sizes = _strides(view), st.extents
    assert strides is not None
    starts = {x.of: as_index(0) for x in tiled.grid}
    for x in tiled.grid:
        starts[x.of] += Var(x.name) * x.tile
    own = {row.of: tiled.warps.extent * row.extent, column.of: tiled.fragments.extent * column.extent // parts}
    dims: dict[str, tuple[str, ...]] = {x.of: x.dims for x in (*tiled.grid, row, column)}
    steps: dict[str, _Step] = {}
    for of, names in dims.items():
        moving = [n for n in names if sizes[n] > 1]
        if any(strides[a] != strides[b] * sizes[b] for a, b in pairwise(moving)):
            return _refuse(view, f"has iterations of {of} that are not evenly apart")
        count = prod(sizes[n] for n in names)
        stride = strides[moving[-1]] if moving else 0
        steps[of] = _Step(count, stride, own.get(of, 1), starts.get(of, as_index(0)))
    sides = ((tiled.fragments, column), (tiled.warps, row))
    sides = sides if strides.get(column.dims[-1]) == 1 else sides[::-1]
    return _mapped(view, sides, steps, engine, nbytes, (cut, parts))


def _mapped(
    view: View, sides: Sequence[tuple[Loop, Loop]], steps: Mapping[str, _Step], engine: CopyEngine, nbytes: int,
    cut: tuple[Loop, int],
) -> MappedResult | ConfigError:  # fmt: skip
    """Return the stores through a map with these dims; the first of the two ``sides`` of a tile, each of two loops, has
    neighbours in memory. A loop is ``cut`` into so many parts, to one of which the dim of its step belongs.
    """
    nearest, across = sides
    near = nearest[1].of
    columns = steps[near]
    width = next((n // nbytes for n in engine.widths if not columns.box * nbytes % n), 0)
    if not width:
        return _refuse(view, f"needs rows of {columns.box * nbytes} bytes, no multiple of {engine.widths[-1]}")
    reach = max(x.stride * x.size for x in steps.values())
    reach = -(-reach // engine.alignment) * engine.alignment
    dims = [(of, x._replace(stride=x.stride or reach)) for of, x in steps.items() if of != near]
    dims = sorted((x for x in dims if x[1].size > 1 or x[1].box > 1), key=lambda x: x[1].stride)
    others = [x for _, x in dims]
    if len(others) + 1 > engine.dims:
        return _refuse(view, f"needs a map of {len(others) + 1} dims, at most {engine.dims}")
    if max(x.box for x in others) > engine.box:
        return _refuse(view, f"needs a tile of {max(x.box for x in others)} rows, at most {engine.box}")
    made = TensorMap(
        (columns.size, *(x.size for x in others)), (1, *(x.stride for x in others)),
        (width, *(x.box for x in others)),
    )  # fmt: skip

    def part(number: int) -> StoredPart:
        first, *at = (x.start + (number * x.box if of == cut[0].of else 0) for of, x in ((near, columns), *dims))
        return StoredPart(tuple(first + n * width for n in range(columns.box // width)), tuple(at))

    loop, parts = cut
    return MappedResult(
        view.array, made, tuple(map(part, range(parts))), _names(*across), _names(*nearest), loop.name
    )  # fmt: skip


def _names(*loops: Loop) -> tuple[str, ...]:
    return tuple(x.name for x in loops)


def _strides(view: View) -> dict[str, int] | None:
    """Return the elements between two iterations of each dim of the statement that moves a view; None if its place is
    not their sum.
    """
    steps = {b.dim: b.stride for b in view.layout.blocks}
    if len(steps) < len(view.layout.blocks) or any(b.size != view.layout.shape[b.dim] for b in view.layout.blocks):
        return None
    found: dict[str, int] = {}
    for d, x in enumerate(view.coords):
        for v, step in x.terms:
            if x.const or not isinstance(v, Var) or step < 0:
                return None
            found[v.name] = found.get(v.name, 0) + step * steps.get(d, 0)
    return found


def _refuse(view: View, why: str) -> ConfigError:
    return ConfigError("tensor-map", f"--shared={view.name}: {view.name} {why}; legal is --shared= without it")
