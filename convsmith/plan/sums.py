"""The rewrites of kernels that only add up: vectors of sums stay in registers."""

from __future__ import annotations

from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
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
from convsmith.statement.parts import PART, around
from convsmith.statement.statement import Statement

VECTORS = 4
"""Vectors of sums held at once, so that additions do not wait for each other."""


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


def bias_steps(problem: Problem, target: Machine) -> list[Step]:
    """Vectors of channels, held in registers while the pixels pass."""
    given = problem.tensor("diff_dst")
    channel, pixels = given.dims[1], tuple(d for d in given.dims if d != given.dims[1])
    return sum_steps(channel, VECTORS, target.lanes(dtype(problem.acc).bits), pixels)


def sums_steps(st: Statement, target: Machine) -> list[Step]:
    """The rewrites of the nest that adds up parts: vectors along the last loop over the result."""
    return sum_steps(around(st.whole)[-1].name, 1, target.lanes(dtype(st.acc).bits), (PART,))
