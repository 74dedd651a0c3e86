"""Parses the line of any kind of problem."""

from __future__ import annotations

from convsmith.diag.errors import UsageError
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.descriptor import split_line, split_stages
from convsmith.problem.matmul import Matmul
from convsmith.problem.problem import Problem

__all__ = ["parse_problem"]


def parse_problem(line: str) -> Problem:
    """Return the problem of `[--conv|--deconv|--matmul] [--name=value ...] descriptor`, or the chain of several such
    stages, joined by arrows. Inverse of `str`. A `--workspace` of any stage is that of the chain.
    """
    stages = tuple(_parse_stage(stage) for stage in split_stages(line))
    if len(stages) == 1:
        return stages[0]
    bounds = {stage.workspace for stage in stages} - {None}
    if len(bounds) > 1:
        words = " and ".join(f"--workspace={bound}" for bound in sorted(x for x in bounds if x is not None))
        raise UsageError(f"chain: {words}; legal is one bound of the whole chain", code="bad-chain")
    return Chain(stages=tuple(stage.unbounded() for stage in stages), workspace=next(iter(bounds), None))


def _parse_stage(line: str) -> Problem:
    return Matmul.parse(line) if "matmul" in split_line(line).options else Conv.parse(line)
