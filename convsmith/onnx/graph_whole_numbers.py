"""The operators of ONNX on whole numbers, and on their bits, as nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.operators.bitwise import Bitwise
from convsmith.network.operators.division import WholeDivision
from convsmith.network.operators.pointwise import broadcast
from convsmith.onnx.graph_node import GraphNode

__all__ = ["WHOLE_NUMBERS", "divided"]

_INTEGERS = ("s32", "u8", "s8")
"""Types of whole numbers."""


def _whole(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which shapes broadcast, which is () for scalars."""
    return broadcast(shapes) if any(shapes) else ()


def divided(node: GraphNode) -> None:
    """Add the quotients of two arrays of whole numbers, without their fractions."""
    shapes = (node.shape(0), node.shape(1))
    work = WholeDivision(node.any_type(), shapes, gives_remainder=False)
    node.add(work, {"src_0": node.inputs[0], "src_1": node.inputs[1]}, _whole(*shapes))


def _remainder(node: GraphNode) -> None:
    """Add the remainders of two arrays, with the sign of the first or of the second operand."""
    shapes, t, has_first_sign = (node.shape(0), node.shape(1)), node.any_type(), node.attribute("fmod", 0)
    if t not in ("f32", *_INTEGERS):
        raise UnsupportedError(f"remainders of {t}; available are f32 and {', '.join(_INTEGERS)}", code="dtype")
    work = WholeDivision(t, shapes, gives_remainder=True, floors=not has_first_sign)
    node.add(work, {"src_0": node.inputs[0], "src_1": node.inputs[1]}, _whole(*shapes))


def _bits(alg: str, node: GraphNode) -> None:
    """Add an operation on the bits of two arrays."""
    shapes, t = (node.shape(0), node.shape(1)), node.any_type()
    if t not in _INTEGERS:
        raise UnsupportedError(f"bits of {t}; available are {', '.join(_INTEGERS)}", code="dtype")
    node.add(Bitwise(t, shapes, alg), {"src_0": node.inputs[0], "src_1": node.inputs[1]}, _whole(*shapes))


def _shift(node: GraphNode) -> None:
    ways = {"LEFT": "shl", "RIGHT": "shr"}
    way = node.attribute("direction", "")
    if way not in ways:
        raise UsageError(f"direction {way!r}; legal are {' and '.join(ways)}", code="attribute")
    if node.any_type() != "u8":
        raise UnsupportedError(f"it shifts numbers of {node.any_type()}; available is u8", code="dtype")
    _bits(ways[way], node)


def _bits_not(node: GraphNode) -> None:
    t, shape = node.any_type(), node.shape()
    if t not in _INTEGERS:
        raise UnsupportedError(f"bits of {t}; available are {', '.join(_INTEGERS)}", code="dtype")
    ones = node.held(np.full((1,), 255 if t == "u8" else -1, node.reader.numpy_of(t)))
    node.add(Bitwise(t, (shape, (1,)), "xor"), {"src_0": node.inputs[0], "src_1": ones}, shape)


WHOLE_NUMBERS: dict[str, Callable[[GraphNode], None]] = {
    "Mod": _remainder, "BitShift": _shift, "BitwiseNot": _bits_not,
    **{f"Bitwise{name}": partial(_bits, name.lower()) for name in ("And", "Or", "Xor")},
}  # fmt: skip
"""By ONNX's name, the function that adds the nodes of an operator."""
