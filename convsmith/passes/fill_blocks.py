"""Let the stores of the last channels also write the zeros in the padding of a blocked layout.

A separate nest would write these zeros element by element, after the caches have evicted the lines of the result. The
vectors of the last channels are on the same lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, as_index
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Alloc, Block, For, If, Invoke, Kernel, Let, PointerLoad, Stmt, Store, block
from convsmith.ir.value import Const, Lanes, Load, Value
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import with_body


class _Zeros(NamedTuple):
    """``nest`` writes ``vectors`` runs of ``lanes`` adjacent zeros."""

    nest: For
    vectors: int
    lanes: int


def _extent(loop: For) -> int | None:
    """Return the iterations of ``loop``; None if its bounds are not constant."""
    return loop.hi.const - loop.lo.const if loop.lo.is_const and loop.hi.is_const else None


def _zeros(nest: For, buffer: str) -> _Zeros | None:
    """Return the zeros that ``nest`` writes to ``buffer`` one by one; None if it does anything else."""
    loops: list[For] = []
    s: Stmt = nest
    while isinstance(s, For):
        loops.append(s)
        s = s.body
    extents = [_extent(x) for x in loops]
    if not isinstance(s, Store) or s.buffer.name != buffer or s.lanes is not None or len(s.index) != 1:
        return None
    if not (isinstance(s.value, Const) and s.value.value == 0) or (loops[-1].var, 1) not in s.index[0].terms:
        return None
    *outer, lanes = (n or 0 for n in extents)
    return _Zeros(nest, prod(outer), lanes)


def _written(s: Store, count: int) -> Lanes:
    """Return the lanes that a store writes; one element is the first of a vector of ``count`` lanes."""
    return s.lanes if s.lanes is not None else Lanes(tuple(range(count)), 1)


def _begins_vector(v: Value, count: int) -> bool:
    """Return whether a value is the first element of a vector of ``count`` lanes in registers."""
    if not isinstance(v, Load) or v.buffer.scope != "register" or v.lanes is not None or not v.index:
        return False
    return v.index[-1] == as_index(0) and v.buffer.shape[-1] == count


class _Writes:
    """The stores to ``buffer`` and the nests that write zeros to it; empty if other statements write it or the number
    of their executions is unknown. Vectors have ``lanes`` lanes.
    """

    def __init__(self, buffer: str, lanes: int, s: Stmt) -> None:
        self.buffer, self.lanes = buffer, lanes
        self.zeros: list[_Zeros] = []
        self.stores: list[tuple[Store, int]] = []
        """Stores, with their numbers of executions."""
        self.known = True
        self._collect(s, 1)

    def _collect(self, s: Stmt, times: int) -> None:
        if isinstance(s, Block):
            for x in s.stmts:
                self._collect(x, times)
        elif isinstance(s, For):
            zeros = _zeros(s, self.buffer)
            if zeros is not None and times == 1:
                self.zeros.append(zeros)
            else:
                self._collect(s.body, times * (_extent(s) or 0))
        elif isinstance(s, If):
            self._collect(s.body, 0)
        elif isinstance(s, (Let, Alloc, PointerLoad)):
            self._collect(s.body, times)
        elif isinstance(s, Store):
            if s.buffer.name == self.buffer:
                self.stores.append((s, times))
                self.known = self.known and (s.lanes is not None or _begins_vector(s.value, self.lanes))
        elif not isinstance(s, Invoke) or s.dst.buffer.name == self.buffer:
            self.known = False

    def partial(self) -> Iterator[tuple[Store, int, Lanes]]:
        """Yield the stores that leave lanes out."""
        for s, times in self.stores:
            if not (lanes := _written(s, self.lanes)).is_whole:
                yield s, times, lanes

    def begin_blocks(self) -> bool:
        """Return whether all stores write adjacent lanes that begin at a multiple of the lanes of a vector."""
        return all(_begins(s.index, _written(s, self.lanes)) for s, _ in self.stores)


def _begins(index: tuple[Index, ...], lanes: Lanes) -> bool:
    """Return whether adjacent ``lanes`` begin at a multiple of their number, at any value of the variables."""
    multiples = (index[0].const, *(c for _, c in index[0].terms))
    return lanes.stride == 1 and not lanes.first and not any(n % lanes.count for n in multiples)


class _Fill(Rewriter):
    def __init__(self, zeros: _Zeros, lanes: int) -> None:
        super().__init__()
        self.zeros, self.lanes = zeros, lanes
        self.buffer = _stored(zeros.nest)

    def visit_For(self, s: For) -> Stmt:
        return block() if s is self.zeros.nest else self._For(s)

    def visit_Store(self, s: Store) -> Stmt:
        lanes = _written(s, self.lanes)
        if s.buffer is not self.buffer or lanes.is_whole:
            return s
        whole = Lanes(lanes.offsets, lanes.count)
        if isinstance(s.value, Load) and s.value.buffer.scope == "register":
            return Store(s.buffer, s.index, Load(s.value.buffer, s.value.index, lanes), whole)
        held = make_buffer(f"{s.buffer.name}_v", s.buffer.dtype, (lanes.count,), "register")
        first = (as_index(0),)
        stored = Store(s.buffer, s.index, Load(held, first, lanes), whole)
        return Alloc(held, block(Store(held, first, s.value, whole), stored))


def _stored(s: Stmt) -> Buffer:
    """Return the buffer that a nest of loops around one store writes."""
    while isinstance(s, For):
        s = s.body
    assert isinstance(s, Store)
    return s.buffer


@stages(*FLATTENED)
def fill_blocks(kernel: Kernel, buffer: str, lanes: int) -> Kernel:
    """Make partial vectors of ``buffer`` write zeros in inactive lanes, in place of a nest that writes these zeros.

    A store of the first element of a register with ``lanes`` lanes is a partial vector.

    The kernel is unchanged unless the vectors write every zero of the nest: each begins at a multiple of its lanes, its
    inactive lanes are as many as the nest writes in one run, and there is one vector per run. Blocks of the buffer hold
    multiples of the lanes of a vector, so that the lanes left out belong to the vector's own block.

    Before::

        kernel k(a: f32[8], dst: f32[8])
          for i in 0 .. 2:
            alloc acc: f32[4] @register:
              acc[0]{4} = a[i * 4]{4}
              dst[i * 4]{4/3} = acc[0]{4}
          for pad0 in 0 .. 2:
            for pad1 in 3 .. 4:
              dst[pad0 * 4 + pad1] = 0.0

    After ``fill_blocks("dst", 4)``::

        kernel k(a: f32[8], dst: f32[8])
          for i in 0 .. 2:
            alloc acc: f32[4] @register:
              acc[0]{4} = a[i * 4]{4}
              dst[i * 4]{4} = acc[0]{4/3}
    """
    writes = _Writes(buffer, lanes, kernel.body)
    if len(writes.zeros) != 1 or not writes.known or not writes.begin_blocks():
        return kernel
    (zeros,) = writes.zeros
    missing = {lanes.count - lanes.active for _, _, lanes in writes.partial()}
    if missing != {zeros.lanes} or sum(times for _, times, _ in writes.partial()) != zeros.vectors:
        return kernel
    return with_body(kernel, _Fill(zeros, lanes).stmt(kernel.body))
