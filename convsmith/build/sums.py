"""Kernels that only add up: their nest, and its rewrites to vectors of sums that stay in registers."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.stmt import Alloc, For, Kernel, Stmt, Store, block
from convsmith.ir.types import DType
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


def sum_steps(loop: str, vectors: int, lanes: int, reduction: tuple[str, ...]) -> list[Step]:
    """Vectors along ``loop``, ``vectors`` at once, under the loops of the ``reduction``."""
    vector, lane = f"{loop}.v", f"{loop}.l"
    return [
        Step(tile, loop, vectors * lanes, f"{loop}.o", f"{loop}.t"),
        Step(tile, f"{loop}.t", lanes, vector, lane),
        Step(fission, (vector, lane), ((lane, lanes),)),
        Step(sink, (vector, lane)),
        Step(reorder, reduction),
        Step(simplify),
        Step(bind, (vector, lane), "unrolled"),
        Step(partition, (f"{loop}.o", vector)),
        Step(guard_tails, (vector, lane)),
        Step(flatten),
        Step(simplify),
        Step(narrow_index),
        Step(vectorise, lane, lanes, False),
        Step(simplify, False),
        Step(unused_let),
        Step(strength_reduce),
        Step(unroll),
    ]
