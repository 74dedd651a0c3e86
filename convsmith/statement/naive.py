"""The naive nest of a problem: a dozen lines that define what every kernel computes."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Var, as_index, is_true
from convsmith.ir.stmt import Alloc, For, If, Kernel, Stmt, Store, block
from convsmith.ir.types import DType, dtype
from convsmith.ir.value import Binary, Cast, Load, Select, Value, const, dtype_of
from convsmith.problem.problem import Problem
from convsmith.statement.epilogue import Buffers, Epilogue, factor
from convsmith.statement.offsets import sums_of
from convsmith.statement.parts import around
from convsmith.statement.statement import Dim, Statement, View


def naive(problem: Problem, st: Statement) -> Kernel:
    """The nest of a statement of the problem: sums, and what follows them."""
    buffers = Buffers(problem, st.a, st.b, st.c, *st.sums)
    epilogue = Epilogue(problem, st.whole, buffers)
    acc = make_buffer("acc", dtype(st.acc), (), "register")
    here = Load(acc, (), None)
    zero = const(acc.dtype, 0)
    points = [epilogue.zero_point(view) if st.shifted else None for view in (st.a, st.b)]
    elements = factor(st.a, buffers, epilogue.absent(st.a)), factor(st.b, buffers)
    a, b = (_factor(element, acc.dtype, point) for element, point in zip(elements, points))
    term: Value = Binary("mul", a, b)
    if not is_true(st.a.mask) and not st.a.filled:
        term = Select(st.a.mask, term, zero)
    value = here if st.parts_of is not None else epilogue.value(here)
    body = _summed(acc, term, st.of("k"), _store(st.c, buffers, value), st.of("batch", "n", "m"))
    before = tuple(s.kernel(problem) for s in sums_of(problem, st.whole))
    return Kernel("conv", buffers.params(), block(body, *_zero_lanes(st.c, buffers)), before=before)


def parts_kernel(problem: Problem, st: Statement) -> Kernel:
    """The nest that adds up the parts of a statement's sums, and finishes them."""
    whole = st.whole
    buffers = Buffers(problem, st.c, whole.c, *whole.sums)
    acc = make_buffer("acc", dtype(st.acc), (), "register")
    value = Epilogue(problem, whole, buffers).value(Load(acc, (), None))
    part = Load(buffers[st.c.name], st.c.coords, None)
    body = _summed(acc, part, st.dims[:1], _store(whole.c, buffers, value), around(whole))
    return Kernel("sums", buffers.params(), block(body, *_zero_lanes(whole.c, buffers)))


def _summed(acc: Buffer, term: Value, reduce: Sequence[Dim], finish: Stmt, outer: Sequence[Dim]) -> Stmt:
    """A nest over a result: the terms of each element are added up over ``reduce``, then finished."""
    add: Stmt = Store(acc, (), Binary("add", Load(acc, (), None), term))
    body: Stmt = Alloc(acc, block(Store(acc, (), const(acc.dtype, 0)), _nest(reduce, add), finish))
    return _nest(outer, body)


def _nest(dims: Sequence[Dim], body: Stmt) -> Stmt:
    for d in reversed(dims):
        body = For(Var(d.name), as_index(0), as_index(d.size), body)
    return body


def _store(view: View, buffers: Buffers, value: Value) -> Stmt:
    """A store to a view's element, dropped where the view's masks are false."""
    store = Store(buffers[view.name], view.coords, value)
    return store if is_true(view.mask) else If(view.mask, store)


def _factor(value: Value, acc: DType, point: Value | None) -> Value:
    """An element of A or B as a number of the type of sums, less its zero point where that is taken off here."""
    if dtype_of(value) is not acc:
        value = Cast(acc, value)
    return value if point is None else Binary("sub", value, point)


def _zero_lanes(view: View, buffers: Buffers) -> tuple[Stmt, ...]:
    """Nests that write zeros to what a blocked layout adds: one for each dim that it rounds up.

    That of a dim covers what lies beyond it, within the earlier dims' extents.
    """
    logical, padded = view.layout.shape, view.layout.padded_shape
    c, index = buffers[view.name], tuple(Var(f"pad{n}") for n in range(len(logical)))
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
