"""Load fragments from shared memory by rows: each lane gives the address of a row, whose elements all lanes receive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from convsmith.arith.divisors import divisor_of
from convsmith.arith.evaluate import evaluate
from convsmith.arith.ranges import Range
from convsmith.arith.simplify import simplify
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index, floordiv, mod
from convsmith.ir.instruction import FragmentLayout, Instruction, Operand
from convsmith.ir.rewrite import substitute
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import For, Invoke, Kernel, Stmt, Store
from convsmith.ir.value import Load, strided
from convsmith.ir.walk import variables_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.flatten import offset
from convsmith.passes.scope import ScopedRewriter, loop_range, perfect_nest, with_body, wrap
from convsmith.passes.spread_lanes import LANE, lane_operands, values_at

MATRIX_ROWS = 8
"""Rows of a matrix that is loaded; a matrix fills one register of each lane."""
MAX_POINTS = 1 << 18
"""Maximum number of points at which places in memory are compared."""


class _LoadMatrices(ScopedRewriter):
    def __init__(self, operands: Mapping[Buffer, Operand], rows: Sequence[Instruction]) -> None:
        super().__init__()
        self.operands, self.rows = operands, rows

    def visit_For(self, loop: For) -> Stmt:
        chain, s = perfect_nest(loop)
        if not isinstance(s, Store) or s.buffer not in self.operands or not isinstance(s.value, Load):
            return self._For(loop)
        if s.value.buffer.scope != "shared" or s.value.lanes or s.lanes:
            return loop
        for row in self.rows:
            if row.result.dtype == s.buffer.dtype.name:
                made = self._loaded(row, chain, s, s.value)
                if made is not None:
                    return made
        return loop

    def _loaded(self, row: Instruction, chain: Sequence[For], s: Store, v: Load) -> Stmt | None:
        """Return the nest that loads the fragments by ``row``, None if memory does not have the required order."""
        operand, layout = self.operands[s.buffer], row.exchange
        assert layout is not None
        rank, count = len(operand.shape), operand.layout.registers
        lead, tail = s.index[:-rank], s.index[-rank:]
        element = {x for i in tail for x in variables_of(i)}
        outer = [x for x in chain if x.var not in element]
        sizes = {x.var: int(x.hi) for x in chain if x.var in element}
        if any(x.lo is not as_index(0) or not x.hi.is_const for x in chain) or len(outer) > 1:
            return None
        # The matrices that one load fills: the registers of a fragment, and of adjacent fragments if it has fewer.
        together = layout.registers // count
        if layout.registers % count or (together > 1 and (not outer or int(outer[0].hi) % together)):
            return None
        lane = Var(LANE)
        matrix, line = floordiv(lane, MATRIX_ROWS), mod(lane, MATRIX_ROWS)
        start = _row_start(operand.layout, layout, mod(matrix, count), line)
        along = _direction(operand.layout, layout)
        if along is None or operand.layout.elements != layout.elements:
            return None
        width = row.result.shape[0]
        ranges: dict[Var, Range] = dict(self.ranges)
        for x in chain:
            ranges[x.var] = loop_range(x, ranges)
        ranges[lane] = (0, operand.layout.lanes - 1)
        moved: dict[Var, Index] = {}
        if outer:
            moved[outer[0].var] = outer[0].var * together + floordiv(matrix, count)
            ranges[outer[0].var] = (0, int(outer[0].hi) // together - 1)
        start = tuple(simplify(x, ranges) for x in start)

        def at(n: int) -> Index:
            here = tuple(x + n * (d == along) for d, x in enumerate(start))
            return substitute(v.index[0], {**moved, **values_at(tail, here, sizes)})  # type: ignore[no-any-return]

        first = simplify(at(0), ranges)
        if divisor_of(first, {}) % width or not are_neighbours([*map(at, range(width))], ranges):
            return None
        step = int(offset(s.buffer, (*(as_index(0) for _ in lead), *(as_index(int(d == along)) for d in range(rank)))))
        place = (*(simplify(substitute(i, moved), ranges) for i in lead), *start)
        body: Stmt = Invoke(row.name, Load(s.buffer, place, strided(width, step)),
                            (Load(v.buffer, (first,), strided(width, 1)),))  # fmt: skip
        around = [For(x.var, x.lo, floordiv(x.hi, together), x.body, "unrolled") for x in outer]
        return For(lane, as_index(0), as_index(operand.layout.lanes), wrap(around, body), "lane")


def _row_start(
    fragment: FragmentLayout, exchange: FragmentLayout, register: Index, line: Index
) -> tuple[Index, ...]:
    """Return the coordinates of the first element of a row of the matrix that a register receives."""
    if exchange.is_plain:
        return fragment.coordinates(register, line * (exchange.lanes // MATRIX_ROWS), 0)
    return fragment.coordinates(register, floordiv(line, exchange.elements), mod(line, exchange.elements))


def are_neighbours(places: Sequence[Index], ranges: Mapping[Var, Range]) -> bool:
    """Return whether the ``places`` are contiguous for all values of the variables that their distances depend on,
    which are enumerated up to MAX_POINTS.
    """
    apart = [i - places[0] for i in places]
    used = sorted({v for i in apart for v in variables_of(i)}, key=str)
    if any(v not in ranges for v in used) or prod(hi - lo + 1 for lo, hi in map(ranges.__getitem__, used)) > MAX_POINTS:
        return False
    grids = np.meshgrid(*(np.arange(lo, hi + 1) for lo, hi in map(ranges.__getitem__, used)))
    return all(bool(np.all(np.asarray(evaluate(i, dict(zip(used, grids)))) == n)) for n, i in enumerate(apart))


def _direction(fragment: FragmentLayout, exchange: FragmentLayout) -> int | None:
    """Return the coordinate of a fragment along which a row of the matrix runs."""
    step = (0, 1) if exchange.is_plain else (exchange.lanes // MATRIX_ROWS, 0)
    apart = [b - a for a, b in zip(fragment.coordinates(0, 0, 0), fragment.coordinates(0, *step))]
    return next((n for n, x in enumerate(apart) if x is as_index(1)), None)


@stages(*FLATTENED, ensures=TENSORISED)
def load_matrices(kernel: Kernel, fragments: Sequence[Instruction], rows: Sequence[Instruction]) -> Kernel:
    """Fill fragments of the rows ``fragments`` from shared memory by the first of ``rows`` that can load them.

    A lane gives the place of a row of contiguous elements, and receives the elements of its registers from all lanes. A
    place is a multiple of the row's size.

    Before::

        kernel k(a: bf16[128], b: bf16[64], c: f32[128])
          alloc a_s: bf16[128] @shared:
            alloc b_s: bf16[64] @shared:
              for t in 0 .. 32 #group:
                for i in 0 .. 4:
                  a_s[i * 32 + t] = a[i * 32 + t]
                for i in 0 .. 2:
                  b_s[i * 32 + t] = b[i * 32 + t]
              for w in 0 .. 1 #warp:
                alloc sums: f32[16, 8] @fragment:
                  alloc a_f: bf16[16, 8] @fragment:
                    alloc b_f: bf16[8, 8] @fragment:
                      for m in 0 .. 16:
                        for l in 0 .. 8:
                          sums[m, l] = 0.0
                      for m in 0 .. 16:
                        for k in 0 .. 8:
                          a_f[m, k] = a_s[k + m * 8]
                      for k in 0 .. 8:
                        for l in 0 .. 8:
                          b_f[k, l] = b_s[k * 8 + l]
                      mma_m16n8k8_bf16(sums[0, 0]{128}, a_f[0, 0]{128}, b_f[0, 0]{64})
                      for m in 0 .. 16:
                        for l in 0 .. 8:
                          c[l + m * 8] = sums[m, l]

    After ``load_matrices((MMA,), LOADS)``::

        kernel k(a: bf16[128], b: bf16[64], c: f32[128])
          alloc a_s: bf16[128] @shared:
            alloc b_s: bf16[64] @shared:
              for t in 0 .. 32 #group:
                for i in 0 .. 4:
                  a_s[i * 32 + t] = a[i * 32 + t]
                for i in 0 .. 2:
                  b_s[i * 32 + t] = b[i * 32 + t]
              for w in 0 .. 1 #warp:
                alloc sums: f32[16, 8] @fragment:
                  alloc a_f: bf16[16, 8] @fragment:
                    alloc b_f: bf16[8, 8] @fragment:
                      for m in 0 .. 16:
                        for l in 0 .. 8:
                          sums[m, l] = 0.0
                      for lane in 0 .. 32 #lane:
                        ldmatrix_x2_bf16(a_f[lane % 16, 0]{8}, a_s[lane % 16 * 8]{8})
                      for lane in 0 .. 32 #lane:
                        ldmatrix_x1_trans_bf16(b_f[lane % 8, 0]{8}, b_s[lane % 8 * 8]{8})
                      mma_m16n8k8_bf16(sums[0, 0]{128}, a_f[0, 0]{128}, b_f[0, 0]{64})
                      for m in 0 .. 16:
                        for l in 0 .. 8:
                          c[l + m * 8] = sums[m, l]
    """
    operands = lane_operands(kernel, fragments)
    return with_body(kernel, _LoadMatrices(operands, rows).stmt(kernel.body)) if operands and rows else kernel
