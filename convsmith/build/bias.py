"""The gradient of the bias: the sum of the destination's gradient over all but the channels, as a kernel of its own."""

from __future__ import annotations

from convsmith.build.epilogue import Buffers
from convsmith.build.sums import sum_steps
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Var, as_index
from convsmith.ir.stmt import Alloc, For, Kernel, Stmt, Store, block
from convsmith.ir.types import dtype
from convsmith.ir.value import Binary, Cast, Load, Value, const, dtype_of
from convsmith.passes.manager import Step
from convsmith.problem.problem import Problem
from convsmith.target.base import Target

VECTORS = 4
"""Vectors of sums held at once, so that additions do not wait for each other."""


def bias_kernel(problem: Problem) -> Kernel | None:
    """The naive nest, for a problem that asks for the gradient."""
    if problem.dir != "BWD_WB":
        return None
    buffers = Buffers(problem)
    given, result = (problem.tensor(name) for name in ("diff_dst", "diff_bia"))
    channel = given.dims[1]
    acc = make_buffer("acc", dtype(problem.acc), (), "register")
    term: Value = Load(buffers["diff_dst"], tuple(Var(d) for d in given.dims), None)
    if dtype_of(term) is not acc.dtype:
        term = Cast(acc.dtype, term)
    here = Load(acc, (), None)
    body: Stmt = Store(acc, (), Binary("add", here, term))
    for name, size in reversed(list(zip(given.dims, given.shape))):
        body = body if name == channel else For(Var(name), as_index(0), as_index(size), body)
    out = buffers["diff_bia"]
    total: Value = here if out.dtype is acc.dtype else Cast(out.dtype, here)
    body = Alloc(acc, block(Store(acc, (), const(acc.dtype, 0)), body, Store(out, (Var(channel),), total)))
    return Kernel("bias", buffers.params(), For(Var(channel), as_index(0), as_index(result.shape[0]), body))


def bias_steps(problem: Problem, target: Target) -> list[Step]:
    """Vectors of channels, held in registers while the pixels pass."""
    given = problem.tensor("diff_dst")
    channel, pixels = given.dims[1], tuple(d for d in given.dims if d != given.dims[1])
    return sum_steps(channel, VECTORS, target.lanes(dtype(problem.acc).bits), pixels)
