"""Parses the line of any kind of problem."""

from __future__ import annotations

from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.descriptor import split_line, split_stages
from convsmith.problem.matmul import Matmul
from convsmith.problem.problem import Problem

__all__ = ["parse_problem"]


def parse_problem(line: str) -> Problem:
    """Return the problem of `[--conv|--deconv|--matmul] [--name=value ...] descriptor`, or the chain of several such
    stages, joined by arrows. Inverse of `str`.
    """
    stages = tuple(_parse_stage(stage) for stage in split_stages(line))
    return stages[0] if len(stages) == 1 else Chain(stages=stages)


def _parse_stage(line: str) -> Problem:
    return Matmul.parse(line) if "matmul" in split_line(line).options else Conv.parse(line)
