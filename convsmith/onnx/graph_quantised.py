"""Quantised operators of ONNX as nodes between conversions, and the integers behind constants.

A node with bytes for its inputs and output is read as the operator of floats between `DequantizeLinear` and
`QuantizeLinear`. A pass over the graph makes one kernel on bytes of such nodes again, whichever form a model has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.graph import IntegerConstant

__all__ = ["constant_integers", "plain_nodes"]

_MOVES = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")
"""Operators that move the elements of their first input."""


def constant_integers(node: Any) -> IntegerConstant | None:
    """Return the integers behind the constant that a `GraphNode` computes from constants; None if there are none."""
    reader = node.reader
    if node.operator == "DequantizeLinear" and not node.attribute("block_size", 0):
        values, scale, point = node.constant(0), node.constant(1), node.constant(2)
        along = (-1, *(1,) * (values.ndim - node.attribute("axis", 1) % max(values.ndim, 1) - 1))
        points = np.zeros_like(scale, np.int32) if point is None else point.astype(np.int32)
        wide = [np.broadcast_to(x.reshape(along if x.size > 1 else ()), values.shape) for x in (scale, points)]
        return IntegerConstant(values, *wide)
    behind = reader.integers.get(node.inputs[0]) if node.operator in _MOVES else None
    if behind is None:
        return None
    others = {x: reader.constants[x] for x in node.inputs[1:] if x}
    parts = []
    for x in (behind.values, behind.scale, behind.point):
        moved = reader.computed(node, {node.inputs[0]: np.ascontiguousarray(x), **others})
        if moved is None:
            return None
        parts.append(moved[0])
    return IntegerConstant(*parts)


# -- operators on bytes -----------------------------------------------------------------------------------------------


def plain_nodes(proto: Any, fresh: Callable[[str], str], package: Any) -> Iterator[Any]:
    """Yield the node, or for an operator on bytes, the nodes of operators on floats between conversions.

    `fresh` returns a name that no value has; `package` is the package `onnx`. UsageError if inputs are missing.
    """
    row = _ROWS.get(proto.op_type)
    if row is None or proto.domain not in _DOMAINS:
        yield proto
        return
    operator, places, result, more = row
    yield from _Expansion(proto, fresh, package.helper).nodes(operator, places, result, more)


_DOMAINS = ("", "ai.onnx", "com.microsoft")
_SAME = ("kernel_shape", "pads", "strides", "dilations", "group", "auto_pad", "ceil_mode", "count_include_pad", "axis",
         "alpha", "transA", "transB")  # fmt: skip
"""Attributes that the operator of floats has too."""

_SOFTMAX_OF_AN_AXIS = 13
"""The first operator set in which a softmax is over one axis."""

_Places = Callable[[int], Sequence[int]] | Sequence[int]
_ROWS: dict[str, tuple[str, _Places, int, int | None]] = {
    "QLinearConv": ("Conv", (0, 3), 6, 8),
    "QLinearMatMul": ("MatMul", (0, 3), 6, None),
    "QGemm": ("Gemm", (0, 3), 7, 6),
    **{f"QLinear{name}": (name, (0, 3), 6, None) for name in ("Add", "Mul")},
    **{
        f"QLinear{name}": (name, (0,), 3, None)
        for name in ("GlobalAveragePool", "AveragePool", "Sigmoid", "LeakyRelu", "Softmax", "ReduceMean")
    },
    "QLinearConcat": ("Concat", lambda count: range(2, count, 3), 0, None),
}
"""By ONNX's name, or that of ONNX Runtime: the operator of floats, the places of the values among the inputs, each
followed by its scale and its zero point, the place of the result's scale, and the place of an s32 bias."""


class _Expansion:
    """The nodes that replace the node `proto`."""

    def __init__(self, proto: Any, fresh: Callable[[str], str], helper: Any) -> None:
        self._proto, self._fresh, self._helper = proto, fresh, helper
        self._made: list[Any] = []

    def nodes(self, operator: str, places: _Places, result: int, bias: int | None) -> Sequence[Any]:
        """Return the nodes."""
        inputs = [*self._proto.input]
        where = places(len(inputs)) if callable(places) else places
        if len(inputs) <= max(result, *(n + 1 for n in where)):
            legal = "values with scales and zero points"
            raise UsageError(f"it has {len(inputs)} inputs; legal are {legal}", code="inputs")
        attributes = {a.name: a for a in self._proto.attribute}
        if "channels_last" in attributes and attributes["channels_last"].i:
            raise UnsupportedError("channels_last=1; available are nodes with channels first", code="layout")
        axis = {"axis": 0} if operator in ("Conv",) else {"axis": 1}
        given = []
        for n in where:
            along = axis if n != where[0] else {}
            if operator == "Gemm" and n != where[0] and "transB" in attributes and attributes["transB"].i:
                along = {"axis": 0}
            given.append(self._add("DequantizeLinear", [x for x in inputs[n : n + 3]], **along))
        if bias is not None and bias < len(inputs) and inputs[bias]:
            scale = self._add("Mul", [inputs[where[0] + 1], inputs[where[1] + 1]])
            given.append(self._add("DequantizeLinear", [inputs[bias], scale], axis=0))
        if operator == "Softmax" and "opset" in attributes and attributes["opset"].i < _SOFTMAX_OF_AN_AXIS:
            real = self._flat_softmax(given[0], attributes["axis"].i if "axis" in attributes else -1)
        else:
            real = self._add(operator, given)
            self._made[-1].attribute.extend(a for name, a in attributes.items() if name in _SAME)
        if result < len(inputs) and inputs[result]:
            self._made.append(
                self._helper.make_node("QuantizeLinear", [real, *inputs[result : result + 2]], [*self._proto.output])
            )
        else:
            self._made[-1].output[:] = [*self._proto.output]
        return self._made

    def _flat_softmax(self, x: str, axis: int) -> str:
        """Add a softmax over all axes from one on."""
        rows = self._add("Softmax", [self._add("Flatten", [x], axis=axis)], axis=1)
        return self._add("Reshape", [rows, self._add("Shape", [x])])

    def _add(self, operator: str, inputs: Sequence[str], **attributes: int) -> str:
        name = self._fresh(self._proto.output[0])
        self._made.append(self._helper.make_node(operator, inputs, [name], **attributes))
        return name
