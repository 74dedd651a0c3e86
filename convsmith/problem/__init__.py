"""Problems (a convolution or a matrix product, as pure data) and the numpy reference that computes their results."""

from __future__ import annotations

from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.lines import parse_problem
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import Eltwise
from convsmith.problem.problem import Problem
from convsmith.problem.reference import conv_reference, reference

__all__ = ["Chain", "Conv", "Eltwise", "Matmul", "Problem", "conv_reference", "parse_problem", "reference"]
