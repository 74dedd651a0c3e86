"""Discrete Fourier transforms of ONNX, of whole signals and of frames, as nodes of a graph: products with a matrix of
cosines and sines.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.pointwise import Pointwise
from convsmith.onnx.graph_node import GraphNode
from convsmith.onnx.window import OperandNames, convolution, window
from convsmith.problem.matmul import Matmul

__all__ = ["SPECTRA"]

_AXIS_IS_INPUT = 20
"""The first operator set in which the axis is an input."""


def _transformed(node: GraphNode) -> None:
    """Add the transform along an axis of real numbers, or of complex ones, whose parts are adjacent."""
    shape, t, inverts = node.shape(), node.type(), bool(node.attribute("inverse", 0))
    length, given = _number(node, 1), _number(node, 2)
    default = node.attribute("axis", 1) if node.opset < _AXIS_IS_INPUT else -2
    axis = int(default if given is None else given)
    rank = len(shape)
    if rank < 2 or shape[-1] not in (1, 2) or not -rank <= axis < rank or axis % rank == rank - 1:
        raise UsageError(f"axis {axis} of {shape}; legal are axes before the last one, of 1 or 2 parts", code="axis")
    axis, is_half = axis % rank, _is_half(node, 0, inverts)
    old = shape[axis]
    count = old if length is None else length
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


def _framed(node: GraphNode) -> None:
    """Add the transforms of frames of a signal, times a window: a convolution whose weights are the cosines and sines
    of the window's elements, and whose strides are the steps of frames.
    """
    shape, t, step = node.shape(), node.type(), _number(node, 1)
    if len(shape) != 3 or shape[-1] not in (1, 2):
        raise UsageError(f"its signal has the shape {shape}; legal are (N, length, 1 or 2 parts)", code="shape")
    (batch, length, parts), is_half = shape, _is_half(node, 1)
    around = node.shape(2) if node.has(2) else None
    size = _number(node, 3) if node.has(3) else around[0] if around else length
    if step is None or size is None or step < 1 or not 1 <= size <= length or around not in (None, (size,)):
        raise UsageError(
            f"frames of {size} elements, {step} apart, with a window of {around} in a signal of {length}; legal are "
            "frames within the signal, and windows of their size", code="attribute",
        )  # fmt: skip
    bins = size // 2 + 1 if is_half else size
    matrix = _matrix(size, parts, size, bins, False).reshape(size, parts, 2 * bins).transpose(2, 1, 0)
    is_held = around and node.inputs[2] in node.reader.constants
    factors = node.reader.constants[node.inputs[2]] if is_held else 1
    weights = node.held(np.ascontiguousarray(matrix * factors).astype(node.reader.numpy_of(t)))
    if around and not is_held:
        product = Pointwise(t, (matrix.shape, around), "mul")
        weights = node.between(product, {"src_0": weights, "src_1": node.inputs[2]})
    channels_first: Any = Transpose(t, shape, (0, 2, 1)) if parts == 2 else Reshape(t, prod(shape))
    x = node.between(channels_first, {"src": node.inputs[0]}, (batch, parts, length))
    steps = window("NOTSET", dilations=None, group=1, kernel_shape=None, pads=None, strides=(step,))
    problem = convolution(OperandNames("X", "W"), (batch, parts, length), matrix.shape, steps, dt=(t, t, t))
    found = node.between(problem, {"src": x, "wei": weights})
    frames = problem.o[0]
    node.add(Transpose(t, (batch, 2 * bins, frames), (0, 2, 1)), {"src": found}, (batch, frames, bins, 2))


def _is_half(node: GraphNode, default: int, inverts: bool = False) -> bool:
    """Return whether a node wants half of the spectrum. UnsupportedError for complex numbers, and if it ``inverts``."""
    found = bool(node.attribute("onesided", default))
    if found and (inverts or node.shape()[-1] == 2):
        words = "onesided=1 of complex numbers, or with inverse=1; available are both alone"
        raise UnsupportedError(words, code="attribute")
    return found


def _number(node: GraphNode, n: int) -> int | None:
    """Return the constant whole number that is input `n`, if it is present."""
    held = node.constant(n)
    return None if held is None else int(np.asarray(held).reshape(-1)[0])


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


SPECTRA: dict[str, Callable[[GraphNode], None]] = {"DFT": _transformed, "STFT": _framed}
"""By ONNX's name, the function that adds the nodes of an operator."""
