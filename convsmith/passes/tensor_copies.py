"""Replace nests that copy to shared memory by copies through the copy engine (TMA).

The plan derives the tensor map of each copy from the view that the copy realises. Before it replaces a nest, the pass
compares the elements that the map brings with the elements that the nest copies, at some iterations of the loops
around.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Any, NamedTuple

import numpy as np

from convsmith.arith.evaluate import evaluate, holds
from convsmith.arith.ranges import Range
from convsmith.arith.tensor_maps import copied_rows
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Cond, Index, Var, as_index
from convsmith.ir.stmt import FENCES, For, Kernel, Stmt, Store, TensorCopy, block
from convsmith.ir.tensor_map import TensorMap
from convsmith.ir.value import Load, Select, Value
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.flatten import offset
from convsmith.passes.scope import ScopedRewriter, perfect_nest, require_no_effects, with_body

COMPARED = 4
"""Number of iterations of the loops around a copy at which its elements are compared, besides the first and the last.
"""
MOST_DRAWN = 32
"""Most iterations that are drawn for each one that is compared: loops do not run all of them."""


class MappedCopy(NamedTuple):
    """The copies to the buffer ``name``: their tensor map, and the coordinates of the parts that they bring.

    A copy brings the elements of one of the ``pieces``, the innermost coordinates; ``at`` are the remaining
    coordinates. No result needs an element for which ``needed``, a condition on the loops of the replaced nest, is
    false.
    """

    name: str
    map: TensorMap
    pieces: tuple[Index, ...]
    at: tuple[Index, ...]
    offsets: tuple[Index, ...] = ()
    needed: Cond | None = None


class _TensorCopies(ScopedRewriter):
    def __init__(self, copies: Sequence[MappedCopy]) -> None:
        super().__init__()
        self.copies = {x.name: x for x in copies}
        self.replaced: set[str] = set()
        self.around: list[For] = []

    def visit_For(self, loop: For) -> Stmt:
        loops, s = perfect_nest(loop)
        if not isinstance(s, Store) or s.buffer.name not in self.copies or s.lanes is not None:
            self.around.append(loop)
            made = self._For(loop)
            self.around.pop()
            return made
        copy = self.copies[s.buffer.name]
        read = s.value.yes if isinstance(s.value, Select) else s.value
        if not isinstance(read, Load) or any(x.lo.terms or x.hi.terms or x.lo.const for x in loops):
            raise ConfigError("tensor-map", f"tensor_copies: `{s}` is no copy of elements in loops from 0")
        self._require_same(loops, s, read, copy)
        self.replaced.add(copy.name)
        zero = as_index(0)
        src = Load(read.buffer, (zero,) * len(read.buffer.shape), None)
        out: list[Stmt] = []
        for n, piece in enumerate(copy.pieces):
            index = _coordinates(n * copy.map.size, s.buffer.shape)
            out.append(TensorCopy(Load(s.buffer, index, None), src, copy.map, (piece, *copy.at), copy.offsets))
        return block(*out)

    def _require_same(self, loops: Sequence[For], s: Store, read: Load, copy: MappedCopy) -> None:
        """Raise ConfigError if the map brings elements that differ from those of the nest ``s``."""
        own: dict[Var, Range] = {x.var: (0, x.hi.const - 1) for x in loops}
        grids = np.meshgrid(*(np.arange(hi + 1) for _, hi in own.values()), indexing="ij")
        around = {v: r for v, r in self.ranges.items() if v not in own}
        for point in drawn_points(around, self.around):
            values = {**point, **{v: g.ravel() for v, g in zip(own, grids)}}
            to, of = (_places(v, values) for v in (Load(s.buffer, s.index, None), read))
            present = np.broadcast_to(_present(s.value, values), to.shape)
            pieces, at, moved = (
                [int(evaluate(i, point)) for i in group] for group in (copy.pieces, copy.at, copy.offsets)
            )
            parts = [_copied(copy.map, (piece, *at), moved) for piece in pieces]
            places, inside = (np.concatenate(x) for x in zip(*parts))
            order = np.argsort(to)
            same = len(places) == len(to) and (to[order] == np.arange(len(to))).all()
            needed = np.broadcast_to(True if copy.needed is None else holds(copy.needed, values), to.shape)[order]
            other = (inside != present[order]) | (inside & (places != of[order])) if same else needed
            if not same or (other & needed).any():
                raise ConfigError(
                    "tensor-map", f"tensor_copies: the map of {copy.name} brings other elements than its nest at "
                    f"{point}",
                )  # fmt: skip


def drawn_points(ranges: Mapping[Var, Range], loops: Sequence[For]) -> Iterator[dict[Var, int]]:
    """Yield iterations of ``loops`` within ``ranges``, among them the first and the last one: those that run, because
    the end of one loop may depend on others.
    """

    def is_run(point: Mapping[Var, int]) -> bool:
        return all(evaluate(x.lo, point) <= point[x.var] < evaluate(x.hi, point) for x in loops)

    random = Random(0)
    points = [{v: r[end] for v, r in ranges.items()} for end in (0, 1)]
    drawn = ({v: random.randint(*r) for v, r in ranges.items()} for _ in range(COMPARED * MOST_DRAWN))
    yield from (*filter(is_run, points), *islice(filter(is_run, drawn), COMPARED))


def _copied(of: TensorMap, at: Sequence[int], offsets: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the offset in the tensor of each element of a copy, and whether the element is in the tensor."""
    rows = copied_rows(of, at, offsets)
    channels = at[0] + np.arange(of.box[0])
    present = np.array([x is not None for x in rows])[:, None] & (channels >= 0) & (channels < of.dims[0])
    places = np.array([x or 0 for x in rows])[:, None] + channels * of.strides[0]
    return places.ravel(), present.ravel()


