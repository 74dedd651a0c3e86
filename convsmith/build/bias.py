"""The gradient of the bias: the sum of the destination's gradient over all but the channels, as a kernel of its own."""

from __future__ import annotations

from convsmith.build.epilogue import Buffers
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Var, as_index
from convsmith.ir.stmt import Alloc, For, Kernel, Stmt, Store, block
from convsmith.ir.types import dtype
from convsmith.ir.value import Binary, Cast, Load, Value, const, dtype_of
from convsmith.passes.bind import bind
from convsmith.passes.fission import fission
from convsmith.passes.flatten import flatten
from convsmith.passes.guard_tails import guard_tails
from convsmith.passes.manager import Step
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.partition import partition
from convsmith.passes.reorder import reorder
from convsmith.passes.simplify import simplify
from convsmith.passes.sink import sink
from convsmith.passes.strength import strength_reduce
from convsmith.passes.tile import tile
from convsmith.passes.unroll import unroll
from convsmith.passes.unused_let import unused_let
from convsmith.passes.vectorise import vectorise
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
    lanes = target.lanes(dtype(problem.acc).bits)
    vectors, lane = f"{channel}.v", f"{channel}.l"
    return [
        Step(tile, channel, VECTORS * lanes, f"{channel}.o", f"{channel}.t"),
        Step(tile, f"{channel}.t", lanes, vectors, lane),
        Step(fission, (vectors, lane), ((lane, lanes),)),
        Step(sink, (vectors, lane)),
        Step(reorder, pixels),
        Step(simplify),
        Step(bind, (vectors, lane), "unrolled"),
        Step(partition, (f"{channel}.o", vectors)),
        Step(guard_tails, (vectors, lane)),
        Step(flatten),
        Step(simplify),
        Step(narrow_index),
        Step(vectorise, lane, lanes, False),
        Step(simplify, False),
        Step(unused_let),
        Step(strength_reduce),
        Step(unroll),
    ]
