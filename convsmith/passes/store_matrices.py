"""Store results to shared memory by rows: each lane gives the address of a row, whose elements all lanes hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convsmith.arith.divisors import divisor_of
from convsmith.arith.ranges import Range
from convsmith.arith.simplify import simplify
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index, floordiv, mod
from convsmith.ir.instruction import FragmentLayout, Instruction, Operand
from convsmith.ir.rewrite import substitute
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import THREAD_LOOPS, For, Invoke, Kernel, Stmt, Store, block
from convsmith.ir.value import Load, strided
from convsmith.ir.walk import variables_of, walk
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.flatten import offset
from convsmith.passes.load_matrices import MATRIX_ROWS, are_neighbours
from convsmith.passes.scope import ScopedRewriter, allocate, loop_range, perfect_nest, with_body, wrap
from convsmith.passes.spread_lanes import LANE, lane_operands

_WARP = 32
"""Lanes that store matrices together."""
_UNIT = "unit"
"""Name of the loop over the instructions that store a fragment, each a slice of its columns."""


class _StoreMatrices(ScopedRewriter):
    def __init__(self, operands: Mapping[Buffer, Operand], rows: Sequence[Instruction]) -> None:
        super().__init__()
        self.operands, self.rows = operands, rows
        self.count = 0

    def visit_For(self, loop: For) -> Stmt:
        chain, s = perfect_nest(loop)
        if not isinstance(s, Store) or s.buffer.scope != "shared" or s.lanes is not None:
            return self._For(loop)
        held = {x for x in walk(s.value) if isinstance(x, Load) and x.buffer in self.operands}
        if len({(self.operands[x.buffer].layout, x.index) for x in held}) != 1:
            return loop
        for row in self.rows:
            if row.result.dtype == s.buffer.dtype.name:
                made = self._stored(row, chain, s, next(iter(held)))
                if made is not None:
                    return made
        return loop

    def _stored(self, row: Instruction, chain: Sequence[For], s: Store, v: Load) -> Stmt | None:
        """Return the nests that compute the results in fragments like ``v``, and store these by ``row``; None if memory
        does not have the required order.
        """
        operand, layout = self.operands[v.buffer], row.exchange
        assert layout is not None
        rank, words = len(operand.shape), operand.layout.registers * operand.layout.elements // layout.elements
        tail = v.index[-rank:]
        own = [x for x in chain if x.var in variables_of(tail[-1]) or x.var in tail]
        sizes = {x.var: int(x.hi) for x in own}
        if any(x.lo is not as_index(0) or not x.hi.is_const for x in chain) or words % layout.registers:
            return None
        if operand.layout.lanes != layout.lanes or len(own) != rank or not (tail[-1] - own[-1].var).is_const:
            return None
        elements = (*sizes.values(),)
        if (*sizes,)[:-1] != tail[:-1] or elements[:-1] != operand.shape[:-1]:
            return None
        lane, unit, width = Var(LANE), Var(_UNIT), row.result.shape[0]
        along = _direction(operand.layout, layout)
        if along is None:
            return None
        columns = operand.shape[-1] * layout.registers // words
        units = elements[-1] // columns
        if elements[-1] % columns:
            return None
        ranges: dict[Var, Range] = dict(self.ranges)
        for x in chain:
            ranges[x.var] = loop_range(x, ranges)
        ranges |= {lane: (0, layout.lanes - 1), unit: (0, units - 1)}
        place = {own[-1].var: (unit if units > 1 else as_index(0)) * columns + own[-1].var}
        index = substitute(s.index[0], place)
        start = tuple(simplify(x, ranges) for x in _row_start(operand.layout, layout, lane))

        def at(n: int) -> Index:
            here = tuple(x + n * (d == along) for d, x in enumerate(start))
            return substitute(index, dict(zip(sizes, here)))  # type: ignore[no-any-return]

        first = simplify(at(0), ranges)
        if divisor_of(first, {}) % width or not are_neighbours([*map(at, range(width))], ranges):
            return None
        part = make_buffer(f"{s.buffer.name}_f{self.count or ''}", s.buffer.dtype, (*operand.shape[:-1], columns),
                           "fragment")  # fmt: skip
        self.count += 1
        step = int(offset(part, tuple(as_index(int(d == along)) for d in range(rank))))
        stored = Invoke(row.name, Load(s.buffer, (first,), strided(width, 1)),
                        (Load(part, start, strided(width, step)),))  # fmt: skip
        last = For(own[-1].var, as_index(0), as_index(columns), s, own[-1].kind)
        computed = wrap([*own[:-1], last], Store(part, (*sizes,), substitute(s.value, place)))
        lanes = For(lane, as_index(0), as_index(layout.lanes), stored, "lane")
        others = [x for x in chain if x not in own and x.kind not in THREAD_LOOPS]
        around = [For(x.var, x.lo, x.hi, x.body, "unrolled") for x in others]
        around.append(For(unit, as_index(0), as_index(units), s, "unrolled"))
        threads = [x for x in chain if x.kind in THREAD_LOOPS]
        return wrap([*threads, *around], allocate((part,), block(computed, lanes)))


def _row_start(fragment: FragmentLayout, exchange: FragmentLayout, lane: Index) -> tuple[Index, ...]:
    """Return the coordinates, in a slice of a fragment, of the first element of the row whose address a lane gives:
    that of the lane's number in the matrices of a warp, of which an instruction stores as many as lanes hold words of.
    """
    line, warp = mod(lane, MATRIX_ROWS), floordiv(lane, _WARP) * _WARP
    word = mod(floordiv(lane, MATRIX_ROWS), exchange.registers)
    first, beyond = as_index(0), as_index(0)
    if exchange.is_plain:
        first = line * (_WARP // MATRIX_ROWS)
    else:
        first, beyond = floordiv(line, exchange.elements), mod(line, exchange.elements)
    number = word * exchange.elements + beyond
    return fragment.coordinates(
        floordiv(number, fragment.elements), warp + first, mod(number, fragment.elements)
    )  # fmt: skip


def _direction(fragment: FragmentLayout, exchange: FragmentLayout) -> int | None:
    """Return the coordinate of a fragment along which a row of a matrix runs."""
    step = (0, 1, 0) if fragment.elements == 1 else (0, 0, 1)
    if exchange.is_plain and fragment.elements == 1:
        step = (1, 0, 0)
    elif not exchange.is_plain:
        step = (0, _WARP // MATRIX_ROWS, 0)
    apart = [b - a for a, b in zip(fragment.coordinates(0, 0, 0), fragment.coordinates(*step))]
    return next((n for n, x in enumerate(apart) if x is as_index(1)), None)


@stages(*FLATTENED, ensures=TENSORISED)
def store_matrices(kernel: Kernel, fragments: Sequence[Instruction], rows: Sequence[Instruction]) -> Kernel:
    """Store results of the rows ``fragments`` to shared memory by the first of ``rows`` that can store them.

    The results of a slice of columns, as many as an instruction stores, are computed in a fragment and then stored. A
    lane gives the place of a row of contiguous elements, a multiple of the row's size, to which all lanes of a warp
    store what they hold of the row.

    Before::

        kernel k(a: bf16[1024], b: bf16[256], c: bf16[1024])
          alloc a_s: bf16[1024] @shared:
            alloc b_s: bf16[256] @shared:
              alloc c_s: bf16[1024] @shared:
                alloc acc: f32[64, 16] @fragment:
                  tensor a_s[0] = a[0] dims(16:1, 64:16) box(16, 64) at(0, 0)
                  tensor b_s[0] = b[0] dims(16:1, 16:16) box(16, 16) at(0, 0)
                  for w in 0 .. 1 #warp:
                    for m in 0 .. 64:
                      for l in 0 .. 16:
                        acc[m, l] = 0.0
                    wgmma_m64n16k16_bf16(acc[0, 0]{1024}, a_s[0]{1024}, b_s[0]{256})
                  for w in 0 .. 1 #warp:
                    for m in 0 .. 64:
                      for l in 0 .. 16:
                        c_s[l + m * 16] = cast(bf16, acc[m, l])
                  tensor c[0] = c_s[0] dims(16:1, 64:16) box(16, 64) at(0, 0)

    After ``store_matrices((GROUP_PRODUCT,), STORES)``::

        kernel k(a: bf16[1024], b: bf16[256], c: bf16[1024])
          alloc a_s: bf16[1024] @shared:
            alloc b_s: bf16[256] @shared:
              alloc c_s: bf16[1024] @shared:
                alloc acc: f32[64, 16] @fragment:
                  tensor a_s[0] = a[0] dims(16:1, 64:16) box(16, 64) at(0, 0)
                  tensor b_s[0] = b[0] dims(16:1, 16:16) box(16, 16) at(0, 0)
                  for w in 0 .. 1 #warp:
                    for m in 0 .. 64:
                      for l in 0 .. 16:
                        acc[m, l] = 0.0
                    wgmma_m64n16k16_bf16(acc[0, 0]{1024}, a_s[0]{1024}, b_s[0]{256})
                  for w in 0 .. 1 #warp:
                    for unit in 0 .. 1 #unrolled:
                      alloc c_s_f: bf16[64, 16] @fragment:
                        for m in 0 .. 64:
                          for l in 0 .. 16:
                            c_s_f[m, l] = cast(bf16, acc[m, l])
                        for lane in 0 .. 128 #lane:
                          stmatrix_x4_bf16(c_s[(lane // 16) % 2 * 8 + lane % 16 * 16 + lane // 32 * 256]{8}, c_s_f[lane % 16 + lane // 32 * 16, (lane // 16) % 2 * 8]{8})
                  tensor c[0] = c_s[0] dims(16:1, 64:16) box(16, 64) at(0, 0)
    """  # noqa: E501
    operands = lane_operands(kernel, fragments)
    return with_body(kernel, _StoreMatrices(operands, rows).stmt(kernel.body)) if operands and rows else kernel
