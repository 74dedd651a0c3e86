"""Determinants of matrices as nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.operators.determinant import Elimination
from convsmith.network.operators.slice import Slice
from convsmith.onnx.graph_node import GraphNode

__all__ = ["DETERMINANTS"]

LARGEST_MATRIX = 128
"""Rows of the largest matrix whose elimination, which holds the matrix of each step, is a kernel."""


def _determinant(node: GraphNode) -> None:
    """Add the elimination of matrices, and take the determinants from its last part."""
    t, shape = node.type(), node.shape()
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise UsageError(f"its input has the shape {shape}; legal are (*, N, N)", code="shape")
    (*batch, size), count = shape[:-1], prod(shape[:-2])
    if not 1 <= size <= LARGEST_MATRIX:
        raise UnsupportedError(f"matrices of {size} rows; available are 1 to {LARGEST_MATRIX}", code="shape")
    work = Elimination(t, count, size)
    parts = work.result.shape
    last = Slice(t, parts, (size, 0, size, 0), (1,) * 4, (1, count, 1, 1))
    node.add(last, {"src": node.between(work, {"src": node.inputs[0]})}, tuple(batch))


DETERMINANTS: dict[str, Callable[[GraphNode], None]] = {"Det": _determinant}
"""By ONNX's name, the function that adds the nodes of an operator."""
