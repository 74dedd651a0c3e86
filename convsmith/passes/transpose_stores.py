"""Transpose in registers the tiles of a result whose vectors would be scattered.

Vectors of accumulators run along one loop of a register tile, contiguous elements of the result along another. Tiles of
both loops are transposed in registers, so that contiguous vectors are stored.
"""

from __future__ import annotations

from collections.abc import Iterator

from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import Block, For, Kernel, Stmt, Store, block
from convsmith.ir.value import Load, Select, Value
from convsmith.ir.walk import children, statements_of, walk
from convsmith.passes.accesses import sites_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.flatten import offset
from convsmith.passes.order import require_order
from convsmith.passes.scope import ScopedRewriter, perfect_nest, with_body, wrap
from convsmith.passes.transpose import are_partial, through_registers


class _TransposeStores(ScopedRewriter):
    def __init__(self, along: str, lanes: str, shape: tuple[int, int], least: int, apart: int) -> None:
        super().__init__()
        self.along, self.lanes, self.shape, self.least, self.apart = along, lanes, shape, least, apart

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name == self.along and isinstance(loop.body, Block):
            return self.distributed(loop, loop.body)
        made = self.transposed(loop)
        return self._For(loop) if made is None else made

    def distributed(self, loop: For, body: Block) -> Stmt:
        """Return ``loop`` as a loop for each statement of its ``body``, if tiles of one of them are transposed: vectors
        that are full have a statement of their own beside the last ones.
        """
        if not all(isinstance(s, (Block, For, Store)) for s in statements_of(body)):
            return self._For(loop)
        nests = [For(loop.var, loop.lo, loop.hi, s, loop.kind, loop.carried) for s in body.stmts]
        made = [self.transposed(x) for x in nests]
        if all(x is None for x in made):
            return self._For(loop)
        sites, what = sites_of(loop, self.ranges), f"transpose_stores({self.along}, {self.lanes})"
        require_order(what, sites, lambda path: (path[1], path[0], *path[2:]), self.ranges)
        return block(*(self._For(x) if new is None else new for x, new in zip(nests, made)))

    def transposed(self, loop: For) -> Stmt | None:
        """Return the nest at ``loop`` with its tiles transposed; None if it is left as it is."""
        nest, s = perfect_nest(loop)
        found = {x.var.name: x for x in nest}
        if not isinstance(s, Store) or not {self.along, self.lanes} <= found.keys():
            return None
        along, lanes = found[self.along], found[self.lanes]
        part = self.moved(along, lanes, s)
        if part is None:
            return None
        outer = [x for x in nest if x is not along and x is not lanes]
        order = [nest.index(x) for x in (*outer, lanes, along)]
        sites, what = sites_of(loop, self.ranges), f"transpose_stores({self.along}, {self.lanes})"
        require_order(what, sites, lambda path: (*(path[n] for n in order), path[-1]), self.ranges)
        return wrap(outer, block(*self.pieces(along, lanes, s, part)))

    def moved(self, along: For, lanes: For, s: Store) -> Value | None:
        """Return the part of the value of ``s`` that is transposed; None if the nest is left as it is.

        Vectors of ``s`` along ``lanes`` are scattered then, while elements along the other loop are near. What the
        value reads in the same way is added after the transposition, to accumulators of neighbours.
        """
        if s.buffer.in_registers or not all(x.lo is as_index(0) and x.hi.is_const for x in (along, lanes)):
            return None
        if int(along.hi) < self.least or not self.is_far(s, along, lanes):
            return None
        parts = set(self.parts(s.value, along, lanes))
        own = [v for v in walk(s.value) if isinstance(v, Load) and v.buffer is s.buffer]
        if own and (len(parts) != 1 or any(v.index != s.index for v in own)):
            return None
        part = parts.pop() if len(parts) == 1 else s.value
        count = int(lanes.hi)
        fits = count == self.shape[1] or (1 < count < self.shape[1] and isinstance(part, Load))
        is_partial = all(are_partial(v, lanes, [], along) for v in walk(s.value) if isinstance(v, Select))
        return part if fits and is_partial else None

    def is_far(self, at: Load | Store, along: For, lanes: For) -> bool:
        """Return whether ``at`` accesses near elements of memory along ``along``, and distant ones along ``lanes``."""
        if at.buffer.in_registers:
            return False
        place = offset(at.buffer, at.index)
        step = _step(place, lanes.var)
        return _step(place, along.var) is as_index(self.apart) and step is not as_index(1) and step is not as_index(0)

    def parts(self, v: Value, along: For, lanes: For) -> Iterator[Value]:
        """Yield the largest parts of ``v`` that read accumulators and no distant elements of memory."""
        loads = [x for x in walk(v) if isinstance(x, Load)]
        if not any(x.buffer.in_registers for x in loads):
            return
        if not any(self.is_far(x, along, lanes) for x in loads):
            yield v
            return
        for child in children(v):
            if isinstance(child, Value):
                yield from self.parts(child, along, lanes)

    def pieces(self, along: For, lanes: For, s: Store, part: Value) -> list[Stmt]:
        """Return the transposed tiles, in equal parts of at most a vector's lanes."""
        count = int(along.hi)
        number = -(-count // self.shape[0])
        made: list[Stmt] = []
        for n in range(number):
            first, last = count * n // number, count * (n + 1) // number
            moved = {along.var: Var(along.var.name) + first}
            store = Store(s.buffer, tuple(substitute(i, moved) for i in s.index), substitute(s.value, moved))
            rows = For(along.var, as_index(0), as_index(last - first), store, along.kind)
            nest = [lanes, rows]
            made.append(through_registers(nest, store, self.shape, False, 0, part=substitute(part, moved)))
        return made


def _step(at: Index, loop: Var) -> Index:
    """Return the difference of an offset from one iteration of ``loop`` to the next; it may contain a size of the call.
    """
    following: Index = substitute(at, {loop: loop + 1})
    return following - at


@stages(*FLATTENED)
def transpose_stores(
    kernel: Kernel, along: str, lanes: str, shape: tuple[int, int], least: int = 2, apart: int = 1
) -> Kernel:  # fmt: skip
    """Transpose in registers the results of nests whose vectors, along the loop ``lanes``, are scattered in memory.

    Elements are contiguous, or ``apart``, along the loop ``along``, of at least ``least`` iterations. ``shape`` is the
    shape of the transposed tiles: elements along either loop. Operands that lie in memory like the result, such as an
    addend or the result itself, are read after the transposition. The statements of one loop ``along``, such as stores
    of full vectors and of the last ones, get loops of their own. A nest that reads other elements of the buffer that
    it writes is unchanged, as is a nest without constant bounds, one whose vectors are short and computed, or one that
    masks lanes otherwise than by zeros beside a run of lanes that is known.

    Before::

        kernel k(dst: f32[16])
          alloc acc: f32[3, 2, 2] @register:
            for i in 0 .. 3:
              for v in 0 .. 2:
                for l in 0 .. 2:
                  acc[i, v, l] = 1.0
            for i in 0 .. 3:
              for v in 0 .. 2:
                for l in 0 .. 2:
                  dst[i + l * 4 + v * 8] = acc[i, v, l] + 1.0

    After ``transpose_stores("i", "l", (4, 2))``::

        kernel k(dst: f32[16])
          alloc acc: f32[3, 2, 2] @register:
            for i in 0 .. 3:
              for v in 0 .. 2:
                for l in 0 .. 2:
                  acc[i, v, l] = 1.0
            for v in 0 .. 2:
              alloc dst_t: f32[4, 2] @register:
                alloc dst_u: f32[2, 4] @register:
                  for t.row in 0 .. 4 #unrolled:
                    for t.read in 0 .. 2:
                      dst_t[t.row, t.read] = (acc[t.row, v, t.read] + 1.0 if -t.row + 2 >= 0 else 0.0)
                  for t.k in 0 .. 2:
                    for t.m in 0 .. 4:
                      dst_u[t.k, t.m] = dst_t[t.m, t.k]
                  for t.column in 0 .. 2 #unrolled:
                    for t.write in 0 .. 3:
                      dst[t.column * 4 + t.write + v * 8] = dst_u[t.column, t.write]
    """
    return with_body(kernel, _TransposeStores(along, lanes, shape, least, apart).stmt(kernel.body))
