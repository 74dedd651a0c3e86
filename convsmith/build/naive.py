"""The naive nest of a statement: a dozen lines that define what every kernel computes."""

from __future__ import annotations

from convsmith.build.elementwise import elementwise
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index, is_true
from convsmith.ir.stmt import Alloc, For, Kernel, Stmt, Store, block
from convsmith.ir.types import DType
from convsmith.ir.value import Binary, Load, Select, Value, const
from convsmith.layout.view import Statement, View
from convsmith.problem.post_ops import PostOp


def _buffer(view: View, dtype: DType) -> Buffer:
    return Buffer(view.name, dtype, view.layout.padded_shape, view.layout.blocks)


def naive(name: str, st: Statement, types: tuple[DType, DType, DType], bias_index: Index | None,
          post_ops: tuple[PostOp, ...]) -> Kernel:  # fmt: skip
    """The nest of a statement; ``bias_index`` places the element of ``bia`` to add, where there is one."""
    a, b, c = (_buffer(v, t) for v, t in zip((st.a, st.b, st.c), types))
    acc = make_buffer("acc", types[2], (), "register")
    here = Load(acc, (), None)
    term: Value = Binary("mul", Load(a, st.a.coords, None), Load(b, st.b.coords, None))
    zero = const(acc.dtype, 0)
    if not is_true(st.a.mask):
        term = Select(st.a.mask, term, zero)
    reduce: Stmt = Store(acc, (), Binary("add", here, term))
    for d in reversed([d for d in st.dims if d.kind == "k"]):
        reduce = For(Var(d.name), as_index(0), as_index(d.size), reduce)
    value: Value = here
    params = [a, b]
    if bias_index is not None:
        bia = make_buffer("bia", types[2], (st.c.layout.shape[1],))
        params.append(bia)
        value = Binary("add", value, Load(bia, (bias_index,), None))
    for op in post_ops:
        value = elementwise(op.alg, value, op.alpha, op.beta)
    body: Stmt = Alloc(acc, block(Store(acc, (), zero), reduce, Store(c, st.c.coords, value)))
    for d in reversed([d for d in st.dims if d.kind != "k"]):
        body = For(Var(d.name), as_index(0), as_index(d.size), body)
    return Kernel(name, (*params, c), block(body, *_zero_lanes(st.c, c)))


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
