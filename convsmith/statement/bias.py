"""The gradient of the bias: the sum of the destination's gradient over all but the channels, as a kernel of its own."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.stmt import Alloc, For, Kernel, Stmt, Store, block
from convsmith.ir.types import DType, dtype
from convsmith.ir.value import Binary, Cast, Load, Value, const, dtype_of
from convsmith.problem.problem import Problem
from convsmith.statement.epilogue import Buffers

Loop = tuple[str, int]
"""Name and iterations."""


def sum_nest(
    name: str, term: Load, result: Buffer, index: tuple[Index, ...], acc_type: DType, around: Sequence[Loop],
    reduction: Sequence[Loop],
) -> Kernel:  # fmt: skip
    """``result[index]`` is the sum of the terms over the reduction, in ``acc_type``, for each point of the others."""
    acc = make_buffer("acc", acc_type, (), "register")
    here = Load(acc, (), None)
    added: Value = term if dtype_of(term) is acc_type else Cast(acc_type, term)
    total: Value = here if result.dtype is acc_type else Cast(result.dtype, here)
    sums = _nest(reduction, Store(acc, (), Binary("add", here, added)))
    body = Alloc(acc, block(Store(acc, (), const(acc_type, 0)), sums, Store(result, index, total)))
    return Kernel(name, (term.buffer, result), _nest(around, body))


def _nest(loops: Sequence[Loop], body: Stmt) -> Stmt:
    for name, size in reversed(loops):
        body = For(Var(name), as_index(0), as_index(size), body)
    return body


def bias_kernel(problem: Problem) -> Kernel | None:
    """The naive nest, for a problem that asks for the gradient."""
    if problem.dir != "BWD_WB":
        return None
    buffers = Buffers(problem)
    given = problem.tensor("diff_dst")
    loops = list(zip(given.dims, given.shape))
    channel = loops.pop(1)
    term = Load(buffers[given.name], tuple(Var(d) for d in given.dims), None)
    return sum_nest("bias", term, buffers["diff_bia"], (Var(channel[0]),), dtype(problem.acc), [channel], loops)
