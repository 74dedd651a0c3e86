"""Operators of ONNX on whole numbers that kernels compute in f64, between conversions, which holds them exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["computed_in_floats", "nodes_in_floats"]

_OPERATORS = ("Abs", "Neg", "Sign", "Pow", "TopK", "ArgMax", "ArgMin", "ReduceSum", "ReduceMax", "ReduceMin",
              "ReduceProd", "ReduceSumSquare", "ReduceL1")  # fmt: skip
_PLACES = ("ArgMax", "ArgMin")
"""Operators whose result has another type than their input."""
_INTEGERS = (2, 3, 6, 7)
"""ONNX's numbers of u8, s8, s32 and s64."""
_DOUBLE = 11
"""ONNX's number of f64."""


def computed_in_floats(proto: Any, type_of: Callable[[str], Any]) -> bool:
    """Return whether a node is one of those operators on whole numbers; `type_of` returns the type of a value."""
    is_listed = proto.op_type in _OPERATORS and proto.domain in ("", "ai.onnx") and any(proto.input[:1])
    return is_listed and type_of(proto.input[0]).tensor_type.elem_type in _INTEGERS


def nodes_in_floats(
    proto: Any, type_of: Callable[[str], Any], fresh: Callable[[str], str], helper: Any
) -> Sequence[Any]:  # fmt: skip
    """Return the node `proto` on f64, between conversions from and to the type of its input.

    `fresh` returns a name that no value has; `helper` is the module `onnx.helper`.
    """
    kind = type_of(proto.input[0]).tensor_type.elem_type
    wide, inner = fresh(proto.output[0]), fresh(proto.output[0])
    node = type(proto)()
    node.CopyFrom(proto)
    node.input[0] = wide
    before = helper.make_node("Cast", [proto.input[0]], [wide], to=_DOUBLE)
    if proto.op_type in _PLACES or not proto.output[0]:
        return [before, node]
    node.output[0] = inner
    return [before, node, helper.make_node("Cast", [inner], [proto.output[0]], to=kind)]
