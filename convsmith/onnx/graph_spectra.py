"""Discrete Fourier transforms of ONNX as nodes of a graph: products with a matrix of cosines and sines."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.onnx.graph_node import GraphNode
from convsmith.problem.matmul import Matmul

__all__ = ["SPECTRA"]

_AXIS_IS_INPUT = 20
"""The first operator set in which the axis is an input."""


def _transformed(node: GraphNode) -> None:
    """Add the transform along an axis of real numbers, or of complex ones, whose parts are adjacent."""
    shape, t, inverts = node.shape(), node.type(), bool(node.attribute("inverse", 0))
    length, given = node.constant(1), node.constant(2)
    default = node.attribute("axis", 1) if node.opset < _AXIS_IS_INPUT else -2
    axis = int(default if given is None else np.asarray(given).reshape(-1)[0])
    rank = len(shape)
    if rank < 2 or shape[-1] not in (1, 2) or not -rank <= axis < rank or axis % rank == rank - 1:
        raise UsageError(f"axis {axis} of {shape}; legal are axes before the last one, of 1 or 2 parts", code="axis")
    axis, is_half = axis % rank, bool(node.attribute("onesided", 0))
    if is_half and (inverts or shape[-1] == 2):
        words = "onesided=1 of complex numbers, or with inverse=1; available are both alone"
        raise UnsupportedError(words, code="attribute")
    old = shape[axis]
    count = old if length is None else int(np.asarray(length).reshape(-1)[0])
    if count < 1:
        raise UsageError(f"dft_length is {count}; legal are numbers from 1 on", code="attribute")
    new = count // 2 + 1 if is_half else count
    order = (*(n for n in range(rank - 1) if n != axis), axis, rank - 1)
    turned = tuple(shape[n] for n in order)
    stays, x = order == tuple(range(rank)), node.inputs[0]
    x = x if stays else node.between(Transpose(t, shape, order), {"src": x})
    matrix = node.held(_matrix(old, shape[-1], count, new, inverts).astype(node.reader.numpy_of(t)))
    size = old * shape[-1]
    work = Matmul(src=(prod(turned) // size, size), wei=(size, 2 * new), dt=(t, t, t))
    made = (*turned[:-2], new, 2)
    product = node.between(work, {"src": x, "wei": matrix}, made)
    back = tuple(order.index(n) for n in range(rank))
    result = tuple(made[n] for n in back)
    last: Any = Reshape(t, prod(result)) if stays else Transpose(t, made, back)
    node.add(last, {"src": product}, result)


def _matrix(old: int, parts: int, count: int, new: int, inverts: bool) -> np.ndarray[Any, Any]:
    """Return the matrix (old * parts, 2 * new) of a transform of `count` elements; elements beyond have no weight."""
    angles = np.outer(np.arange(old), np.arange(new)) % count * (2 * np.pi / count) * (1 if inverts else -1)
    factor = (np.arange(old) < count) / (count if inverts else 1)
    cosine, sine = (function(angles) * factor[:, None] for function in (np.cos, np.sin))
    found = np.empty((old, parts, new, 2))
    found[:, 0, :, 0], found[:, 0, :, 1] = cosine, sine
    if parts == 2:
        found[:, 1, :, 0], found[:, 1, :, 1] = -sine, cosine
    return found.reshape(old * parts, 2 * new)


SPECTRA: dict[str, Callable[[GraphNode], None]] = {"DFT": _transformed}
"""By ONNX's name, the function that adds the nodes of an operator."""
