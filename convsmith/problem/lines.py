"""Parses the line of any kind of problem."""

from __future__ import annotations

from convsmith.problem.conv import Conv
from convsmith.problem.descriptor import split_line
from convsmith.problem.matmul import Matmul
from convsmith.problem.problem import Problem

__all__ = ["parse_problem"]


def parse_problem(line: str) -> Problem:
    """Return the problem of `[--conv|--deconv|--matmul] [--name=value ...] descriptor`. Inverse of `str`."""
    return Matmul.parse(line) if "matmul" in split_line(line).options else Conv.parse(line)
