"""ONNX's integer operators in graphs: products of bytes with sums in 32 bits, and conversions whose scale follows from
the values of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd, prod
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.operators.choice import ChangeType
from convsmith.network.operators.move import Reshape
from convsmith.network.operators.on_bytes import BYTES
from convsmith.network.operators.pointwise import Pointwise
from convsmith.network.operators.quantise import Quantise
from convsmith.network.operators.reduce import Reduce
from convsmith.onnx.graph_node import GraphNode
from convsmith.onnx.window import OnnxWindow, OperandNames, convolution
from convsmith.problem.attributes import Quantity
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import Eltwise

__all__ = ["add_conv_integer", "add_dynamic_quantise", "add_matmul_integer"]

_ROW = 64
"""Numbers whose extremes are found side by side."""
_STEPS = 255
_LEAST = 1e-30
"""The scale of values that are all 0."""


def add_conv_integer(window_of: Callable[[GraphNode], OnnxWindow], node: GraphNode) -> None:
    """Add `ConvInteger`, whose window `window_of` returns."""
    weights = node.constant(1)
    assert weights is not None
    points, arguments = _points(node, weights.shape[0], 0)
    options = {"dt": (_byte(node, 0), _byte(node, 1), "s32"), "zero_points": points}
    problem = convolution(OperandNames("x", "w"), node.shape(), weights.shape, window_of(node), **options)
    held = node.held(weights.reshape(problem.wei_shape))
    node.add(problem, {"src": node.inputs[0], "wei": held, **arguments})


def add_matmul_integer(node: GraphNode) -> None:
    """Add `MatMulInteger`."""
    a, b = node.shape(0), node.shape(1)
    if len(a) < 2 or len(b) < 2:
        raise UnsupportedError(f"shapes are {a} and {b}; available are matrices, with batch dims", code="product")
    if a[-1] != b[-2]:
        raise UsageError(f"shapes are {a} and {b}; legal are matrices with as many rows as the first has columns")
    points, arguments = _points(node, b[-1], len(b) - 1)
    result = (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])
    rank = max(len(a), len(b))
    shapes: tuple[tuple[int, ...], ...] = tuple((1,) * (rank - len(x)) + x for x in (a, b))
    if prod(b[:-2]) == 1:
        shapes = (prod(a[:-1]), a[-1]), b[-2:]
    work = Matmul(
        src=shapes[0], wei=shapes[1], dt=(_byte(node, 0), _byte(node, 1), "s32"), zero_points=points
    )  # fmt: skip
    node.add(work, {"src": node.inputs[0], "wei": node.inputs[1], **arguments}, result)


def _byte(node: GraphNode, n: int) -> str:
    found = node.any_type(n)
    if found not in BYTES:
        raise UnsupportedError(f"input {n} has elements of {found}; available are {', '.join(BYTES)}", code="dtype")
    return found


def _points(node: GraphNode, channels: int, axis: int) -> tuple[tuple[Quantity, ...], dict[str, str]]:
    """Return the zero points of the first two inputs, the third and fourth, and their arguments; those of the second
    may be `channels` along its `axis`.
    """
    found, arguments = [], {}
    for n, argument in ((2, "src"), (3, "wei")):
        if not node.has(n):
            continue
        count, held = prod(node.shape(n)), node.reader.constants.get(node.inputs[n])
        if held is not None and not held.any():
            continue
        if count != 1 and (argument == "src" or count != channels):
            legal = "one number" if argument == "src" else f"one number, or {channels} of axis {axis}"
            raise UnsupportedError(f"zero points are {node.shape(n)}; available are {legal}", code="zero-points")
        name = f"zero_points_{argument}"
        if held is not None:
            arguments[name] = node.held(held.astype(np.int32).reshape(-1))
        else:
            arguments[name] = node.between(ChangeType(node.any_type(n), "s32", (count,)), {"src": node.inputs[n]})
        found.append(Quantity(argument, "common" if count == 1 else "per_oc", (0,) if count == 1 else (), "s32"))
    return tuple(found), arguments


def add_dynamic_quantise(node: GraphNode) -> None:
    """Add `DynamicQuantizeLinear`: bytes from the least to the greatest value, with 0, and their scale and zero point.
    """
    shape, t = node.shape(), node.type()
    if t != "f32":
        raise UnsupportedError(f"values are {t}; available are f32", code="dtype")
    outputs: Any = [*node.outputs, "", "", ""][:3]
    zero = node.held(np.zeros((1,), np.float32))
    low, high = (
        node.between(Pointwise("f32", ((1,), (1,)), kind), {"src_0": _extreme(node, kind, shape), "src_1": zero})
        for kind in ("min", "max")
    )
    range_ = node.between(Pointwise("f32", ((1,), (1,)), "sub"), {"src_0": high, "src_1": low})
    parts = {"src_0": range_, "src_1": node.held(np.full((1,), _STEPS, np.float32))}
    step = node.between(Pointwise("f32", ((1,), (1,)), "div"), parts)
    least = {"src_0": step, "src_1": node.held(np.full((1,), _LEAST, np.float32))}
    scale = node.add(Pointwise("f32", ((1,), (1,)), "max"), least, (), n=1)
    steps = (Eltwise("linear", -1.0), Eltwise("round"), Eltwise("clip", 0, _STEPS))
    point = node.between(Pointwise("f32", ((1,), (1,)), "div", steps), {"src_0": low, "src_1": scale})
    if outputs[2]:
        node.add(ChangeType("f32", "u8", (1,)), {"src": point}, (), n=2)
    node.add(Quantise("u8", shape or (1,)), {"src": node.inputs[0], "scale": scale, "zero_point": point}, shape)


def _extreme(node: GraphNode, kind: str, shape: tuple[int, ...]) -> str:
    """Add the least or the greatest value: of each column of rows that lie one after the other, then of all columns."""
    count = prod(shape)
    row = gcd(count, _ROW)
    flat = node.between(Reshape("f32", count), {"src": node.inputs[0]}, (count // row, row))
    columns = node.between(Reduce(kind, "f32", (count // row, row), (0,)), {"src": flat})
    return node.between(Reduce(kind, "f32", (1, row), (1,)), {"src": columns}, (1,))
