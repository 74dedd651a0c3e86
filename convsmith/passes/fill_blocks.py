"""Let the stores of the last channels also write the zeros in the padding of a blocked layout.

A separate nest would write these zeros element by element, after the caches have evicted the lines of the result. The
vectors of the last channels are on the same lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Index, as_index
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Alloc, Block, For, If, Invoke, Kernel, Let, PointerLoad, Stmt, Store, block
from convsmith.ir.value import Const, Lanes, Load, Value
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import with_body


class _Zeros(NamedTuple):
    """``nest`` executes ``store``, which writes ``vectors`` runs of ``lanes`` adjacent zeros."""

    nest: For
    store: Store
    vectors: int
    lanes: int

    def end_blocks(self, size: int) -> bool:
        """Return whether each run ends a block of ``size`` elements that begins at a multiple of its size."""
        lows: dict[object, int] = {}
        s: Stmt = self.nest
        while isinstance(s, For):
            lows[s.var] = s.lo.const
            inner, s = s.var, s.body
        (index,) = self.store.index
        first = index.const + sum(c * lows.get(v, 0) for v, c in index.terms)
        return first % size == size - self.lanes and not any(c % size for v, c in index.terms if v != inner)


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
    return _Zeros(nest, s, prod(outer), lanes)


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

    def begin_blocks(self, size: int | None = None) -> bool:
        """Return whether all stores write adjacent lanes that begin at a multiple of ``size``, by default of their own
        number.
        """
        return all(_begins(s.index, _written(s, self.lanes), size) for s, _ in self.stores)

    def further(self, zeros: _Zeros) -> int | None:
        """Return the number of whole vectors of ``zeros`` that follow each vector of the last channels; None unless
        vectors write every zero.
        """
        partial = list(self.partial())
        stores = partial or [(s, times, _written(s, self.lanes)) for s, times in self.stores]
        missing = {lanes.count - lanes.active for _, _, lanes in stores}
        if len(missing) != 1 or sum(times for _, times, _ in stores) != zeros.vectors:
            return None
        count, rest = stores[0][2].count, zeros.lanes - missing.pop()
        if rest and (rest < 0 or rest % count or any(lanes.count != count for _, _, lanes in stores)):
            return None
        size = count + zeros.lanes
        if not partial and not (self.begin_blocks(size) and zeros.end_blocks(size)):
            return None  # no lane says where zeros begin: each block has to have one vector and end with one run
        return rest // count


def _begins(index: tuple[Index, ...], lanes: Lanes, size: int | None) -> bool:
    """Return whether adjacent ``lanes`` begin at a multiple of ``size``, by default of their number, at any value of
    the variables.
    """
    multiples = (index[0].const, *(c for _, c in index[0].terms))
    return lanes.stride == 1 and not lanes.first and not any(n % (size or lanes.count) for n in multiples)


class _Fill(Rewriter):
    """Replaces ``zeros`` by inactive lanes of vectors and by ``further`` vectors of zeros after each of these, or after
    every vector if none has inactive lanes.
    """

    def __init__(self, zeros: _Zeros, lanes: int, further: int, is_partial: bool) -> None:
        super().__init__()
        self.zeros, self.lanes, self.further, self.is_partial = zeros, lanes, further, is_partial
        self.buffer = zeros.store.buffer

    def visit_For(self, s: For) -> Stmt:
        return block() if s is self.zeros.nest else self._For(s)

    def visit_Store(self, s: Store) -> Stmt:
        lanes = _written(s, self.lanes)
        if s.buffer is not self.buffer or (self.is_partial and lanes.is_whole):
            return s
        whole = Lanes(lanes.offsets, lanes.count)
        places = (s.index[0] + lanes.count * (n + 1) for n in range(self.further))
        zeros = (Store(s.buffer, (place,), self.zeros.store.value, whole) for place in places)
        return block(self._filled(s, lanes, whole), *zeros)

    @staticmethod
    def _filled(s: Store, lanes: Lanes, whole: Lanes) -> Stmt:
        if lanes.is_whole:
            return s
        if isinstance(s.value, Load) and s.value.buffer.scope == "register":
            return Store(s.buffer, s.index, Load(s.value.buffer, s.value.index, lanes), whole)
        held = make_buffer(f"{s.buffer.name}_v", s.buffer.dtype, (lanes.count,), "register")
        first = (as_index(0),)
        stored = Store(s.buffer, s.index, Load(held, first, lanes), whole)
        return Alloc(held, block(Store(held, first, s.value, whole), stored))


@stages(*FLATTENED)
def fill_blocks(kernel: Kernel, buffer: str, lanes: int) -> Kernel:
    """Make partial vectors of ``buffer`` write zeros in inactive lanes, in place of a nest that writes these zeros.

    A store of the first element of a register with ``lanes`` lanes is a partial vector.

    The kernel is unchanged unless the vectors write every zero of the nest: each begins at a multiple of its lanes, its
    inactive lanes begin a run of zeros of the nest, which whole vectors of zeros continue, and there is one vector per
    run. Blocks of the buffer hold multiples of the lanes of a vector, so that the lanes left out belong to the vector's
    own block. If every vector is whole, and each block has one of them, vectors of zeros fill the rest of the block.

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
    if lanes < 1 or len(writes.zeros) != 1 or not writes.known or not writes.begin_blocks():
        return kernel
    (zeros,) = writes.zeros
    further = writes.further(zeros)
    if further is None:
        return kernel
    return with_body(kernel, _Fill(zeros, lanes, further, any(writes.partial())).stmt(kernel.body))