def _coordinates(place: int, shape: Sequence[int]) -> tuple[Index, ...]:
    """Return the coordinates of the element at a ``place`` of a dense buffer of that ``shape``."""
    found: list[Index] = []
    for size in reversed(shape):
        place, x = divmod(place, size)
        found.append(as_index(x))
    return tuple(reversed(found))


def _places(v: Load, values: Mapping[Var, Any]) -> np.ndarray:
    count = len(next(iter(x for x in values.values() if isinstance(x, np.ndarray))))
    return np.broadcast_to(evaluate(offset(v.buffer, v.index), values), (count,))


def _present(v: Value, values: Mapping[Var, Any]) -> Any:
    return holds(v.cond, values) if isinstance(v, Select) else True


@stages(*LOOPS)
def tensor_copies(kernel: Kernel, copies: Sequence[MappedCopy]) -> Kernel:
    """Replace the nest that fills each of the buffers of ``copies`` by a copy through its tensor map.

    ConfigError if a map brings elements that differ from those of the nest.

    Before::

        kernel k(a: f32[5, 8], c: f32[2, 4, 4])
          for i in 0 .. 2:
            alloc s: f32[4, 4] @shared:
              for x in 0 .. 4:
                for y in 0 .. 4:
                  s[x, y] = (a[i * 4 + x, y + 4] if -i * 4 - x + 4 >= 0 else 0.0)
              for x in 0 .. 4:
                c[i, x, 0] = s[x, 1]

    After ``tensor_copies(MAPS)``::

        kernel k(a: f32[5, 8], c: f32[2, 4, 4])
          for i in 0 .. 2:
            alloc s: f32[4, 4] @shared:
              tensor s[0, 0] = a[0, 0] dims(8:1, 5:8) box(4, 4) at(4, i * 4)
              for x in 0 .. 4:
                c[i, x, 0] = s[x, 1]
    """
    require_no_effects(kernel, "tensor_copies", FENCES)
    rewriter = _TensorCopies(copies)
    body = rewriter.stmt(kernel.body)
    if missing := rewriter.copies.keys() - rewriter.replaced:
        raise ConfigError("tensor-map", f"tensor_copies: no nest of loops copies to {min(missing)}")
    return with_body(kernel, body)
