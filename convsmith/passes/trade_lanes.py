"""Let the lanes of a warp trade results before they store them, so that each lane stores neighbouring elements.

The sums of a product of matrices are spread over the lanes as the instruction leaves them. Where a lane has few
neighbours of a row, the lanes of a row write parts of sectors of memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from convsmith.arith.divisors import divisor_of
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Var, as_index
from convsmith.ir.instruction import FragmentLayout, Instruction, Operand
from convsmith.ir.rewrite import substitute
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import For, If, Invoke, Kernel, Stmt, Store, block
from convsmith.ir.value import Load, Select, Value, const, strided
from convsmith.ir.walk import variables_of, walk
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import LoopRewriter, allocate, perfect_nest, with_body, wrap
from convsmith.passes.spread_lanes import lane_operands

_SLICE = "slice"
"""Name of the loop over the slices of a fragment, each of which is computed, traded and stored before the next one."""


class _TradeLanes(LoopRewriter):
    def __init__(self, operands: Mapping[Buffer, Operand], rows: Sequence[Instruction]) -> None:
        super().__init__()
        self.operands, self.rows = operands, rows
        self.count = 0

    def visit_For(self, loop: For) -> Stmt:
        chain, body = perfect_nest(loop)
        conditions, s = [], body
        while isinstance(s, If):
            conditions.append(s.cond)
            s = s.body
        if not isinstance(s, Store) or s.buffer.scope != "global" or s.lanes is not None:
            return self._For(loop)
        fragments = {x.buffer: x for x in walk(s.value) if isinstance(x, Load) and x.buffer in self.operands}
        row = self._row(s, fragments.values())
        if row is None:
            return loop
        operand = self.operands[next(iter(fragments))]
        tail = fragments[next(iter(fragments))].index[-len(operand.shape) :]
        outer, inner = chain[: -len(tail)], chain[-len(tail) :]
        if tuple(x.var for x in inner) != tail or tuple(x.hi.const for x in inner) != operand.shape:
            return loop
        shape, column = row.result.shape, inner[-1]
        count = operand.shape[-1] // shape[-1]
        slices = For(Var(_SLICE), as_index(0), as_index(count), body, "unrolled")
        place = {column.var: (slices.var if count > 1 else as_index(0)) * shape[-1] + column.var}
        inner = [*inner[:-1], For(column.var, as_index(0), as_index(shape[-1]), body, column.kind)]
        own, traded = (
            make_buffer(f"{s.buffer.name}_{end}{self.count or ''}", s.buffer.dtype, shape, "fragment") for end in "ft"
        )
        self.count += 1
        value: Value = substitute(s.value, place)
        stored: Stmt = Store(s.buffer, tuple(substitute(x, place) for x in s.index), Load(traded, tail, None))
        for cond in (substitute(x, place) for x in reversed(conditions)):
            # All lanes trade: one whose own elements are not stored may have neighbours whose elements are.
            value = Select(cond, value, const(s.buffer.dtype, 0))
            stored = If(cond, stored)
        whole, start = strided(row.result.size, 1), (as_index(0),) * len(tail)
        trade = Invoke(row.name, Load(traded, start, whole), (Load(own, start, whole),))
        made = block(wrap(inner, Store(own, tail, value)), trade, wrap(inner, stored))
        return wrap((*outer, slices), allocate((own, traded), made))

    def _row(self, s: Store, loads: Collection[Load]) -> Instruction | None:
        """Return the row that trades the elements that ``s`` stores; None if a lane stores no more neighbours by it."""
        held = {self.operands[x.buffer].layout: self.operands[x.buffer].shape for x in loads}
        tails = {x.index[-len(self.operands[x.buffer].shape) :] for x in loads}
        if len(held) != 1 or len(tails) != 1:
            return None
        ((layout, shape),), column = held.items(), next(iter(tails))[-1]
        rest = s.index[-1] - column
        if not isinstance(column, Var) or column in variables_of(rest):
            return None
        for row in self.rows:
            given, result = row.operands[1], row.result
            is_slice = given.shape[:-1] == shape[:-1] and not shape[-1] % given.shape[-1]
            if is_slice and given.layout.is_part_of(layout) and given.dtype == s.buffer.dtype.name:
                run = neighbours(result.layout)
                if run > neighbours(given.layout) and divisor_of(rest, {}) % run == 0:
                    return row
        return None


def neighbours(layout: FragmentLayout) -> int:
    """Return how many elements of a lane follow each other along the last coordinate, from its first register on."""
    count = layout.registers * layout.elements
    first = layout.coordinates(0, 0, 0)
    for n in range(1, count):
        here = layout.coordinates(n // layout.elements, 0, n % layout.elements)
        if here[:-1] != first[:-1] or here[-1] != first[-1] + n:
            return n
    return count


@stages(*FLATTENED, ensures=TENSORISED)
def trade_lanes(kernel: Kernel, products: Sequence[Instruction], rows: Sequence[Instruction]) -> Kernel:
    """Store the results of ``products`` after their lanes have traded them by one of ``rows``.

    A row trades the elements of a slice of a fragment's columns. It is taken where a lane then stores more neighbours
    at a time, at an address that is a multiple of them. The elements of a slice are computed, traded and stored before
    those of the next one: if all of a fragment were computed first, each sum and its result would be in registers at
    once.

    Before::

        kernel k(a: f32[4], b: f32[8], dst: f32[32])
          for w in 0 .. 2 #warp:
            alloc acc: f32[2, 8] @fragment:
              for m in 0 .. 2:
                for l in 0 .. 8:
                  acc[m, l] = 1.0
              lane_product(acc[0, 0]{16}, a[w * 2]{2}, b[0]{8})
              for m in 0 .. 2:
                for l in 0 .. 8:
                  if -m - w * 2 + 2 >= 0:
                    dst[l + m * 8 + w * 16] = acc[m, l] + 1.0

    After ``trade_lanes((LANE_PRODUCT,), (LANE_TRADE,))``::

        kernel k(a: f32[4], b: f32[8], dst: f32[32])
          for w in 0 .. 2 #warp:
            alloc acc: f32[2, 8] @fragment:
              for m in 0 .. 2:
                for l in 0 .. 8:
                  acc[m, l] = 1.0
              lane_product(acc[0, 0]{16}, a[w * 2]{2}, b[0]{8})
              for slice in 0 .. 2 #unrolled:
                alloc dst_f: f32[2, 4] @fragment:
                  alloc dst_t: f32[2, 4] @fragment:
                    for m in 0 .. 2:
                      for l in 0 .. 4:
                        dst_f[m, l] = (acc[m, l + slice * 4] + 1.0 if -m - w * 2 + 2 >= 0 else 0.0)
                    lane_trade(dst_t[0, 0]{8}, dst_f[0, 0]{8})
                    for m in 0 .. 2:
                      for l in 0 .. 4:
                        if -m - w * 2 + 2 >= 0:
                          dst[l + m * 8 + slice * 4 + w * 16] = dst_t[m, l]
    """
    operands = lane_operands(kernel, products)
    return with_body(kernel, _TradeLanes(operands, rows).stmt(kernel.body)) if operands and rows else kernel
