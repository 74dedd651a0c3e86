"""Checks of the contents of a model's file: tensors, types and shapes of values, and the connections of nodes.

A file may hold anything that its format can express. Each function takes the name of the model, and raises UsageError
with the name of the wrong item. No other code reads the messages of protobuf before these checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.expect import shown
from convsmith.diag.printable import printable
from convsmith.runtime.arrays import Array

__all__ = ["Connections", "array_of", "check_model", "check_node", "check_shape", "element_type"]

_LARGEST = 2**60
"""Elements that an array cannot have: sizes in bytes and index arithmetic stay below 2**63."""

Connections = tuple[int, int]
"""The least and the greatest number of inputs of an operator."""


def array_of(model: str, tensor: Any, package: Any) -> Array:
    """Return the elements of a ``tensor`` that the model holds; ``package`` is the package `onnx`."""
    name = f"{model}: tensor {printable(tensor.name) or 'without a name'}"
    dtype = element_type(name, tensor.data_type, package)
    shape = tuple(tensor.dims)
    check_shape(name, shape)
    if tensor.data_location == tensor.EXTERNAL:
        raise UsageError(
            f"{name}: its elements lie in another file, which is searched beside that of the model; legal is to give "
            "the path of the model", code="bad-file",
        )  # fmt: skip
    try:
        found: Array = package.numpy_helper.to_array(tensor)
    except Exception as error:
        raise UsageError(
            f"{name}: what it holds is no {dtype} of shape {_shape_text(shape)}: {printable(str(error))}",
            code="bad-file",
        ) from None
    if found.shape != shape:
        raise UsageError(
            f"{name}: it holds {found.size} elements; legal are those of its shape {_shape_text(shape)}",
            code="bad-file",
        )
    return found


def element_type(name: str, number: int, package: Any) -> np.dtype[Any]:
    """Return the type of elements that has a ``number`` in ONNX; ``name`` is the item in messages."""
    try:
        found: np.dtype[Any] = np.dtype(package.helper.tensor_dtype_to_np_dtype(number))
    except (KeyError, TypeError, ValueError):
        legal = f"1 (float) to {max(package.TensorProto.DataType.values())}"
        raise UsageError(f"{name}: {number} is no type of elements; legal are {legal}", code="dtype") from None
    return found


def check_shape(name: str, shape: Sequence[int]) -> None:
    """Raise UsageError if a size of ``shape`` is negative, or if an array of it has too many elements."""
    if min(shape, default=0) < 0:
        raise UsageError(f"{name}: its shape is {_shape_text(shape)}; legal are sizes from 0", code="shape")
    if prod(shape) >= _LARGEST:
        raise UsageError(
            f"{name}: its shape is {_shape_text(shape)}; legal are fewer than 2**60 elements", code="shape"
        )


def check_node(model: str, name: str, node: Any, inputs: Connections) -> None:
    """Raise UsageError if a ``node`` called ``name`` has another number of ``inputs``, or no output."""
    least, most = inputs
    if not least <= len(node.input) <= most:
        legal = f"{least} to {most}" if most > least else str(least)
        raise UsageError(
            f"{model}: node {name} ({node.op_type}) has {len(node.input)} inputs; legal are {legal}", code="inputs"
        )
    if not (node.output and node.output[0]):
        raise UsageError(f"{model}: node {name} ({node.op_type}) has no output; legal is one", code="inputs")
    for attribute in node.attribute:
        # onnx's inference of shapes divides by strides, ONNX Runtime's by groups: both would end the process.
        numbers = {"strides": attribute.ints, "group": [attribute.i]}.get(attribute.name, ())
        if min(numbers, default=1) < 1:
            raise UsageError(
                f"{model}: node {name} ({node.op_type}) has {attribute.name} {', '.join(map(str, numbers))}; legal are "
                "1 or more", code="attribute",
            )  # fmt: skip


def _shape_text(shape: Sequence[int]) -> str:
    """Return a shape as messages show it."""
    return " x ".join(map(str, shape)) or "()"


def check_model(model: str, proto: Any, newest: int) -> None:
    """Check what ``model`` states as a whole. UsageError if a text is not UTF-8 or there are no nodes; UnsupportedError
    if its operators are of a version that the package `onnx`, which knows those up to ``newest``, does not define.
    """
    check_texts(model, proto)
    if not proto.graph.node:
        raise UsageError(f"{model}: is no ONNX model, or one without nodes", code="bad-file")
    for entry in proto.opset_import:
        if entry.domain in ("", "ai.onnx") and not 1 <= entry.version <= newest:
            words = f"version {entry.version} of ONNX's operators; the installed package onnx defines 1 to {newest}"
            raise UnsupportedError(f"{model}: its nodes have {words}", code="opset")


def check_texts(model: str, message: Any) -> None:
    """Raise UsageError if a text field of a protocol buffer's ``message`` is not UTF-8, for which protobuf returns
    bytes.
    """
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            for text in (value,) if isinstance(value, str | bytes) else value:
                if isinstance(text, bytes):
                    raise UsageError(
                        f"{model}: is no ONNX model: {field.full_name} is {shown(text)}; legal is UTF-8",
                        code="bad-file",
                    )
        elif field.type == field.TYPE_MESSAGE:
            for part in (value,) if hasattr(value, "ListFields") else value:
                check_texts(model, part)
