"""The gradient of the bias: the sum of the destination's gradient over all but the channels, as a kernel of its own."""

from __future__ import annotations

from convsmith.build.epilogue import Buffers
from convsmith.build.sums import sum_nest, sum_steps
from convsmith.ir.index import Var
from convsmith.ir.stmt import Kernel
from convsmith.ir.types import dtype
from convsmith.ir.value import Load
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
    given = problem.tensor("diff_dst")
    loops = list(zip(given.dims, given.shape))
    channel = loops.pop(1)
    term = Load(buffers[given.name], tuple(Var(d) for d in given.dims), None)
    return sum_nest("bias", term, buffers["diff_bia"], (Var(channel[0]),), dtype(problem.acc), [channel], loops)


def bias_steps(problem: Problem, target: Target) -> list[Step]:
    """Vectors of channels, held in registers while the pixels pass."""
    given = problem.tensor("diff_dst")
    channel, pixels = given.dims[1], tuple(d for d in given.dims if d != given.dims[1])
    return sum_steps(channel, VECTORS, target.lanes(dtype(problem.acc).bits), pixels)
