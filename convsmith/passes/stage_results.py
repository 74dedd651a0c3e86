"""Let results leave through shared memory: threads write a tile there, and the copy engine stores it to its tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from convsmith.arith.evaluate import evaluate, holds
from convsmith.arith.ranges import Range
from convsmith.arith.tensor_maps import copied_rows
from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Cond, Index, Var, as_index, conj, floordiv, mod
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import FENCES, THREAD_LOOPS, For, If, Kernel, Stmt, Store, TensorCopy, block
from convsmith.ir.tensor_map import TensorMap
from convsmith.ir.value import Load, Select, const
from convsmith.ir.walk import walk
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.flatten import offset
from convsmith.passes.scope import (
    LoopRewriter,
    allocate,
    perfect_nest,
    require_new_buffer,
    require_no_effects,
    with_body,
    wrap,
)
from convsmith.passes.tensor_copies import drawn_points


@record(frozen=True)
class StoredPart:
    """The coordinates of the stores of a part of a tile: each store takes the elements of one of the ``pieces``, the
    innermost coordinates; ``at`` are the remaining coordinates.
    """

    pieces: tuple[Index, ...]
    at: tuple[Index, ...]


@record(frozen=True)
class MappedResult:
    """The stores of tiles of the array ``name`` through a tensor map.

    The loops ``rows`` and ``columns``, outermost first, run over a tile; the iterations of the loop ``cut`` are divided
    into the ``parts``, which are stored one after the other.
    """

    name: str
    map: TensorMap
    parts: tuple[StoredPart, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cut: str = ""


class _StageResults(LoopRewriter):
    def __init__(self, result: MappedResult) -> None:
        super().__init__()
        self.result = result
        self.is_replaced = False

    def visit_For(self, loop: For) -> Stmt:
        chain, s = perfect_nest(loop)
        conditions: list[Cond] = []
        while isinstance(s, If):
            conditions.append(s.cond)
            s = s.body
        names = {x.var.name for x in chain}
        own = {*self.result.rows, *self.result.columns}
        if not isinstance(s, Store) or s.buffer.name != self.result.name or not own <= names:
            return self._For(loop)
        around = [x for x in chain if x.var.name not in own]
        if chain[: len(around)] != around or any(x.kind in THREAD_LOOPS for x in around):
            return self._For(loop)
        if around:
            body = self.inside(*around)
            return wrap(around, body)
        self.is_replaced = True
        return self._staged(chain, conj(conditions), s)

    def _staged(self, chain: Sequence[For], cond: Cond, s: Store) -> Stmt:
        """Return the nests that write the parts of a tile to shared memory, each followed by the stores of its pieces.
        """
        m, parts = self.result.map, self.result.parts
        if any(x.lo.terms or x.lo.const or x.hi.terms for x in chain):
            raise ConfigError("tensor-map", f"stage_results: `{s}` is not in loops from 0 over a tile")
        lengths = {x.var.name: x.hi.const // (len(parts) if x.var.name == self.result.cut else 1) for x in chain}
        row, column = (_position(names, lengths) for names in (self.result.rows, self.result.columns))
        shape = (len(parts[0].pieces), m.rows, m.box[0])
        staged = make_buffer(f"{s.buffer.name}_s", s.buffer.dtype, shape, "shared")
        index = (floordiv(column, m.box[0]), row, mod(column, m.box[0]))
        own = [For(x.var, x.lo, as_index(lengths[x.var.name]), x.body, x.kind) for x in chain]
        dst, out = Load(s.buffer, (as_index(0),) * len(s.buffer.shape), None), list[Stmt]()
        for n, part in enumerate(parts):
            there = {x.var: x.var + n * lengths[x.var.name] for x in chain if x.var.name == self.result.cut}
            holds, stored = (substitute(x, there) for x in (cond, s))
            self._require_same(own, holds, stored, part, staged, index)
            value = stored.value
            if any(isinstance(x, Load) and not x.buffer.in_registers for x in walk(value)):
                value = Select(holds, value, const(s.buffer.dtype, 0))
            out.append(wrap(own, Store(staged, index, value)))
            for number, piece in enumerate(part.pieces):
                src = Load(staged, (as_index(number), as_index(0), as_index(0)), None)
                out.append(TensorCopy(dst, src, m, (piece, *part.at)))
        return allocate((staged,), block(*out))

    def _require_same(
        self, chain: Sequence[For], cond: Cond, s: Store, part: StoredPart, staged: Buffer, index: tuple[Index, ...]
    ) -> None:  # fmt: skip
        """Raise ConfigError if the stores of the map write other elements than those of the nest."""
        own: dict[Var, Range] = {x.var: (0, x.hi.const - 1) for x in chain}
        grids = np.meshgrid(*(np.arange(hi + 1) for _, hi in own.values()), indexing="ij")
        m = self.result.map
        for point in drawn_points({v: r for v, r in self.ranges.items() if v not in own}, self.loops_around):
            values = {**point, **{v: g.ravel() for v, g in zip(own, grids)}}
            count = grids[0].size
            to, of = (
                np.broadcast_to(np.asarray(evaluate(offset(b, i), values)), (count,))
                for b, i in ((staged, index), (s.buffer, s.index))
            )
            present = np.broadcast_to(holds(cond, values), (count,))
            places, inside = [], []
            for piece in part.pieces:
                at = [int(evaluate(i, point)) for i in (piece, *part.at)]
                columns = at[0] + np.arange(m.box[0])
                for first in copied_rows(m, at, ()):
                    inside.append((columns >= 0) & (columns < m.dims[0]) & (first is not None))
                    places.append((first or 0) + columns * m.strides[0])
            order = np.argsort(to)
            stored, there = np.concatenate(places), np.concatenate(inside)
            same = len(stored) == count and (to[order] == np.arange(count)).all() and (there == present[order]).all()
            if not same or (stored != of[order])[there].any():
                raise ConfigError(
                    "tensor-map", f"stage_results: the map of {s.buffer.name} stores other elements than its nest at "
                    f"{point}",
                )  # fmt: skip

    @property
    def loops_around(self) -> list[For]:
        """The loops around the nest."""
        return [x for x in self.around if isinstance(x, For)]


def _position(names: Sequence[str], lengths: Mapping[str, int]) -> Index:
    """Return the number of an iteration of nested loops of ``lengths``, outermost first."""
    number = as_index(0)
    for name in names:
        number = number * lengths[name] + Var(name)
    return number


@stages(*LOOPS)
def stage_results(kernel: Kernel, result: MappedResult) -> Kernel:
    """Write each tile of a result to shared memory, from where a copy engine stores it through its tensor map.

    A store writes no element outside of the tensor, so that the nest over the tile needs no guard. A result in several
    parts has a nest for each, which write to the same memory. ConfigError if the map stores other elements than the
    nest.

    Before::

        kernel k(a: f32[6], c: f32[5, 4])
          for i in 0 .. 3:
            for x in 0 .. 2:
              for y in 0 .. 4:
                if -i * 2 - x + 4 >= 0:
                  c[i * 2 + x, y] = a[i * 2 + x]

    After ``stage_results(RESULT)``::

        kernel k(a: f32[6], c: f32[5, 4])
          for i in 0 .. 3:
            alloc c_s: f32[2, 2, 2] @shared:
              for x in 0 .. 2:
                for y in 0 .. 4:
                  c_s[y // 2, x, y % 2] = (a[i * 2 + x] if -i * 2 - x + 4 >= 0 else 0.0)
              tensor c[0, 0] = c_s[0, 0, 0] dims(4:1, 5:4) box(2, 2) at(0, i * 2)
              tensor c[0, 0] = c_s[1, 0, 0] dims(4:1, 5:4) box(2, 2) at(2, i * 2)
    """
    require_no_effects(kernel, "stage_results", FENCES)
    require_new_buffer(kernel, f"{result.name}_s", "stage_results")
    rewriter = _StageResults(result)
    body = rewriter.stmt(kernel.body)
    if not rewriter.is_replaced:
        raise ConfigError("tensor-map", f"stage_results: no nest of loops over a tile writes {result.name}")
    return with_body(kernel, body)
