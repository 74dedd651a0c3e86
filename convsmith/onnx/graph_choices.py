"""The operators of ONNX on truth values, conversions between types, and broadcasts, as nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.operators.choice import ChangeType, ChooseByMask, Compare
from convsmith.network.operators.expand import Expand
from convsmith.network.operators.move import Reshape
from convsmith.network.operators.pointwise import Pointwise, broadcast
from convsmith.onnx.graph_node import GraphNode

__all__ = ["CHOICES"]

_TARGETS = {1: "f32", 2: "u8", 3: "s8", 6: "s32", 7: "s32", 9: "bool", 10: "f32", 11: "f64", 16: "f32"}
"""Types by ONNX's numbers. Whole numbers of 64 bits are computed in 32, floats of 16 bits in f32, truth values are
bytes of 0 and 1.
"""
_LEGAL = ", ".join(map(str, _TARGETS))
_WIDE: Mapping[int, np.dtype[Any]] = {7: np.dtype(np.int64), 9: np.dtype(np.bool_)}
"""Types of constants whose type in kernels is another one."""


def _compared(comparison: str, node: GraphNode) -> None:
    shapes = (node.shape(0), node.shape(1))
    work = Compare(node.any_type(), shapes, comparison)
    node.add(work, {"src_0": node.inputs[0], "src_1": node.inputs[1]}, _whole(*shapes))


def _whole(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which shapes broadcast, which is () for scalars."""
    return broadcast(shapes) if any(shapes) else ()


def _combined(alg: str, node: GraphNode) -> None:
    shapes = (node.shape(0), node.shape(1))
    arguments = {"src_0": node.inputs[0], "src_1": node.inputs[1]}
    node.add(Pointwise(node.any_type(), shapes, alg), arguments, _whole(*shapes))


def _not(node: GraphNode) -> None:
    zero = node.held(np.zeros((1,), np.uint8))
    work = Compare("u8", (node.shape(), (1,)), "eq")
    node.add(work, {"src_0": node.inputs[0], "src_1": zero}, node.shape())


def _is_nan(node: GraphNode) -> None:
    shape = node.shape()
    node.add(Compare(node.type(), (shape, shape), "ne"), {"src_0": node.inputs[0], "src_1": node.inputs[0]}, shape)


def _where(node: GraphNode) -> None:
    shapes = (node.shape(0), node.shape(1), node.shape(2))
    arguments = dict(zip(("mask", "yes", "no"), node.inputs))
    node.add(ChooseByMask(node.any_type(1), shapes), arguments, _whole(*shapes))


def _triangle(node: GraphNode) -> None:
    """Add the choice of elements on one side of a diagonal by a constant mask; the others are 0."""
    shape, diagonal = node.shape(), node.constant(1)
    if len(shape) < 2:
        raise UsageError(f"its input has the shape {shape}; legal are matrices, with batch dims", code="shape")
    side = np.triu if node.attribute("upper", 1) else np.tril
    mask = side(np.ones(shape[-2:], bool), 0 if diagonal is None else int(diagonal.reshape(-1)[0]))
    zero = np.zeros((1,), node.reader.numpy_of(node.any_type()))
    masks = {"mask": node.held(mask), "yes": node.inputs[0], "no": node.held(zero)}
    node.add(ChooseByMask(node.any_type(), (mask.shape, shape, zero.shape)), masks, shape)


def _eye(node: GraphNode) -> None:
    """Add the constant matrix of the input's shape with ones along a diagonal."""
    shape, number = node.shape(), node.attribute("dtype", 0)
    if len(shape) != 2:
        raise UsageError(f"its input has the shape {shape}; legal are matrices", code="shape")
    if number and number not in _TARGETS:
        raise UnsupportedError(f"its elements have ONNX's type {number}; available are {_LEGAL}", code="dtype")
    own: np.dtype[Any] = node.reader.value(node.inputs[0]).dtype
    if number:
        own = _WIDE.get(number, node.reader.numpy_of(_TARGETS[number]))
    node.reader.constants[node.outputs[0]] = np.eye(*shape, node.attribute("k", 0), dtype=own)


def _cast(node: GraphNode) -> None:
    shape, source, number = node.shape(), node.any_type(), node.attribute("to", 0)
    to = _TARGETS.get(number)
    if to is None:
        raise UnsupportedError(f"it converts to ONNX's type {number}; available are {_LEGAL}", code="dtype")
    if to == "bool":
        zero = node.held(np.zeros((1,), node.reader.numpy_of(source)))
        node.add(Compare(source, (shape, (1,)), "ne"), {"src_0": node.inputs[0], "src_1": zero}, shape)
    elif to == source:
        node.add(Reshape(source, prod(shape)), {"src": node.inputs[0]}, shape)
    else:
        node.add(ChangeType(source, to, shape), {"src": node.inputs[0]}, shape)


def _expand(node: GraphNode) -> None:
    shape = node.shape()
    sizes = broadcast((shape, node.numbers(1, "shape") or ()))
    if sizes == shape:
        node.add(Reshape(node.any_type(), prod(shape)), {"src": node.inputs[0]}, shape)
        return
    own = (1,) * (len(sizes) - len(shape)) + shape
    node.add(Expand(node.any_type(), own, sizes), {"src": node.inputs[0]})


def _tile(node: GraphNode) -> None:
    """Add the repetitions along one axis after the other."""
    shape, name, t = node.shape(), node.inputs[0], node.any_type()
    for axis, count in enumerate(node.numbers(1, "repeats") or ()):
        if count > 1:
            ends = (prod(shape[:axis]), prod(shape[axis:]))
            shape = (*shape[:axis], count * shape[axis], *shape[axis + 1 :])
            work = Expand(t, (ends[0], 1, ends[1]), (ends[0], count, ends[1]))
            name = node.between(work, {"src": name}, shape)
    node.add(Reshape(t, prod(shape)), {"src": name}, shape)


CHOICES: dict[str, Callable[[GraphNode], None]] = {
    **{
        name: partial(_compared, row)
        for name, row in (
            ("Equal", "eq"), ("Greater", "gt"), ("GreaterOrEqual", "ge"), ("Less", "lt"), ("LessOrEqual", "le"),
        )
    },
    "And": partial(_combined, "min"), "Or": partial(_combined, "max"), "Xor": partial(_compared, "ne"), "Not": _not,
    "IsNaN": _is_nan,
    "Where": _where, "Trilu": _triangle, "EyeLike": _eye, "Cast": _cast, "Expand": _expand, "Tile": _tile,
}  # fmt: skip
"""By ONNX's name, the function that adds the nodes of an operator."""
