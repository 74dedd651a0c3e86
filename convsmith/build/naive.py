"""The naive nest of a problem: a dozen lines that define what every kernel computes."""

from __future__ import annotations

from convsmith.build.epilogue import Buffers, Epilogue, factor
from convsmith.build.offsets import sums_of
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Var, as_index, is_true
from convsmith.ir.stmt import Alloc, For, Kernel, Stmt, Store, block
from convsmith.ir.types import DType, dtype
from convsmith.ir.value import Binary, Cast, Load, Select, Value, const, dtype_of
from convsmith.layout.view import Statement, View
from convsmith.problem.problem import Problem


def naive(problem: Problem, st: Statement) -> Kernel:
    """The nest of a statement of the problem: sums, and what follows them."""
    buffers = Buffers(problem, st.a, st.b, st.c, *st.sums)
    epilogue = Epilogue(problem, st, buffers)
    acc = make_buffer("acc", dtype(st.acc), (), "register")
    here = Load(acc, (), None)
    zero = const(acc.dtype, 0)
    points = [epilogue.zero_point(view) if st.shifted else None for view in (st.a, st.b)]
    elements = factor(st.a, buffers, epilogue.absent(st.a)), factor(st.b, buffers)
    a, b = (_factor(element, acc.dtype, point) for element, point in zip(elements, points))
    term: Value = Binary("mul", a, b)
    if not is_true(st.a.mask) and not st.a.filled:
        term = Select(st.a.mask, term, zero)
    reduce: Stmt = Store(acc, (), Binary("add", here, term))
    for d in reversed(st.of("k")):
        reduce = For(Var(d.name), as_index(0), as_index(d.size), reduce)
    finish = Store(buffers[st.c.name], st.c.coords, epilogue.value(here))
    body: Stmt = Alloc(acc, block(Store(acc, (), zero), reduce, finish))
    for d in reversed(st.of("batch", "n", "m")):
        body = For(Var(d.name), as_index(0), as_index(d.size), body)
    before = tuple(s.kernel(problem) for s in sums_of(problem, st))
    return Kernel("conv", buffers.params(), block(body, *_zero_lanes(st.c, buffers[st.c.name])), before=before)


def _factor(value: Value, acc: DType, point: Value | None) -> Value:
    """An element of A or B as a number of the type of sums, less its zero point where that is taken off here."""
    if dtype_of(value) is not acc:
        value = Cast(acc, value)
    return value if point is None else Binary("sub", value, point)


def _zero_lanes(view: View, c: Buffer) -> tuple[Stmt, ...]:
    """Nests that write zeros to what a blocked layout adds: one for each dim that it rounds up.

    That of a dim covers what lies beyond it, within the earlier dims' extents.
    """
    logical, padded = view.layout.shape, view.layout.padded_shape
    index = tuple(Var(f"pad{n}") for n in range(len(logical)))
    nests = []
    for dim in range(len(logical)):
        if logical[dim] < padded[dim]:
            starts = [logical[n] if n == dim else 0 for n in range(len(logical))]
            ends = [logical[n] if n < dim else padded[n] for n in range(len(logical))]
            body: Stmt = Store(c, index, const(c.dtype, 0))
            for v, lo, hi in reversed(list(zip(index, starts, ends))):
                body = For(v, as_index(lo), as_index(hi), body)
            nests.append(body)
    return tuple(nests)
