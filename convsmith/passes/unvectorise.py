"""Replace statements on vectors of types for which a machine has no vectors by loops over their lanes.

LLVM would scalarise each operation on such a vector, which makes long code and takes minutes for long statements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import For, Kernel, Stmt, Store, block
from convsmith.ir.value import (
    Binary,
    Bits,
    Cast,
    Fma,
    Lanes,
    Load,
    Repeat,
    Sum,
    Sums,
    Unary,
    Value,
    Where,
    dtype_of,
    lanes_of,
)
from convsmith.ir.walk import walk
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import each_body

_ROW, _LANE = Var("row"), Var("lane")


class _NoLoop(Exception):
    """A value whose lanes are not iterations of a loop."""


class _Lane(Rewriter):
    """The value of one lane of vectors whose first ``active`` lanes are needed, in rows of ``width`` lanes."""

    def __init__(self, active: int, width: int) -> None:
        super().__init__()
        self.active, self.width = active, width

    def visit_Load(self, v: Load) -> Value:
        if v.lanes is None:
            return v
        if v.lanes.first or v.lanes.active < self.active:
            raise _NoLoop
        return Load(v.buffer, _moved(v.index, v.lanes, self.width), None)

    def visit_Bits(self, v: Bits) -> Value:
        if v.dtype.bits != dtype_of(v.a).bits:
            raise _NoLoop
        return self._Bits(v)

    def visit_Repeat(self, v: Repeat) -> Value:
        if lanes_of(v.a):
            raise _NoLoop
        return self.expr(v.a)  # type: ignore[no-any-return]

    def visit_Sum(self, v: Sum) -> Value:
        raise _NoLoop

    def visit_Sums(self, v: Sums) -> Value:
        raise _NoLoop


def _row_length(lanes: Lanes) -> int:
    """Return the number of leading lanes at even distances."""
    offsets = lanes.offsets[: lanes.active]
    step = offsets[1] - offsets[0] if len(offsets) > 1 else 0
    return next((n for n, offset in enumerate(offsets) if offset != n * step), len(offsets))


def _moved(index: tuple[Index, ...], lanes: Lanes, width: int) -> tuple[Index, ...]:
    """Return the index of one of the lanes, in rows of ``width``."""
    offsets = lanes.offsets[: lanes.active]
    step = offsets[1] - offsets[0] if len(offsets) > 1 else 0
    apart = offsets[width] - offsets[0] if len(offsets) > width else 0
    if any(offset != n // width * apart + n % width * step for n, offset in enumerate(offsets)):
        raise _NoLoop
    return (*index[:-1], index[-1] + _ROW * apart + _LANE * step)


def _computes(v: Value, types: Collection[str]) -> bool:
    """Return whether a value has arithmetic in the types, other than a conversion of an integer to one of them."""
    if isinstance(v, (Binary, Unary, Fma, Where)):
        return dtype_of(v.a).name in types
    return isinstance(v, Cast) and dtype_of(v.a).name in types


def _rows(one: Store, first: int, rows: int, width: int) -> Iterator[Stmt]:
    """Yield the loop over ``width`` lanes of each of ``rows`` rows from ``first`` on, if there are any."""
    if rows == 1:
        yield _lanes(substitute(one, {_ROW: as_index(first)}), width)
    elif rows:
        yield For(_ROW, as_index(first), as_index(first + rows), _lanes(one, width))


def _lanes(one: Store, width: int) -> Stmt:
    return For(_LANE, as_index(0), as_index(width), one)


class _Unvectorise(Rewriter):
    def __init__(self, types: Collection[str]) -> None:
        super().__init__()
        self.types = types

    def visit_Store(self, s: Store) -> Stmt:
        if s.lanes is None or s.buffer.in_registers:
            return s
        values = [v for v in walk(s.value) if isinstance(v, Value)]
        if not any(_computes(v, self.types) for v in values):
            return s
        own = [v for v in values if isinstance(v, Load) and v.buffer is s.buffer]
        if any((v.index, v.lanes) != (s.index, s.lanes) for v in own):
            return s
        loads = [v.lanes for v in values if isinstance(v, Load) and v.lanes is not None]
        width = min(map(_row_length, (s.lanes, *loads)))
        try:
            value = _Lane(s.lanes.active, width).expr(s.value)
            one = Store(s.buffer, _moved(s.index, s.lanes, width), value)
        except _NoLoop:
            return s
        rows, rest = divmod(s.lanes.active, width)
        return block(*_rows(one, 0, rows, width), *_rows(one, rows, rest > 0, rest))


@stages(*FLATTENED)
def unvectorise(kernel: Kernel, types: tuple[str, ...]) -> Kernel:
    """Replace stores to memory of vectors that are computed with numbers of ``types`` by loops over their lanes.

    A store whose lanes are not iterations of a loop is unchanged.

    Before::

        kernel k(a: s32[8], dst: u8[8])
          dst[0]{4} = cast(u8, cast(f32, a[4]{4}) * 0.5)
          dst[4]{4} = cast(u8, a[0]{4})

    After ``unvectorise(("f32",))``::

        kernel k(a: s32[8], dst: u8[8])
          for lane in 0 .. 4:
            dst[lane] = cast(u8, cast(f32, a[lane + 4]) * 0.5)
          dst[4]{4} = cast(u8, a[0]{4})
    """
    return each_body(kernel, lambda s: _Unvectorise(types).stmt(s))
