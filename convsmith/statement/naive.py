"""The naive nest of a statement: the few lines of code that define what every kernel computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Var, as_index, is_true
from convsmith.ir.stmt import Alloc, For, If, Kernel, Stmt, Store, block
from convsmith.ir.types import S32, DType, dtype
from convsmith.ir.value import Binary, Cast, Load, Select, Value, const, dtype_of
from convsmith.layout.layout import Layout
from convsmith.problem.problem import Problem
from convsmith.statement.epilogue import Buffers, Epilogue, differs_by_channel, factor, of_flipped, source_point
from convsmith.statement.statement import Dim, Statement, View


def naive(problem: Problem, st: Statement, before: Sequence[Kernel] = ()) -> Kernel:
    """Return the nest of ``st``, a statement of ``problem``: the sums, followed by the final step.

    The kernels ``before`` write arrays that the nest reads.
    """
    buffers = Buffers(problem, *st.factors, st.c, *st.sums)
    epilogue = Epilogue(problem, st.whole, buffers) if len(st.whole.factors) > 1 else None
    acc = make_buffer("acc", dtype(st.acc), (), "register")
    here: Value = Load(acc, (), None)
    points = [epilogue.zero_point(view) if st.shifted and epilogue else None for view in st.factors]
    absent = epilogue.absent(st.a) if epilogue and st.a.filled else None
    elements = [factor(view, buffers, absent if view is st.a else None) for view in st.factors]
    elements[1:] = [_masked(view, x) for view, x in zip(st.factors[1:], elements[1:])]
    first, *others = (_less(_as(acc.dtype, element), point) for element, point in zip(elements, points))
    term = Binary("mul", first, *others) if others else first
    if st.weighed is not None:
        point = of_flipped(st.weighed, source_point(problem, st.weighed, buffers))
        assert point is not None
        term = Binary("mul", term, point)
    elif st.finish == "centred" and differs_by_channel(problem):
        term = _less(term, source_point(problem, st.a, buffers))
    if not is_true(st.a.mask) and not st.a.filled:
        term = Select(st.a.mask, term, const(acc.dtype, 0))
    value = _result(problem, st, buffers, here)
    add = Store(acc, (), Binary("add", here, term))
    store: Stmt = Store(buffers[st.c.name], st.c.coords, value)
    store = store if is_true(st.c.mask) else If(st.c.mask, store)
    body: Stmt = Alloc(acc, block(Store(acc, (), const(acc.dtype, 0)), _nest(st.of("k"), add), store))
    body = _nest(st.of("batch", "n", "m"), body)
    body = block(body, *zero_lanes(st.c, buffers))
    return Kernel(st.name, buffers.params(), body, before=tuple(before), sizes=st.sizes)


def stores_sums(problem: Problem, st: Statement) -> bool:
    """Return whether the results of ``st``, a statement of ``problem``, are its sums themselves."""
    here = Load(make_buffer("acc", dtype(st.acc), (), "register"), (), None)
    return _result(problem, st, Buffers(problem, *st.factors, st.c, *st.sums), here) is here


def _result(problem: Problem, st: Statement, buffers: Buffers, sums: Value) -> Value:
    """Return the value that the last step of ``st`` makes of its ``sums``."""
    if st.finish == "epilogue":
        return Epilogue(problem, st.whole, buffers).value(sums)
    if st.finish == "centred" and not differs_by_channel(problem):
        return _centred(problem, st, buffers, sums)
    return _as(dtype(st.c.dtype), sums)


def _centred(problem: Problem, st: Statement, buffers: Buffers, sums: Value) -> Value:
    """Return ``sums`` minus the source's zero point times the number of terms."""
    point = of_flipped(st.a, source_point(problem, st.a, buffers))
    if point is None:
        return sums
    return Binary("sub", sums, Binary("mul", point, const(S32, prod(d.size for d in st.of("k")))))


def _nest(dims: Sequence[Dim], body: Stmt) -> Stmt:
    for d in reversed(dims):
        body = For(Var(d.name), as_index(0), as_index(d.size), body)
    return body


def _masked(view: View, element: Value) -> Value:
    """Return the ``element`` of a factor, zero where ``view`` has none."""
    return element if is_true(view.mask) else Select(view.mask, element, const(dtype_of(element), 0))


def _as(t: DType, value: Value) -> Value:
    return value if dtype_of(value) is t else Cast(t, value)


def _less(value: Value, point: Value | None) -> Value:
    return value if point is None else Binary("sub", value, point)


def zero_lanes(view: View, buffers: Buffers) -> tuple[Stmt, ...]:
    """Return nests that write zeros to the padding of a blocked layout, one nest for each dim that the layout rounds
    up.

    The nest of a dim covers the padding along that dim, within the extents of the earlier dims. The dim's own loop is
    innermost: it stays within a block, so its stores are close to each other.
    """
    c, index = buffers[view.name], tuple(Var(f"pad{n}") for n in range(len(view.layout.shape)))
    nests = []
    for dim, starts, ends in added_boxes(view.layout):
        body: Stmt = Store(c, index, const(c.dtype, 0))
        for n in (dim, *(n for n in reversed(range(len(index))) if n != dim)):
            body = For(index[n], as_index(starts[n]), as_index(ends[n]), body)
        nests.append(body)
    return tuple(nests)


def added_boxes(layout: Layout) -> Iterator[tuple[int, Sequence[int], Sequence[int]]]:
    """Yield each dim that a blocked layout rounds up, with the start and the end of its padding along every dim."""
    logical, padded = layout.shape, layout.padded_shape
    for dim in range(len(logical)):
        if logical[dim] < padded[dim]:
            starts = [logical[n] if n == dim else 0 for n in range(len(logical))]
            yield dim, starts, [logical[n] if n < dim else padded[n] for n in range(len(logical))]
